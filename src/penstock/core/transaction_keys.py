"""The keys of transactions and of the topic that keeps their state."""

from __future__ import annotations

from penstock.core.config_values import DAY_MS, MIB, MINUTE_MS, ConfigType, Key

INT, BOOL = ConfigType.INT, ConfigType.BOOL

TRANSACTION_KEYS = (
    Key(
        "transaction.max.timeout.ms",
        INT,
        15 * MINUTE_MS,
        at_least=1,
        doc="The longest transaction.timeout.ms that a producer may ask for.",
    ),
    Key(
        "transactional.id.expiration.ms",
        INT,
        7 * DAY_MS,
        at_least=1,
        doc="A transactional id that was not used for this long, and has no transaction open, is forgotten.",
    ),
    Key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        60 * MINUTE_MS,
        at_least=1,
        doc="How often expired transactional ids are looked for.",
    ),
    Key(
        "transaction.partition.verification.enable",
        BOOL,
        True,
        dynamic=True,
        doc="Whether a transactional write is taken only when its coordinator knows of the transaction (KIP-890).",
    ),
    Key(
        "transaction.state.log.num.partitions",
        INT,
        50,
        at_least=1,
        doc="Partitions of __transaction_state, which spread the transactional ids over the brokers. "
        "Only before it is created.",
    ),
    Key(
        "transaction.state.log.replication.factor",
        INT,
        3,
        at_least=1,
        doc="Replicas of __transaction_state, or as many as there are brokers when it is created.",
    ),
    Key(
        "transaction.state.log.min.isr",
        INT,
        2,
        at_least=1,
        doc="Replicas of __transaction_state that must have a change before it counts, or all when there are fewer.",
    ),
    Key(
        "transaction.state.log.segment.bytes",
        INT,
        100 * MIB,
        at_least=1,
        doc="Segment size of __transaction_state: small ones are compacted sooner and load faster.",
    ),
)
