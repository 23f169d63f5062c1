"""What the group coordinator writes to its partition of __consumer_offsets, as typed records.

    key  record                                  its tombstone, which takes it away
     1   OffsetCommitRecord (and 0, read only)   OffsetTombstone
     2   GroupMetadataRecord (classic)           GroupTombstone
     3   ConsumerGroupMetadata                   ConsumerGroupMetadataTombstone
     4   ConsumerGroupPartitionMetadata          ConsumerGroupPartitionMetadataTombstone
     5   ConsumerGroupMemberMetadata             ConsumerGroupMemberMetadataTombstone
     6   ConsumerGroupTargetAssignmentMetadata   ConsumerGroupTargetAssignmentMetadataTombstone
     7   ConsumerGroupTargetAssignmentMember     ConsumerGroupTargetAssignmentMemberTombstone
     8   ConsumerGroupCurrentMemberAssignment    ConsumerGroupCurrentMemberAssignmentTombstone
    16   ConsumerGroupRegularExpression          ConsumerGroupRegularExpressionTombstone

`encode` writes the versions that Kafka 4.2 writes, `decode` reads all that it reads. Fields are in the order of
`record_layouts`, those of the key first: `decode` relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.group import record_layouts as layouts
from penstock.coordinators.record_bytes import decode_after_number, leading_number
from penstock.core.ids import NO_TOPIC_ID, TopicId
from penstock.protocol.codec import Data
from penstock.protocol.schema import Array, Nested, Struct

NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetTombstone:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetCommitRecord:
    """With an expiry, which only clients of long ago choose, it is written without leader epoch and topic id."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class GroupTombstone:
    group_id: str


