"""The keys of logs: those of the broker, which hold for every topic, and those of a topic, which override them.

A topic key has the type, bounds and default of the broker key it stands for, so neither is written twice. Where several
broker keys give one default (milliseconds, minutes, hours) the first that has a value counts, as in Kafka.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.config_values import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    BrokerDefault,
    ConfigType,
    ConfigValue,
    Key,
    Scope,
)

BOOL, STRING, INT, LONG = ConfigType.BOOL, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
DOUBLE, LIST = ConfigType.DOUBLE, ConfigType.LIST

DURABILITY_KEYS = (
    Key(
        "log.flush.interval.messages",
        LONG,
        1,
        at_least=1,
        dynamic=True,
        kafka_default=str(LONG_MAX),
        doc="1: acks=all is answered when the records are on disk (fdatasync). "
        "Any other value: acks=all is answered from the page cache, and the log is flushed after that many records.",
    ),
    Key(
        "log.flush.interval.ms",
        LONG,
        None,
        at_least=0,
        dynamic=True,
        doc="Records are on disk this long after they were written, at the latest; "
        "log.flush.scheduler.interval.ms when not set.",
    ),
    Key(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        at_least=1,
        doc="What log.flush.interval.ms is when not set; in Kafka also how often it is checked.",
    ),
    Key(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        MINUTE_MS,
        at_least=1,
        doc="How often the recovery points are written: after a crash only what lies behind them is scanned.",
    ),
    Key(
        "min.insync.replicas",
        INT,
        1,
        at_least=1,
        dynamic=True,
        doc="acks=all fails when fewer replicas than this are in sync.",
    ),
    Key(
        "replica.lag.time.max.ms",
        LONG,
        30 * SECOND_MS,
        at_least=100,
        doc="A replica that has not held all that its leader has for so long is not in sync any more.",
    ),
    Key(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        at_least=0,
        doc="How long a leader lets a replica wait when there is nothing new.",
    ),
    Key(
        "replica.fetch.max.bytes",
        INT,
        MIB,
        at_least=0,
        doc="How much of one partition a replica asks for at a time; a larger batch comes whole.",
    ),
    Key(
        "replica.fetch.response.max.bytes",
        INT,
        10 * MIB,
        at_least=0,
        doc="How much a replica asks for at a time in all.",
    ),
    Key(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        at_least=0,
        dynamic=True,
        doc="Bytes a second that replicas in leader.replication.throttled.replicas send, all together. "
        "Replicas that are in sync do not wait for it.",
    ),
    Key(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        at_least=0,
        dynamic=True,
        doc="Bytes a second that replicas in follower.replication.throttled.replicas fetch, all together. "
        "Replicas that are in sync do not wait for it.",
    ),
    Key(
        "unclean.leader.election.enable",
        BOOL,
        False,
        dynamic=True,
        doc="A replica that is not in sync may become leader when no other is left, and acknowledged records be lost.",
    ),
)

SEGMENT_KEYS = (
    Key(
        "log.segment.bytes",
        INT,
        GIB,
        at_least=KIB,
        dynamic=True,
        doc="A segment file is closed before it grows past this. Kafka refuses less than 1 MiB.",
    ),
    Key("log.roll.ms", LONG, None, at_least=1, dynamic=True, doc="As log.roll.hours, in milliseconds; beats it."),
    Key(
        "log.roll.hours",
        INT,
        7 * 24,
        at_least=1,
        doc="A segment is closed when its first record is this old, even if it is not full.",
    ),
    Key(
        "log.roll.jitter.ms",
        LONG,
        None,
        at_least=0,
        in_effect=False,
        doc="As log.roll.jitter.hours, in milliseconds; beats it.",
    ),
    Key(
        "log.roll.jitter.hours",
        INT,
        0,
        at_least=0,
        in_effect=False,
        doc="The most that is subtracted at random from log.roll.hours.",
    ),
    Key(
        "log.index.size.max.bytes",
        INT,
        10 * MIB,
        at_least=12,
        dynamic=True,
        doc="A segment is closed when one of its indexes has this size.",
    ),
    Key(
        "log.index.interval.bytes",
        INT,
        4 * KIB,
        at_least=0,
        dynamic=True,
        doc="An index has about one entry for this many bytes of log.",
    ),
    Key(
        "log.preallocate",
        BOOL,
        False,
        dynamic=True,
        in_effect=False,
        doc="A new segment file gets its full size at once.",
    ),
)

RETENTION_KEYS = (
    Key(
        "log.retention.ms",
        LONG,
        None,
        at_least=-1,
        dynamic=True,
        doc="As log.retention.hours, in milliseconds; beats the other two. -1 keeps everything.",
    ),
    Key("log.retention.minutes", INT, None, doc="As log.retention.hours, in minutes; beats the hours."),
    Key(
        "log.retention.hours",
        INT,
        14 * 24,
        kafka_default="168",
        doc="A closed segment goes when its newest record is this old; a negative value keeps everything.",
    ),
    Key(
        "log.retention.bytes",
        LONG,
        -1,
        dynamic=True,
        doc="The oldest segments go while a partition is larger than this; a negative value sets no limit.",
    ),
    Key(
        "log.retention.check.interval.ms",
        LONG,
        5 * MINUTE_MS,
        at_least=1,
        doc="How often segments that may go are looked for.",
    ),
    Key(
        "log.segment.delete.delay.ms",
        LONG,
        MINUTE_MS,
        at_least=0,
        dynamic=True,
        doc="How long the file of a deleted segment stays on disk, for readers that are still in it.",
    ),
    Key(
        "log.cleanup.policy",
        LIST,
        ("delete",),
        choices=("compact", "delete"),
        may_be_empty=True,
        dynamic=True,
        doc="delete: old segments go by age and size. compact: the last record of each key stays.",
    ),
    Key(
        "log.cleaner.delete.retention.ms",
        LONG,
        DAY_MS,
        at_least=0,
        dynamic=True,
        doc="How long compaction keeps the mark that a key was deleted.",
    ),
    Key(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        at_least=0,
        at_most=1,
        dynamic=True,
        doc="The share of a log that must be new before it is compacted.",
    ),
    Key(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        at_least=0,
        dynamic=True,
        doc="A younger record is not compacted.",
    ),
    Key(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        at_least=1,
        dynamic=True,
        doc="An older record is compacted, whatever share of the log is new.",
    ),
)

CLEANER_KEYS = (
    Key(
        "log.cleaner.enable", BOOL, True, dynamic=True, doc="Whether topics with cleanup.policy=compact are compacted."
    ),
    Key(
        "log.cleaner.threads",
        INT,
        1,
        at_least=0,
        at_most=64,
        dynamic=True,
        doc="How many logs are compacted at a time.",
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        128 * MIB,
        at_least=0,
        dynamic=True,
        doc="Memory for the keys of what is being compacted, in bytes, of all threads together: 24 bytes a key. "
        "A log with more new keys than fit is compacted in several rounds.",
    ),
    Key(
        "log.cleaner.io.buffer.size",
        INT,
        512 * KIB,
        at_least=0,
        dynamic=True,
        doc="Memory for reading and writing while compacting, of all threads together. After every piece that fills "
        "half of it a thread rests for as long as it computed, while there are requests to serve: with larger ones "
        "producers notice compaction.",
    ),
    Key(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        at_least=0,
        at_most=1,
        dynamic=True,
        doc="How full the memory for keys may become; a fuller one is slower.",
    ),
    Key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        dynamic=True,
        doc="Compaction reads and writes no more than this, all threads together.",
    ),
    Key(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        at_least=0,
        dynamic=True,
        doc="How long compaction waits when there is nothing to do.",
    ),
)

RECORD_KEYS = (
    Key(
        "message.max.bytes",
        INT,
        MIB + 12,
        at_least=0,
        dynamic=True,
        doc="The largest record batch that is taken, as it arrives (compressed).",
    ),
    Key(
        "compression.type",
        STRING,
        "producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        dynamic=True,
        doc="producer: batches stay as they come. Anything else: batches of another codec are recompressed.",
    ),
    Key(
        "compression.gzip.level",
        INT,
        -1,
        at_least=-1,
        at_most=9,
        dynamic=True,
        doc="Level when compression.type is gzip; -1 is the library's own.",
    ),
    Key(
        "compression.lz4.level", INT, 9, at_least=1, at_most=17, dynamic=True, doc="Level when compression.type is lz4."
    ),
    Key(
        "compression.zstd.level",
        INT,
        3,
        at_least=-131072,
        at_most=22,
        dynamic=True,
        doc="Level when compression.type is zstd.",
    ),
    Key(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        dynamic=True,
        doc="CreateTime: a record keeps its producer's timestamp. LogAppendTime: it gets the time of its append.",
    ),
    Key(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        at_least=0,
        dynamic=True,
        doc="With CreateTime, a record whose timestamp lies further than this in the past is refused.",
    ),
    Key(
        "log.message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        at_least=0,
        dynamic=True,
        doc="With CreateTime, a record whose timestamp lies further than this in the future is refused.",
    ),
    Key(
        "producer.id.expiration.ms",
        INT,
        DAY_MS,
        at_least=1,
        dynamic=True,
        doc="A partition forgets an idempotent producer that wrote nothing for this long.",
    ),
)

_LOG_KEYS = {key.name: key for key in (*DURABILITY_KEYS, *SEGMENT_KEYS, *RETENTION_KEYS, *CLEANER_KEYS, *RECORD_KEYS)}


def _topic(name: str, *broker_defaults: str | BrokerDefault, doc: str = "") -> Key:
    """A topic key with the type and bounds of the first broker key that gives its default; `doc` replaces its doc."""
    defaults = tuple(BrokerDefault(given) if isinstance(given, str) else given for given in broker_defaults)
    return replace(
        _LOG_KEYS[defaults[0].name],
        name=name,
        default=None,
        doc=doc or _LOG_KEYS[defaults[0].name].doc,
        dynamic=True,
        kafka_default=None,
        scope=Scope.TOPIC,
        broker_defaults=defaults,
    )


def _later(name: str, type: ConfigType, default: ConfigValue, doc: str, at_least: int | None = None) -> Key:
    """A topic key of Kafka without a broker key, accepted for what is still to come."""
    return Key(name, type, default, doc, at_least, may_be_empty=True, dynamic=True, in_effect=False, scope=Scope.TOPIC)


def _throttled(name: str, doc: str) -> Key:
    return Key(name, LIST, (), doc, pattern=r"\*|[0-9]+:[0-9]+", may_be_empty=True, dynamic=True, scope=Scope.TOPIC)


_TOPIC_KEYS = (
    _topic("cleanup.policy", "log.cleanup.policy"),
    _topic("compression.type", "compression.type"),
    _topic("compression.gzip.level", "compression.gzip.level"),
    _topic("compression.lz4.level", "compression.lz4.level"),
    _topic("compression.zstd.level", "compression.zstd.level"),
    _topic("delete.retention.ms", "log.cleaner.delete.retention.ms"),
    _topic("file.delete.delay.ms", "log.segment.delete.delay.ms"),
    _topic("flush.messages", "log.flush.interval.messages"),
    _topic(
        "flush.ms",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        doc="Records are on disk this long after they were written, at the latest.",
    ),
    _throttled(
        "follower.replication.throttled.replicas",
        "Replicas, as partition:broker or * for all, that follower.replication.throttled.rate holds up until they are "
        "in sync.",
    ),
    _topic("index.interval.bytes", "log.index.interval.bytes"),
    _throttled(
        "leader.replication.throttled.replicas",
        "Replicas, as partition:broker or * for all, that send to others that are not in sync no faster than "
        "leader.replication.throttled.rate while they lead.",
    ),
    _later(
        "local.retention.bytes", LONG, -2, "Bytes kept on local disk with tiered storage; -2 is retention.bytes.", -2
    ),
    _later("local.retention.ms", LONG, -2, "Time kept on local disk with tiered storage; -2 is retention.ms.", -2),
    _topic("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _topic("max.message.bytes", "message.max.bytes"),
    _topic("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _topic("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _topic("message.timestamp.type", "log.message.timestamp.type"),
    _topic("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
    _topic("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
    _topic("min.insync.replicas", "min.insync.replicas"),
    _topic("preallocate", "log.preallocate"),
    _later("remote.log.copy.disable", BOOL, False, "Segments are no longer copied to tiered storage."),
    _later("remote.log.delete.on.disable", BOOL, False, "Turning tiered storage off deletes what it holds."),
    _later("remote.storage.enable", BOOL, False, "Closed segments are copied to tiered storage."),
    _topic("retention.bytes", "log.retention.bytes"),
    _topic(
        "retention.ms",
        "log.retention.ms",
        BrokerDefault("log.retention.minutes", MINUTE_MS),
        BrokerDefault("log.retention.hours", HOUR_MS),
        doc="A closed segment goes when its newest record is this old; -1 keeps everything.",
    ),
    _topic("segment.bytes", "log.segment.bytes"),
    _topic("segment.index.bytes", "log.index.size.max.bytes"),
    _topic(
        "segment.jitter.ms",
        "log.roll.jitter.ms",
        BrokerDefault("log.roll.jitter.hours", HOUR_MS),
        doc="The most that is subtracted at random from segment.ms.",
    ),
    _topic(
        "segment.ms",
        "log.roll.ms",
        BrokerDefault("log.roll.hours", HOUR_MS),
        doc="A segment is closed when its first record is this old, even if it is not full.",
    ),
    _topic("unclean.leader.election.enable", "unclean.leader.election.enable"),
)

TOPIC_KEYS: dict[str, Key] = {key.name: key for key in _TOPIC_KEYS}
