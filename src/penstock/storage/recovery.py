"""Opening a log: cheaply after a clean stop, with repair after any other.

After a clean stop nothing is scanned but the tail behind the last index entry. After an unclean one the log is read
from the recovery point on, where nothing is known to be on disk: every batch must have its CRC and an offset that
follows the one before, and the log is cut at the first that has not. Indexes, producer state, transactions and leader
epochs of what was read are made anew. What lies below the recovery point was flushed before it was recorded, and is not
doubted.

Files reach the disk in any order: a power cut may take the end of one segment, and leave the next. So the log ends
where a segment does not begin with the offset after the last, unless a snapshot of the producers says that all below it
was there.

Everything here blocks and runs in threads, one log at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.storage import checkpoints, producer_snapshot
from penstock.storage.epochs import EpochEntry, LeaderEpochs
from penstock.storage.flush import DueSnapshot, Unflushed
from penstock.storage.index import BadIndex
from penstock.storage.leftovers import DirectoryListing, tidy
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import LogPosition, ReadAhead, remove_if_there
from penstock.storage.producers import ProducerEntry, Producers
from penstock.storage.reader import segment_at
from penstock.storage.replay import batches_between, rebuild_producers, replay_batch
from penstock.storage.scan import is_torn, sound_batches_of
from penstock.storage.segment import CorruptSegment, IndexBuilder, Segment
from penstock.storage.txn_index import TxnIndexEntry


@dataclass(slots=True)
class RecoveryReport:
    """What repairing a log took, for the person on call."""

    recovery_point: int
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    removed_segments: int = 0
    log_end_offset: int = 0
    # Whether what was cut off may be the beginning of a write that was never finished; else it is damage.
    is_torn: bool = True


@dataclass(slots=True)
class OpenedLog:
    segments: tuple[Segment, ...]
    log_start_offset: int
    end_position: LogPosition
    flushed_position: LogPosition
    producers: Producers
    leader_epochs: LeaderEpochs
    snapshot_offsets: list[int]
    unflushed: Unflushed = field(default_factory=Unflushed)
    report: RecoveryReport | None = None
    # Whether a clean stop would leave something else than what is there.
    is_changed: bool = False
    # Whether it should have been there, and was made anew.
    was_missing: bool = False


def load(
    directory: str,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    is_expected: bool = False,
) -> OpenedLog:
    unflushed = Unflushed()
    if not os.path.isdir(directory):
        os.mkdir(directory)
        unflushed.directories += [os.path.dirname(directory), directory]
    listing = tidy(directory, config)
    if not listing.log_files:
        for offset in listing.snapshot_offsets:
            remove_if_there(producer_snapshot.snapshot_path(directory, offset))
        if is_expected:
            checkpoints.write_damage(directory)  # the next start finds an empty log, perhaps before anybody was told
        created = _create(directory, config, log_start_offset, unflushed, now_ms)
        created.was_missing = is_expected
        return created
    segments = tuple(
        Segment(directory, base_offset, config, created_ms=now_ms, size=size)
        for base_offset, size in sorted(listing.log_files.items())
    )
    for segment in segments:
        if segment.base_offset in listing.txn_indexes:
            segment.txn_index.found(listing.txn_indexes[segment.base_offset])
    opened: OpenedLog | None = None
    if clean:
        opened = _open_clean(directory, segments, listing, log_start_offset, now_ms)
        if opened is None:
            # It is not as the marker says. The active segment is all that can be wrong.
            recovery_point = segments[-1].base_offset
    if opened is None:
        opened = _Repair(directory, config, segments, listing, recovery_point, now_ms).run(log_start_offset)
        if opened.end_position.offset < recovery_point:
            # A recovery point beyond the end is not of this log, or the disk lost what it had: check everything.
            opened = _Repair(directory, config, opened.segments, listing, 0, now_ms).run(log_start_offset)
    if opened.end_position.offset < log_start_offset:
        # What is left lies below the log start offset: nobody may read it, and it would be in the way.
        for segment in opened.segments:
            segment.remove()
        fresh = _create(directory, config, log_start_offset, unflushed, now_ms)
        fresh.producers, fresh.snapshot_offsets = opened.producers, opened.snapshot_offsets
        # The batches that the producers' state comes from are gone, so it must not depend on them any more.
        fresh.unflushed.snapshots.append(DueSnapshot(log_start_offset, dict(opened.producers.entries)))
        fresh.is_changed = True
        return fresh
    return opened


def _create(directory: str, config: LogConfig, base_offset: int, unflushed: Unflushed, now_ms: int) -> OpenedLog:
    remove_if_there(_epochs_path(directory))  # of a log that is no more
    segment = Segment.create(directory, base_offset, config, now_ms)
    segment.close_files()
    if directory not in unflushed.directories:
        unflushed.directories.append(directory)
    position = LogPosition(base_offset, base_offset, 0)
    return OpenedLog(
        segments=(segment,),
        log_start_offset=base_offset,
        end_position=position,
        flushed_position=position,
        producers=Producers(),
        leader_epochs=LeaderEpochs(),
        snapshot_offsets=[],
        unflushed=unflushed,
    )


# A clean stop


def _open_clean(
    directory: str, segments: tuple[Segment, ...], listing: DirectoryListing, log_start_offset: int, now_ms: int
) -> OpenedLog | None:
    """None when the log is not as a clean stop leaves it."""
    active = segments[-1]
    active.is_active = True
    try:
        end_offset = _end_of_clean(active)
        if not active.txn_index.is_checked:
            active.txn_index.check(end_offset)
        epochs = LeaderEpochs(checkpoints.read_epochs(_epochs_path(directory)))
        producers, snapshots = rebuild_producers(directory, segments, listing.snapshot_offsets, end_offset, now_ms)
    except (CorruptSegment, BadIndex, checkpoints.BadCheckpoint):
        return None
    finally:
        for segment in segments:
            segment.close_files()
    position = LogPosition(end_offset, active.base_offset, active.size)
    return OpenedLog(
        segments=segments,
        log_start_offset=max(log_start_offset, segments[0].base_offset),
        end_position=position,
        flushed_position=position,
        producers=producers,
        leader_epochs=epochs,
        snapshot_offsets=snapshots,
    )


def _end_of_clean(active: Segment) -> int:
    """The log end offset, from the tail behind the last index entry."""
    if active.size == 0:
        return active.base_offset
    try:
        entry = active.load_indexes()
    except BadIndex:
        active.rebuild_indexes()
        entry = None
    active.indexes_are_checked = active.timestamps_are_checked = True
    start = entry.position if entry is not None else 0
    last_offset = -1
    for position, header in active.walk(start, active.size, wait=True):
        last_offset = header.last_offset
        if entry is not None and position == start and last_offset != entry.last_offset:
            raise CorruptSegment("the last index entry is not of its batch")
        if header.max_timestamp > active.max_timestamp:
            raise CorruptSegment("the time index misses its closing entry")
    active.rolling_timestamp = next(active.walk(0, active.size, wait=True)).header.max_timestamp
    return last_offset + 1


# An unclean stop


class _Repair:
    """One pass over the log from the segment that holds the recovery point."""

    __slots__ = (
        "_config",
        "_directory",
        "_epochs",
        "_epochs_on_disk",
        "_listing",
        "_now_ms",
        "_producers",
        "_producers_at_active",
        "_report",
        "_segments",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: tuple[Segment, ...],
        listing: DirectoryListing,
        recovery_point: int,
        now_ms: int,
    ) -> None:
        self._directory = directory
        self._config = config
        self._segments = segments
        self._listing = listing
        self._now_ms = now_ms
        self._report = RecoveryReport(recovery_point, is_torn=not checkpoints.has_damage(directory))
        self._producers = Producers()
        # As they were at the base offset of the segment scanned last.
        self._producers_at_active: dict[int, ProducerEntry] = {}
        self._epochs = LeaderEpochs()
        self._epochs_on_disk: tuple[EpochEntry, ...] = ()

    def run(self, log_start_offset: int) -> OpenedLog:
        first = max(0, segment_at(self._segments, self._report.recovery_point))
        start_offset = self._segments[first].base_offset
        before = self._segments[:first]
        self._load_epochs(before)
        self._producers, snapshots = rebuild_producers(
            self._directory, before, [o for o in self._listing.snapshot_offsets if o <= start_offset], start_offset,
            self._now_ms,
        )  # fmt: skip
        end_offset = start_offset
        flushed_offset = self._flushed_offset()
        kept = len(before)
        following = [segment.base_offset for segment in self._segments[first + 1 :]]
        for segment, following_base_offset in zip(self._segments[first:], [*following, None], strict=True):
            if segment.base_offset < end_offset or segment.base_offset > max(end_offset, flushed_offset):
                break
            self._producers_at_active = dict(self._producers.entries)
            whole, end_offset = self._scan(segment, following_base_offset)
            kept += 1
            if not whole:
                break
        return self._result(log_start_offset, first, kept, end_offset, snapshots)

    def _flushed_offset(self) -> int:
        """Below it everything was on disk once: a snapshot is written when what lies below it has been flushed.

        Where somebody has removed them all, a gap may be one of compaction, but in front of the last segment.
        """
        snapshots = self._listing.snapshot_offsets or [segment.base_offset for segment in self._segments[-2:-1]]
        return max([self._report.recovery_point, *snapshots])

    def _load_epochs(self, before: Sequence[Segment]) -> None:
        try:
            self._epochs_on_disk = checkpoints.read_epochs(_epochs_path(self._directory))
            self._epochs.restore(self._epochs_on_disk)
        except checkpoints.BadCheckpoint:
            for _, (_, header) in batches_between(before, 0, self._segments[len(before)].base_offset):
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        # What the file says about the part that is read again may be of batches that are not there any more.
        self._epochs.cut_after(self._segments[len(before)].base_offset)

    def _scan(self, segment: Segment, following_base_offset: int | None) -> tuple[bool, int]:
        """Whether the segment was whole, and the offset after its last batch; what was not is cut off."""
        segment.is_active = True
        builder = IndexBuilder(segment)
        aborted: list[TxnIndexEntry] = []
        end = 0
        next_offset = segment.base_offset
        ahead = ReadAhead(segment.file())
        batches = sound_batches_of(
            segment, ahead, self._report.recovery_point, following_base_offset, is_compacted=self._config.is_compacted
        )
        for batch in batches:
            position, header = batch
            if position == 0:
                segment.rolling_timestamp = header.max_timestamp
            builder.add(position, header)
            ended = replay_batch(self._producers, ahead, batch, self._now_ms)
            if ended is not None:
                aborted.append(ended)
            if header.partition_leader_epoch > self._epochs.latest_epoch:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            next_offset = header.next_offset
            end = position + header.size
        whole = end == segment.size
        self._report.scanned_bytes += segment.size
        if not whole:
            self._report.truncated_bytes += segment.size - end
            if not is_torn(segment, end):
                self._found_damage()
            segment.file().cut(end)
            segment.size = end
        builder.install()
        segment.txn_index.rewrite(aborted)
        segment.close_files()
        segment.is_active = False
        return whole, next_offset

    def _found_damage(self) -> None:
        """Written down before it is cut off: the next start may come before anybody was told."""
        if self._report.is_torn:
            self._report.is_torn = False
            checkpoints.write_damage(self._directory)

    def _result(self, log_start_offset: int, first: int, kept: int, end_offset: int, snapshots: list[int]) -> OpenedLog:
        if kept < len(self._segments) and self._segments[kept].base_offset <= self._flushed_offset():
            self._found_damage()
        for segment in self._segments[kept:]:
            self._report.removed_segments += 1
            self._report.truncated_bytes += segment.size
            segment.remove()
        segments = self._segments[:kept]
        active = segments[-1]
        active.is_active = True
        snapshots = self._remaining_snapshots(snapshots, segments[first].base_offset, end_offset)
        if snapshots and snapshots[-1] > segments[first].base_offset:
            snapshots = self._use_later_snapshots(segments, snapshots, end_offset)
        self._epochs.cut_after(end_offset)
        self._epochs.cut_before(log_start_offset)
        self._report.log_end_offset = end_offset
        end = LogPosition(end_offset, active.base_offset, active.size)
        return OpenedLog(
            segments=segments,
            log_start_offset=max(log_start_offset, segments[0].base_offset),
            end_position=end,
            flushed_position=self._flushed(segments, end),
            producers=self._producers,
            leader_epochs=self._epochs,
            snapshot_offsets=snapshots,
            unflushed=self._unflushed(segments, first, end_offset, snapshots),
            report=self._report,
            is_changed=any(segment.size for segment in segments)
            or self._report.truncated_bytes > 0
            or self._epochs.entries != self._epochs_on_disk,
        )

    def _remaining_snapshots(self, usable: list[int], start_offset: int, end_offset: int) -> list[int]:
        """Those beyond the end are of batches that are lost."""
        later = [offset for offset in self._listing.snapshot_offsets if offset > start_offset]
        for offset in later:
            if offset > end_offset:
                remove_if_there(producer_snapshot.snapshot_path(self._directory, offset))
        return usable + [offset for offset in later if offset <= end_offset]

    def _use_later_snapshots(self, segments: tuple[Segment, ...], snapshots: list[int], end_offset: int) -> list[int]:
        """What lies below a snapshot was on disk before it. So it is of this history, and may know of batches that
        retention took meanwhile and no scan finds. Returns those that can be read.
        """
        base_offset = segments[-1].base_offset
        earlier = [offset for offset in snapshots if offset <= base_offset]
        at_active, _ = rebuild_producers(self._directory, segments, earlier, base_offset, self._now_ms)
        self._producers_at_active = dict(at_active.entries)
        ended = self._producers.transactions.ended_before(end_offset)
        self._producers, usable = rebuild_producers(self._directory, segments, snapshots, end_offset, self._now_ms)
        # A snapshot does not say which transactions have ended, and their markers may be above the high watermark.
        self._producers.transactions.take_ended(ended)
        return usable

    def _flushed(self, segments: tuple[Segment, ...], end: LogPosition) -> LogPosition:
        """Where the recovery point lies: what is behind it was only read, which flushes nothing."""
        recovery_point = self._report.recovery_point
        if recovery_point >= end.offset:
            return end
        segment = segments[max(0, segment_at(segments, recovery_point))]
        batch = segment.locate(recovery_point, segment.size, wait=True)
        if batch is None:
            return LogPosition(segment.base_offset, segment.base_offset, 0)
        return LogPosition(batch.header.base_offset, segment.base_offset, batch.position)

    def _unflushed(
        self, segments: tuple[Segment, ...], first: int, end_offset: int, snapshots: Sequence[int]
    ) -> Unflushed:
        unflushed = Unflushed()
        base_offset = segments[-1].base_offset
        if base_offset not in snapshots and (self._producers_at_active or len(segments) > 1):
            # The next recovery starts here, perhaps after retention took what came before.
            unflushed.snapshots.append(DueSnapshot(base_offset, self._producers_at_active))
        if end_offset > self._report.recovery_point or self._report.truncated_bytes:
            for segment in segments[first:]:
                unflushed.paths += [segment.path, *segment.index_paths()]
            unflushed.directories.append(self._directory)
            unflushed.epochs = self._epochs.entries
        elif self._epochs.entries != self._epochs_on_disk:
            unflushed.epochs = self._epochs.entries  # of batches that were cut off just before the crash
        return unflushed


def _epochs_path(directory: str) -> str:
    return f"{directory}/{checkpoints.LEADER_EPOCHS}"