@dataclass(frozen=True, slots=True)
class GroupMetadataMember:
    """Timeouts in milliseconds; a rebalance timeout of -1 is that of a record from before there was one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataRecord:
    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[GroupMetadataMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataTombstone:
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    group_id: str
    epoch: int
    metadata_hash: int = 0
    """Of the subscribed topics, signed; 0 when there are none, or none was known yet."""


@dataclass(frozen=True, slots=True)
class PartitionRacks:
    partition: int
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    topic_id: TopicId
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataTombstone:
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadata:
    """Read only to be taken away: since Kafka 4.1 the group's metadata hash is in its place (KIP-1101)."""

    group_id: str
    topics: tuple[TopicMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataTombstone:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadata:
    """`classic_member_metadata` is that of a member which speaks the classic protocol in a consumer group."""

    group_id: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataTombstone:
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadata:
    group_id: str
    assignment_epoch: int


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberTombstone:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMember:
    group_id: str
    member_id: str
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentTombstone:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignment:
    """`state` is Kafka's number of it; what it means is the protocol's business."""

    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionTombstone:
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpression:
    """The topics that the expression matched when the cluster's metadata had that version."""

    group_id: str
    regular_expression: str
    topics: tuple[str, ...]
    version: int
    timestamp: int


Tombstone: TypeAlias = (
    OffsetTombstone
    | GroupTombstone
    | ConsumerGroupMetadataTombstone
    | ConsumerGroupPartitionMetadataTombstone
    | ConsumerGroupMemberMetadataTombstone
    | ConsumerGroupTargetAssignmentMetadataTombstone
    | ConsumerGroupTargetAssignmentMemberTombstone
    | ConsumerGroupCurrentMemberAssignmentTombstone
    | ConsumerGroupRegularExpressionTombstone
)
Record: TypeAlias = (
    OffsetCommitRecord
    | GroupMetadataRecord
    | ConsumerGroupMetadata
    | ConsumerGroupPartitionMetadata
    | ConsumerGroupMemberMetadata
    | ConsumerGroupTargetAssignmentMetadata
    | ConsumerGroupTargetAssignmentMember
    | ConsumerGroupCurrentMemberAssignment
    | ConsumerGroupRegularExpression
    | Tombstone
)


class _Kind(NamedTuple):
    """One row of the table above. `version` is the one in which values are written."""

    number: int
    key: type[Data]
    value: type[Data]
    version: int
    record: type[Any]
    tombstone: type[Any]


_KINDS = (
    _Kind(1, layouts.OffsetCommitKey, layouts.OffsetCommitValue, 4, OffsetCommitRecord, OffsetTombstone),
    _Kind(2, layouts.GroupKey, layouts.GroupMetadataValue, 3, GroupMetadataRecord, GroupTombstone),
    _Kind(
        3,
        layouts.GroupKey,
        layouts.ConsumerGroupMetadataValue,
        0,
        ConsumerGroupMetadata,
        ConsumerGroupMetadataTombstone,
    ),
    _Kind(
        4,
        layouts.GroupKey,
        layouts.ConsumerGroupPartitionMetadataValue,
        0,
        ConsumerGroupPartitionMetadata,
        ConsumerGroupPartitionMetadataTombstone,
    ),
    _Kind(
        5,
        layouts.MemberKey,
        layouts.ConsumerGroupMemberMetadataValue,
        0,
        ConsumerGroupMemberMetadata,
        ConsumerGroupMemberMetadataTombstone,
    ),
    _Kind(
        6,
        layouts.GroupKey,
        layouts.ConsumerGroupTargetAssignmentMetadataValue,
        0,
        ConsumerGroupTargetAssignmentMetadata,
        ConsumerGroupTargetAssignmentMetadataTombstone,
    ),
    _Kind(
        7,
        layouts.MemberKey,
        layouts.ConsumerGroupTargetAssignmentMemberValue,
        0,
        ConsumerGroupTargetAssignmentMember,
        ConsumerGroupTargetAssignmentMemberTombstone,
    ),
    _Kind(
        8,
        layouts.MemberKey,
        layouts.ConsumerGroupCurrentMemberAssignmentValue,
        0,
        ConsumerGroupCurrentMemberAssignment,
        ConsumerGroupCurrentMemberAssignmentTombstone,
    ),
    _Kind(
        16,
        layouts.RegularExpressionKey,
        layouts.ConsumerGroupRegularExpressionValue,
        0,
        ConsumerGroupRegularExpression,
        ConsumerGroupRegularExpressionTombstone,
    ),
)
_LEGACY_OFFSET_COMMIT = 0
_VERSION_WITH_EXPIRY = 1
_NO_EPOCH = -1

_KIND_OF: dict[type, _Kind] = {kind.record: kind for kind in _KINDS} | {kind.tombstone: kind for kind in _KINDS}
_KIND_BY_NUMBER = {kind.number: kind for kind in _KINDS} | {_LEGACY_OFFSET_COMMIT: _KIND_OF[OffsetCommitRecord]}
_NESTED: dict[type[Struct], type[Any]] = {
    layouts.MemberMetadata: GroupMetadataMember,
    layouts.PartitionRacks: PartitionRacks,
    layouts.TopicMetadata: TopicMetadata,
    layouts.ClassicProtocol: ClassicProtocol,
    layouts.ClassicMemberMetadata: ClassicMemberMetadata,
    layouts.TopicPartitions: TopicPartitions,
}
# To each layout the fields that decoding leaves mutable: their index, and whether they are arrays.
_NOT_PLAIN: dict[type[Struct], list[tuple[int, bool]]] = {
    layout: [(i, isinstance(f.wire, Array)) for i, f in enumerate(layout.FIELDS) if isinstance(f.wire, Array | Nested)]
    for layout in (*_NESTED, *(kind.key for kind in _KINDS), *(kind.value for kind in _KINDS))
}


def encode(record: Record) -> LogRecord:
    kind = _KIND_OF[type(record)]
    key = kind.key.encode_fields_of(record, 0, prefix=kind.number)
    if type(record) is kind.tombstone:
        return LogRecord(key, None, record)
    version = kind.version
    if isinstance(record, OffsetCommitRecord) and record.expire_timestamp != NO_TIMESTAMP:
        version = _VERSION_WITH_EXPIRY
        record = replace(record, leader_epoch=_NO_EPOCH, topic_id=NO_TOPIC_ID)
    return LogRecord(key, kind.value.encode_fields_of(record, version), record)


def decode(record: LogRecord) -> Record | None:
    """None for a kind of record that we do not know: of share or streams groups, or of a later Kafka."""
    kind = _KIND_BY_NUMBER.get(leading_number(record.key, "key"))
    if kind is None:
        return None
    key = _fields(decode_after_number(kind.key, record.key, 0))
    decoded: Record
    if record.value is None:
        decoded = kind.tombstone(*key)
    else:
        value = decode_after_number(kind.value, record.value, leading_number(record.value, "value"))
        decoded = kind.record(*key, *_fields(value))
    return decoded


def _fields(struct: Struct) -> list[Any]:
    values = [getattr(struct, field.name) for field in struct.FIELDS]
    for index, is_array in _NOT_PLAIN[type(struct)]:
        values[index] = tuple(map(_frozen, values[index])) if is_array else _frozen(values[index])
    return values


def _frozen(value: Any) -> Any:
    return _NESTED[type(value)](*_fields(value)) if isinstance(value, Struct) else value
