"""What a group is: its committed offsets, and, of the two rebalance protocols, the one its members speak.

`offsets` and everything marked durable changes only by `GroupMachine.apply`, so that replay rebuilds it. The rest (who
waits for what, deadlines) is soft: a new coordinator starts without it, and the members' next requests bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition

if TYPE_CHECKING:
    from penstock.coordinators.group.classic_state import ClassicGroup
    from penstock.coordinators.group.consumer_state import ConsumerGroup


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    """Only records of old clients carry one; -1 means the broker's retention."""
    topic_id: TopicId = NO_TOPIC_ID
    """Unknown in records of older brokers."""


@dataclass(slots=True)
class Group:
    group_id: str
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Durable."""

    pending: dict[TopicPartition, dict[int, CommittedOffset | None]] = field(default_factory=dict)
    """Durable: what producers, by their ids, committed in transactions that are open; see `pending_offsets`."""

    classic: ClassicGroup | None = None
    consumer: ConsumerGroup | None = None
    """At most one of the two; neither for offsets that were committed without members."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The broker's settings, by the names they have there."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 28 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    max_record_bytes: int = 1_000_000
    """What the coordinator's partition takes as one batch."""

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_regex_refresh_interval_ms: int = 600_000


class TopicFacts(NamedTuple):
    """What the group machines need to know of a topic."""

    topic_id: TopicId
    partitions_count: int
    racks: tuple[frozenset[str], ...] = ()
    """Of each partition, the racks of its replicas; empty when no broker has a rack."""
