"""What a follower takes of its leader's answer: whole batches, byte by byte as they are.

The leader has decided what is in the log, so nothing is refused for what its producer did, and what it means for
producers and transactions is found as a start finds it, by replay. What must stay true is that the follower's batches
are the leader's: each with its CRC, none at an offset that the log has, none in an earlier leader epoch than the one
before it. An answer may end inside a batch; that one comes again, whole, with the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header, sound_batches
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.producers import Producers
from penstock.storage.replay import replay_control
from penstock.storage.segment import StagedBatch
from penstock.storage.txn_index import TxnIndexEntry


class BeginsEarlier(Exception):
    """The log is empty, and the leader's first batch begins before the offset where it is to go on.

    A leader's log may start inside a batch, where DeleteRecords put it. `Log.start_at(base_offset, ...)` makes room for
    the whole of it, then the same records can be appended.
    """

    def __init__(self, base_offset: int) -> None:
        super().__init__(f"the first batch begins at {base_offset}")
        self.base_offset = base_offset


class ReplicatedBatch(NamedTuple):
    """A batch of an answer and where it lies in it."""

    position: int
    header: BatchHeader


def check(records: memoryview, end_offset: int, latest_epoch: int, leader_epoch: int) -> list[ReplicatedBatch]:
    """The whole batches for a log that ends at `end_offset`, in `latest_epoch`. CORRUPT_MESSAGE: they are not what a
    leader sends.

    Those of a later epoch than the leader's own are left out: it has lost its leadership while it answered, and what
    follows in its file is another's (KAFKA-18723).
    """
    batches: list[ReplicatedBatch] = []
    position = 0
    for position_of, header in sound_batches(records, 0, len(records)):
        epoch = header.partition_leader_epoch
        if epoch > leader_epoch:
            return batches
        if header.base_offset < end_offset or header.last_offset_delta < 0 or epoch < latest_epoch:
            raise _corrupt(f"a batch with {header} does not follow {end_offset} in epoch {latest_epoch}")
        batches.append(ReplicatedBatch(position_of, header))
        end_offset, latest_epoch = header.next_offset, epoch
        position = position_of + header.size
    if not _is_cut(records, position) or (records and not batches):
        raise _corrupt(f"no batch at byte {position} of {len(records)}, where {end_offset} should be")
    return batches


def first_header(records: memoryview) -> BatchHeader | None:
    """Of the first batch, whether it is sound or not; None when there is not even that."""
    return read_header(records) if len(records) >= HEADER_BYTES else None


def _is_cut(records: memoryview, position: int) -> bool:
    """Whether what begins here is the beginning of a batch, or nothing."""
    remaining = len(records) - position
    if remaining < HEADER_BYTES:
        return True
    header = read_header(records, position)
    return header.magic == MAGIC and header.size > remaining


def _corrupt(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the leader's answer cannot be appended: {reason}")


def stage(
    records: memoryview, batches: Sequence[ReplicatedBatch], epochs: LeaderEpochs, producers: Producers, now_ms: int
) -> tuple[list[StagedBatch], list[TxnIndexEntry]]:
    """Takes the batches into epochs and producers. Returns what is to be written, with what undoes it, and the aborted
    transactions.
    """
    staged: list[StagedBatch] = []
    aborts: list[TxnIndexEntry] = []
    for position, header in batches:
        base_offset, producer_id = header.base_offset, header.producer_id
        if header.partition_leader_epoch > epochs.latest_epoch:
            epochs.assign(header.partition_leader_epoch, base_offset)
        previous = None
        if producer_id >= 0:
            previous = producers.entries.get(producer_id)
            if header.is_control:
                ended = replay_control(producers, header, records, position, now_ms)
                if ended is not None:
                    aborts.append(ended)
            else:
                producers.replay(header, now_ms)
            if producers.entries.get(producer_id) is previous:
                producer_id = -1  # it left nothing to undo
        size = header.size
        view = records[position : position + size]
        staged.append(
            StagedBatch(view, size, base_offset, header.last_offset, header.max_timestamp, producer_id, previous)
        )
    return staged, aborts
