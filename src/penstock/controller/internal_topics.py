"""What the coordinators' own topics are like, when they are created and when more brokers have come.

They have as many replicas as there are brokers, up to the factor that is configured (3): the first broker of a cluster
creates them on itself, so they have to grow when others join. Their min.insync.replicas goes by the number of replicas:

- Three and more: two, so that what is acknowledged survives the loss of a broker, and its absence stops nobody.
- Two: one. With two, each of the brokers could stop all groups and transactions, and a second broker would make a
  cluster less available than the first alone. A replica that was behind is not elected in either case; all that two
  would give is a second copy of what is written while the other broker is away.

What an operator has configured (transaction.state.log.min.isr, min.insync.replicas) is kept to as far as replicas go.
"""

from __future__ import annotations

from penstock.controller.commands import NewTopic
from penstock.controller.configs import MIN_ISR
from penstock.core.config import BrokerConfig
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.metadata.image import ClusterImage

# What the keys that describe them begin with.
_KEYS = {GROUP_OFFSETS_TOPIC: "offsets.topic", TRANSACTIONS_TOPIC: "transaction.state.log"}
_MIN_ISR_KEYS = {GROUP_OFFSETS_TOPIC: MIN_ISR, TRANSACTIONS_TOPIC: "transaction.state.log.min.isr"}


def wanted_replication_factor(name: str, image: ClusterImage, config: BrokerConfig) -> int:
    return min(config.int(f"{_KEYS[name]}.replication.factor"), max(1, len(image.available())))


def wanted_min_isr(name: str, replication_factor: int, config: BrokerConfig) -> int:
    key = _MIN_ISR_KEYS[name]
    if config.entry(key).is_default:
        return 2 if replication_factor >= 3 else 1
    return min(config.int(key), replication_factor)


def new_internal_topic(name: str, image: ClusterImage, config: BrokerConfig) -> NewTopic:
    prefix = _KEYS[name]
    replicas = wanted_replication_factor(name, image, config)
    configs = (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.int(f"{prefix}.segment.bytes"))),
        (MIN_ISR, str(wanted_min_isr(name, replicas, config))),
    )
    return NewTopic(name, config.int(f"{prefix}.num.partitions"), replicas, configs=configs)
