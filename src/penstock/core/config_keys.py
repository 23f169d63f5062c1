"""The table of every configuration key: one row each. This file has the broker's own; log_keys has those of its logs.

`penstock serve --help`, docs/configuration.md, DescribeConfigs and all validation read it, and no default is written
anywhere else. Names, types, bounds and defaults are Kafka's (4.2) wherever Kafka has the key; a default of our own is
marked with Kafka's next to it. Keys that Kafka does not have begin with `penstock.`.
"""

from __future__ import annotations

from penstock.core.config_values import INT_MAX, MIB, MINUTE_MS, SECOND_MS, ConfigType, Key
from penstock.core.group_keys import GROUP_KEYS, OFFSETS_KEYS
from penstock.core.log_keys import CLEANER_KEYS, DURABILITY_KEYS, RECORD_KEYS, RETENTION_KEYS, SEGMENT_KEYS
from penstock.core.transaction_keys import TRANSACTION_KEYS

BOOL, STRING, INT, LONG, LIST = ConfigType.BOOL, ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST

_IDENTITY_KEYS = (
    Key(
        "node.id",
        INT,
        None,
        at_least=0,
        kafka_default="",
        doc="The broker's number in the cluster; no two brokers share one. Without it a new broker is given the lowest "
        "that is free, which is kept in its data directory.",
    ),
    Key(
        "broker.session.timeout.ms",
        INT,
        3 * SECOND_MS,
        at_least=500,
        kafka_default="9000",
        doc="A broker that is not heard of for so long is taken for dead, and others lead what it led. "
        "etcd prolongs what is below two seconds.",
    ),
    Key(
        "auto.leader.rebalance.enable",
        BOOL,
        True,
        doc="Whether brokers that came back lead again, after a while, what they are the first replica of.",
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        at_least=1,
        doc="How often that is looked at.",
    ),
    Key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        at_least=0,
        doc="How much of what a broker is the first replica of others may lead.",
    ),
    Key(
        "penstock.handover.timeout.ms",
        INT,
        10 * SECOND_MS,
        at_least=0,
        doc="How long a broker that stops waits for others to lead what it leads.",
    ),
    Key(
        "penstock.broker.draining",
        BOOL,
        False,
        dynamic=True,
        doc="Whether this broker is given no replicas any more, because it is to be taken out of the cluster. Only "
        "while it runs, and for one broker: `penstock broker drain` sets it, and `--cancel` takes it back.",
    ),
    Key(
        "penstock.replica.auto.heal.ms",
        LONG,
        -1,
        at_least=-1,
        dynamic=True,
        doc="What a broker held that has been away for this long is made anew on others; -1 waits for it for ever. "
        "Counted by the controller, from when it finds the broker missing.",
    ),
    Key(
        "broker.rack",
        STRING,
        None,
        doc="The zone of this broker: replicas are spread over zones, and a consumer's client.rack is matched with it.",
    ),
    Key(
        "penstock.host",
        STRING,
        None,
        doc="Name of the machine the broker runs on (its host name when not set): "
        "replicas of a partition never share a machine while another one can take them.",
    ),
    Key(
        "log.dirs",
        LIST,
        None,
        doc="The data directory; beats log.dir. Kafka allows several here, a Penstock broker has one.",
    ),
    Key("log.dir", STRING, "penstock-data", kafka_default="/tmp/kafka-logs", doc="The data directory."),
    Key(
        "penstock.metadata",
        STRING,
        None,
        sensitive=True,
        doc="Where the metadata is: sqlite:PATH (a file metadata.db in the data directory when not set), or "
        "etcd://USER:PASSWORD@HOST:PORT,HOST:PORT/PREFIX with etcds:// for TLS. docs/operations.md has the details.",
    ),
)

