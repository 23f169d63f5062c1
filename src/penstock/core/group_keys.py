"""The keys of consumer groups and of the topic that keeps their offsets."""

from __future__ import annotations

from penstock.core.config_values import INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, ConfigType, Key

STRING, INT, LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST

GROUP_KEYS = (
    Key(
        "group.min.session.timeout.ms",
        INT,
        6 * SECOND_MS,
        at_least=0,
        doc="The shortest session timeout that a member of a classic group may ask for.",
    ),
    Key(
        "group.max.session.timeout.ms",
        INT,
        30 * MINUTE_MS,
        at_least=0,
        doc="The longest session timeout that a member of a classic group may ask for.",
    ),
    Key(
        "group.initial.rebalance.delay.ms",
        INT,
        3 * SECOND_MS,
        at_least=0,
        doc="How long an empty classic group waits for more members before its first rebalance.",
    ),
    Key("group.max.size", INT, INT_MAX, at_least=1, doc="The most members of a classic group."),
    Key(
        "group.consumer.session.timeout.ms",
        INT,
        45 * SECOND_MS,
        at_least=1,
        doc="A member of a consumer group (group.protocol=consumer) that was not heard of for this long is removed.",
    ),
    Key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5 * SECOND_MS,
        at_least=1,
        doc="How often members of consumer groups are told to send heartbeats.",
    ),
    Key("group.consumer.max.size", INT, INT_MAX, at_least=1, doc="The most members of a consumer group."),
    Key(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        doc="How consumer groups may share partitions; the first is used where members do not choose.",
    ),
    Key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        doc="Whether a running group may change between the classic and the consumer protocol.",
    ),
    Key(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        10 * MINUTE_MS,
        at_least=10 * SECOND_MS,
        doc="How often the regular expressions that consumer groups subscribe to are matched with the topics anew, "
        "at the least.",
    ),
)

OFFSETS_KEYS = (
    Key(
        "offsets.topic.num.partitions",
        INT,
        50,
        at_least=1,
        doc="Partitions of __consumer_offsets, which spread the groups over the brokers. Only before it is created.",
    ),
    Key(
        "offsets.topic.replication.factor",
        INT,
        3,
        at_least=1,
        doc="Replicas of __consumer_offsets, or as many as there are brokers when it is created.",
    ),
    Key(
        "offsets.topic.segment.bytes",
        INT,
        100 * MIB,
        at_least=1,
        doc="Segment size of __consumer_offsets: small ones are compacted sooner and load faster.",
    ),
    Key(
        "offsets.retention.minutes",
        INT,
        28 * 24 * 60,
        at_least=1,
        kafka_default="10080",
        doc="Committed offsets are kept for this long after their group has lost its last member: "
        "longer than the records they point to.",
    ),
    Key(
        "offsets.retention.check.interval.ms",
        INT,
        10 * MINUTE_MS,
        at_least=1,
        doc="How often expired offsets are looked for.",
    ),
    Key(
        "offset.metadata.max.bytes",
        INT,
        4 * KIB,
        doc="The most metadata that a client may attach to a committed offset.",
    ),
)