_NETWORK_KEYS = (
    Key(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        kafka_default="PLAINTEXT://:9092",
        doc="Where the broker listens, as NAME://host:port with commas between. "
        "Port 0 takes a free port, an empty host listens on all addresses.",
    ),
    Key(
        "advertised.listeners",
        LIST,
        None,
        doc="The addresses that clients are told, per listener name; those of listeners when not set. "
        "Port 0 stands for the port that the listener got.",
    ),
    Key(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT",),
        kafka_default="SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        doc="The protocol behind each listener name, as NAME:PLAINTEXT with commas between.",
    ),
    Key(
        "penstock.insecure",
        BOOL,
        False,
        doc="Allows listeners on addresses other than loopback while nothing asks clients who they are.",
    ),
    Key(
        "penstock.http.host",
        STRING,
        None,
        doc="Address of the HTTP port (/metrics, /healthz, /readyz); the host of the first listener when not set.",
    ),
    Key("penstock.http.port", INT, 8080, at_least=0, at_most=65535, doc="The HTTP port; 0 takes a free port."),
    Key(
        "penstock.internal.host",
        STRING,
        None,
        doc="Address where the other brokers of the cluster reach this one; the host of the first listener when not "
        "set. Who connects there must prove to know the cluster's key.",
    ),
    Key(
        "penstock.internal.port",
        INT,
        0,
        at_least=0,
        at_most=65535,
        doc="The port for the other brokers of the cluster; 0 takes a free port.",
    ),
    Key(
        "socket.request.max.bytes",
        INT,
        100 * MIB,
        at_least=1,
        doc="A request that claims to be larger closes its connection.",
    ),
    Key(
        "socket.send.buffer.bytes",
        INT,
        -1,
        at_least=-1,
        kafka_default="102400",
        doc="SO_SNDBUF of client connections; -1 lets the operating system choose and adapt it.",
    ),
    Key(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        at_least=-1,
        kafka_default="102400",
        doc="SO_RCVBUF of client connections; -1 lets the operating system choose and adapt it.",
    ),
    Key(
        "max.connections",
        INT,
        INT_MAX,
        at_least=0,
        dynamic=True,
        doc="Connections in all; the one that would be too many is closed at once.",
    ),
    Key(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        at_least=0,
        dynamic=True,
        doc="Connections from one address; the one that would be too many is closed at once.",
    ),
    Key(
        "connections.max.idle.ms",
        LONG,
        10 * MINUTE_MS,
        at_least=-1,
        doc="A connection without a request for this long is closed; a negative value never closes one.",
    ),
    Key(
        "penstock.request.read.deadline.ms",
        LONG,
        30 * SECOND_MS,
        at_least=1,
        doc="Once the first byte of a request is there, the rest must arrive within this time, "
        "or the connection is closed.",
    ),
)

_REQUEST_KEYS = (
    Key(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        at_least=1024,
        doc="The most that one Fetch returns, whatever it asks for; a single larger batch still goes out.",
    ),
    Key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1_000,
        at_least=0,
        doc="Incremental fetch sessions kept; 0 turns them off.",
    ),
    Key(
        "max.request.partition.size.limit",
        INT,
        2_000,
        at_least=1,
        doc="Partitions in one page of DescribeTopicPartitions.",
    ),
)

_TOPIC_POLICY_KEYS = (
    Key("auto.create.topics.enable", BOOL, True, doc="A topic that a client names and that does not exist is created."),
    Key("delete.topic.enable", BOOL, True, doc="Topics may be deleted."),
    Key(
        "num.partitions",
        INT,
        1,
        at_least=1,
        dynamic=True,
        doc="Partitions of a topic whose creator does not say how many.",
    ),
    Key(
        "default.replication.factor",
        INT,
        1,
        at_least=1,
        dynamic=True,
        doc="Replicas of a topic whose creator does not say how many.",
    ),
    Key(
        "penstock.max.topic.partitions",
        INT,
        10_000,
        at_least=1,
        doc="The most partitions a topic may have; a request for more is refused.",
    ),
)

# Headings of the documentation, in its order.
BROKER_KEY_GROUPS: dict[str, tuple[Key, ...]] = {
    "The broker": _IDENTITY_KEYS,
    "Network": _NETWORK_KEYS,
    "Requests": _REQUEST_KEYS,
    "Topics": _TOPIC_POLICY_KEYS,
    "Durability": DURABILITY_KEYS,
    "Segments": SEGMENT_KEYS,
    "Retention": RETENTION_KEYS,
    "Compaction": CLEANER_KEYS,
    "Records": RECORD_KEYS,
    "Groups": GROUP_KEYS,
    "Committed offsets": OFFSETS_KEYS,
    "Transactions": TRANSACTION_KEYS,
}

BROKER_KEYS: dict[str, Key] = {key.name: key for keys in BROKER_KEY_GROUPS.values() for key in keys}
