"""The log of one partition: segments, and the offsets, producers and leader epochs that go with them.

Appending has two halves. `stage` gives a batch its offset and checks its producer, in memory only; `write_staged`
writes all that was staged with one system call per segment. What must stay true:
- All or nothing: when the write fails, every effect of everything staged is undone, and the next append starts from
  what is in the file.
- `end_position` covers bytes that are in the file, `flushed_position` bytes that are on the disk, and the recovery
  point never passes what a start would need to trust them.
- The list of segments is replaced, never changed, so that a thread can read from the one it holds.

Everything runs on the loop thread unless its docstring says that it blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, place
from penstock.storage import aborted, recovery, replicated, retention, segment_ages, truncation
from penstock.storage.cleaning_state import CleaningState
from penstock.storage.epochs import EpochEntry
from penstock.storage.flush import DueSnapshot, FlushTicket, Unflushed, obsolete_snapshots
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import ColdRead, FileSpan, LogFile, LogPosition, remove_if_there
from penstock.storage.producer_snapshot import snapshot_path
from penstock.storage.producers import DuplicateBatch, ProducerEntry
from penstock.storage.readable_log import ReadableLog
from penstock.storage.reader import segment_at, storage_error, storage_errors
from penstock.storage.segment import CorruptSegment, Segment, SegmentSavepoint, StagedBatch
from penstock.storage.segment_swap import RetiredSegments
from penstock.storage.txn_index import AbortedTransaction, TxnIndexEntry, entry_of

__all__ = [
    "AbortedTransaction",
    "ColdRead",
    "DuplicateBatch",
    "FileSpan",
    "Log",
    "LogConfig",
    "LogFile",
    "LogPosition",
    "RetiredSegments",
]

_TRANSACTION_BITS = TRANSACTIONAL_BIT | CONTROL_BIT

# A named tuple's own constructor, without the Python function around it: half the time, on every append.
_new_tuple = tuple.__new__


class Log(ReadableLog):
    __slots__ = (
        "_active",
        "_failure",
        "_is_changed",
        "_now_ms",
        "_savepoint_end_offset",
        "_savepoint_epochs",
        "_snapshot_offsets",
        "_staged",
        "_staged_aborts",
        "_unflushed",
        "cleaning",
        "config",
        "directory",
        "flushed_position",
        "generation",
        "is_deleted",
        "is_swapping",
        "leader_epochs",
        "recovery_point",
        "recovery_report",
        "was_missing",
    )

    def __init__(self, directory: str, config: LogConfig, opened: recovery.OpenedLog, now_ms: int) -> None:
        super().__init__(opened.segments, opened.log_start_offset, opened.end_position, opened.producers)
        self.directory = directory
        self.config = config
        self.flushed_position = opened.flushed_position
        self.recovery_point = opened.flushed_position.offset
        self.leader_epochs = opened.leader_epochs
        # None: the last stop was clean.
        self.recovery_report = opened.report
        # It was expected to be there, and is empty because it was not.
        self.was_missing = opened.was_missing
        self._active = opened.segments[-1]
        self._active.is_active = True
        self._snapshot_offsets = opened.snapshot_offsets
        self._unflushed = opened.unflushed
        self._is_changed = opened.is_changed
        self.generation = 0
        self.is_deleted = False
        self.is_swapping = False
        self.cleaning = CleaningState()
        self._failure: str | None = None
        self._now_ms = now_ms
        self._staged: list[StagedBatch] = []
        # Of the markers among what is staged, in their order.
        self._staged_aborts: list[TxnIndexEntry] = []
        self._savepoint_end_offset = self.log_end_offset
        self._savepoint_epochs: tuple[EpochEntry, ...] = ()

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = True,
        now_ms: int,
        is_expected: bool = False,
    ) -> Log:
        """Blocking. A directory that is missing or empty becomes a new log; after an unclean stop it is repaired."""
        opened = recovery.load(
            directory,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            now_ms=now_ms,
            is_expected=is_expected,
        )
        return cls(directory, config, opened, now_ms)

    # What it is now

    @property
    def flushed_offset(self) -> int:
        return self.flushed_position.offset

    @property
    def cleaned_offset(self) -> int:
        return self.cleaning.cleaned_offset

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would find anything to do."""
        return self.end_position.offset > self.flushed_position.offset or bool(self._unflushed)

    @property
    def has_rolled(self) -> bool:
        """Whether a segment was closed since the last flush: worth one even where nobody waits for it."""
        return bool(self._unflushed.snapshots)

    def has_snapshot(self, offset: int) -> bool:
        """Whether the producers as they were at `offset`, or later, are on disk."""
        return max(self._snapshot_offsets, default=-1) >= offset

    def has_snapshot_behind(self, plan: retention.RetentionPlan) -> bool:
        """Whether producers are remembered when the segments that the plan takes are gone."""
        kept = [segment.base_offset for segment in self._segments if segment.base_offset <= plan.log_start_offset]
        return self.has_snapshot(kept[-1])

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> str | None:
        return self._failure

    def fail(self, reason: str) -> None:
        """No more appends: what the disk holds is not known any more. Reads go on."""
        if self._failure is None:
            self._failure = reason

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} is offline: {self._failure}")

    # Appending

    def stage(
        self, view: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, transaction_version: int = 0
    ) -> int:
        """Gives the batch its offset and returns it; nothing is written before write_staged.

        `view` is exactly one batch, `header` what it holds; the view must stay as it is until then. Raises
        DuplicateBatch for a batch that the log has (or has staged), or BrokerError; then nothing changed.
        `transaction_version` is that of a marker's request (WriteTxnMarkers).
        """
        if self._failure is not None:
            self._check_writable()
        size = len(view)
        if size > self.config.segment_bytes:
            raise BrokerError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes, segment.bytes is {self.config.segment_bytes}",
            )
        base_offset = self.log_end_offset
        producer_id = header.producer_id
        previous: ProducerEntry | None = None
        if producer_id >= 0:
            if header.attributes & _TRANSACTION_BITS:
                previous, ended = self.producers.accept_transactional(
                    view, header, base_offset, now_ms, transaction_version
                )
                if ended is not None and not ended.is_commit:
                    self._staged_aborts.append(entry_of(ended))
            else:
                previous = self.producers.accept(header, base_offset, now_ms)
        if not self._staged:
            self._savepoint_end_offset = base_offset
            self._savepoint_epochs = self.leader_epochs.entries
        if leader_epoch > self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(leader_epoch, base_offset)
        place(view, 0, base_offset, leader_epoch)
        last_offset = base_offset + header.last_offset_delta
        self._staged.append(
            _new_tuple(StagedBatch, (view, size, base_offset, last_offset, header.max_timestamp, producer_id, previous))
        )
        self.log_end_offset = last_offset + 1
        self._now_ms = now_ms
        return base_offset

    def append_replicated(self, records: memoryview, leader_epoch: int, now_ms: int) -> LogPosition:
        """The whole batches of what the leader of `leader_epoch` answered, as they are. Returns the new end.

        Raises BeginsEarlier, or BrokerError: CORRUPT_MESSAGE for what no leader sends, KAFKA_STORAGE_ERROR when it was
        not written (for ever if `is_failed`). Then nothing changed.
        """
        self._check_writable()
        assert not self._staged
        first = replicated.first_header(records)
        is_empty = self.log_start_offset == self.log_end_offset and self.size_bytes == 0
        if first is not None and is_empty and first.base_offset < self.log_end_offset <= first.last_offset:
            raise replicated.BeginsEarlier(first.base_offset)
        epochs = self.leader_epochs
        batches = replicated.check(records, self.log_end_offset, epochs.latest_epoch, leader_epoch)
        if not batches:
            return self.end_position
        self._savepoint_end_offset, self._savepoint_epochs = self.log_end_offset, epochs.entries
        self._staged, self._staged_aborts = replicated.stage(records, batches, epochs, self.producers, now_ms)
        self.log_end_offset = self._staged[-1].last_offset + 1
        self._now_ms = now_ms
        return self.write_staged(records)

    @property
    def staged(self) -> Sequence[StagedBatch]:
        """As it is now: what is staged later, or undone, does not change it."""
        return self._staged

    def write_staged(self, whole: memoryview | None = None) -> LogPosition:
        """Writes what was staged and returns the new end. BrokerError: none of it is in the log, all is undone.

        `whole` is where all of it lies side by side, when it does.
        """
        staged = self._staged
        if not staged:
            return self.end_position
        first, savepoint = self._active, self._active.savepoint()
        due_snapshots = len(self._unflushed.snapshots)
        try:
            done = first.append(staged, 0, self.config, self._now_ms, whole)
            if self._staged_aborts:
                self._index_aborts(done)
            while done < len(staged):
                # Not where the batch begins: after a power cut a gap between segments is one that was torn.
                end_offset = staged[done - 1].last_offset + 1 if done else self._savepoint_end_offset
                self._roll(end_offset, self.producers.before(staged[done:]))
                done = self._active.append(staged, done, self.config, self._now_ms, whole)
                if self._staged_aborts:
                    self._index_aborts(done)
        except OSError as error:
            self._undo_staged(first, savepoint, due_snapshots)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} was not written: {error}") from error
        self._staged = []
        if self._staged_aborts:
            self._last_abort_offset = self._staged_aborts[-1].last_offset
            self._staged_aborts = []
        self._is_changed = True
        if self.leader_epochs.entries is not self._savepoint_epochs:
            self._unflushed.epochs = self.leader_epochs.entries
        active = self._active
        self.end_position = LogPosition(self.log_end_offset, active.base_offset, active.size)
        return self.end_position

    def _index_aborts(self, done: int) -> None:
        """The active segment holds what was staged up to the `done`th: the markers among it are its own."""
        active = self._active
        end_offset = self._staged[done].base_offset if done < len(self._staged) else self.log_end_offset
        entries = [entry for entry in self._staged_aborts if active.base_offset <= entry.last_offset < end_offset]
        if entries:
            active.txn_index.append(entries)

    def _undo_staged(self, first: Segment, savepoint: SegmentSavepoint, due_snapshots: int) -> None:
        for batch in reversed(self._staged):
            if batch.producer_id >= 0:
                self.producers.restore(batch.producer_id, batch.previous_entry)
        self.leader_epochs.restore(self._savepoint_epochs)
        self.log_end_offset = self._savepoint_end_offset
        had_aborts, self._staged, self._staged_aborts = bool(self._staged_aborts), [], []
        del self._unflushed.snapshots[due_snapshots:]
        begun = self._segments[self._segments.index(first) + 1 :]
        self._segments = self._segments[: len(self._segments) - len(begun)]
        self._active = first
        try:
            for segment in begun:
                segment.remove()
            first.restore(savepoint)
            if had_aborts:
                first.txn_index.cut_after(self.log_end_offset)
        except OSError as error:
            self.fail(f"a failed write could not be undone: {error}")

    # Rolling

    def roll(self, now_ms: int) -> None:
        """Closes the active segment, unless it is empty or about to grow: whoever staged must hear of the write."""
        self._check_writable()
        if self._staged or self._active.size == 0:
            return
        self._now_ms = now_ms
        try:
            self._roll(self.log_end_offset, dict(self.producers.entries))
        except OSError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} was not rolled: {error}") from error
        self.end_position = LogPosition(self.log_end_offset, self._active.base_offset, 0)

    def _roll(self, base_offset: int, producers: dict[int, ProducerEntry]) -> None:
        old = self._active
        old.finish()
        new = Segment.create(self.directory, base_offset, self.config, self._now_ms)
        due = self._unflushed
        due.files.append(old.file())
        old.become_closed()
        due.paths += old.index_paths()
        due.snapshots.append(DueSnapshot(base_offset, producers))
        if self.directory not in due.directories:
            due.directories.append(self.directory)
        self._segments = (*self._segments, new)
        self._active = new
        self._is_changed = True

    # Flushing

    def flush_also(self, path: str, *directories: str) -> None:
        """A file beside the log that is to be on disk with it, and directories that name it."""
        self._unflushed.paths.append(path)
        self._unflushed.directories += [self.directory, *directories]

    def begin_flush(self) -> FlushTicket:
        """A ticket for all that was written so far. One at a time: the caller finishes it before it takes another."""
        is_behind = self.end_position.offset > self.flushed_position.offset
        active = self._active.file() if is_behind else None
        due, self._unflushed = self._unflushed, Unflushed()
        return FlushTicket(
            directory=self.directory,
            position=self.end_position,
            generation=self.generation,
            active=active,
            due=due,
            obsolete_snapshots=obsolete_snapshots(self._snapshot_offsets, self._recovery_start()),
        )

    def finish_flush(self, ticket: FlushTicket) -> LogPosition:
        """The ticket ran without an error. Returns what is flushed now."""
        if ticket.is_partial:
            self._put_back(ticket.due)
        if ticket.generation != self.generation:
            for snapshot in ticket.due.snapshots:
                remove_if_there(snapshot_path(self.directory, snapshot.offset))
            return self.flushed_position
        if ticket.position.offset > self.flushed_position.offset:
            self.flushed_position = ticket.position
        if not ticket.is_partial:
            self.recovery_point = max(self.recovery_point, ticket.position.offset)
            self._snapshot_offsets = sorted(
                {*self._snapshot_offsets, *(snapshot.offset for snapshot in ticket.due.snapshots)}
                - set(ticket.obsolete_snapshots)
            )
        return self.flushed_position

    def defer_flush(self, ticket: FlushTicket) -> None:
        """The ticket could not be carried out, and nothing of it counts: all of it is due again."""
        due, later = ticket.due, self._unflushed
        later.files = due.files + later.files
        later.paths = due.paths + later.paths
        later.directories = due.directories + later.directories
        self._put_back(due)

    def _put_back(self, due: Unflushed) -> None:
        """Files and directories are flushed; what was to be written is still due, before what came since."""
        later = self._unflushed
        later.snapshots = due.snapshots + later.snapshots
        if later.epochs is None:
            later.epochs = due.epochs

    def _recovery_start(self) -> int:
        return self._segments[max(0, segment_at(self._segments, self.recovery_point))].base_offset

    # Shortening

    def move_log_start(self, offset: int) -> None:
        """Records below `offset` are gone for readers; whole segments below it go with the next retention."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self.leader_epochs.cut_before(offset):
                self._unflushed.epochs = self.leader_epochs.entries
                self._is_changed = True

    def plan_retention(self, high_watermark: int, now_ms: int) -> retention.RetentionPlan | None:
        """Blocking, thread-safe. What `retire` would take now; None when that is nothing."""
        end, segments = self.end_position, self._segments
        if self.is_swapping:
            return None
        with storage_errors():
            return segment_ages.plan_retention(
                segments, end, self.config, self.log_start_offset, high_watermark, now_ms
            )

    def retire(self, plan: retention.RetentionPlan, now_ms: int) -> RetiredSegments:
        """Carries the plan out, as far as it still holds: an active segment that grew since stays."""
        if self.is_swapping:
            return RetiredSegments(())
        if plan.takes_active and self.log_end_offset == plan.log_start_offset:
            self.roll(now_ms)
        following = [segment.base_offset for segment in self._segments[1:]]
        count = sum(base_offset <= plan.log_start_offset for base_offset in following)
        retired, self._segments = self._segments[:count], self._segments[count:]
        self._reader.forget()
        self.move_log_start(self._segments[0].base_offset)
        with storage_errors():
            for segment in retired:
                segment.mark_deleted()
        return RetiredSegments(retired)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Blocking. Everything from the batch that holds `offset` on goes.

        Nothing else may go on in this log, on the loop or in a thread: no flush, no swap, no reader. The checkpoint of
        the recovery point must not stay beyond the new end when the log grows again, or a start would trust what was
        never flushed; and whoever keeps a high watermark, cuts it.
        """
        if offset >= self.log_end_offset:
            return
        with self._shortening("truncation"):
            shorter = truncation.truncate(
                self.directory, self.config, self._segments, self._snapshot_offsets, offset, now_ms
            )
        end_offset = shorter.end_position.offset
        shorter.producers.transactions.take_ended(self.producers.transactions.ended_before(end_offset))
        self._become(shorter)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        if end_offset < self.flushed_position.offset:
            self.flushed_position = self.end_position
        self.recovery_point = min(self.recovery_point, end_offset)
        self.cleaning.cleaned_offset = min(self.cleaning.cleaned_offset, end_offset)
        self._unflushed.snapshots = [each for each in self._unflushed.snapshots if each.offset <= end_offset]
        self._unflushed.files.append(self._active.file())
        if self.leader_epochs.cut_after(end_offset):
            self._unflushed.epochs = self.leader_epochs.entries

    def start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """Blocking. All of the log goes, and an empty one begins at `offset`: what would come next, no leader has.

        What holds for `truncate_to` holds for this. Readers may begin at `log_start_offset`, if the first batch will
        begin before it.
        """
        with self._shortening("starting anew"):
            fresh = truncation.start_anew(
                self.directory, self.config, self._segments, self._snapshot_offsets, offset, now_ms
            )
        # What else is due stays so: the names of a partition that has only just been made.
        due = self._unflushed
        due.files, due.snapshots, due.epochs = [], [], None
        self._become(fresh)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.flushed_position = self.end_position
        self.recovery_point = offset
        self.cleaning.cleaned_offset = 0
        self.leader_epochs.restore(())

    @contextmanager
    def _shortening(self, what: str) -> Iterator[None]:
        assert not self._staged and not self.is_swapping
        try:
            yield
        except (OSError, CorruptSegment) as error:
            self.fail(f"{what} failed: {error}")
            raise storage_error(error) from error

    def _become(self, shorter: truncation.TruncatedLog) -> None:
        self._segments = shorter.segments
        self._active = self._segments[-1]
        self._active.is_active = True
        self.producers = shorter.producers
        self._snapshot_offsets = shorter.snapshot_offsets
        self.end_position = shorter.end_position
        self.log_end_offset = self.end_position.offset
        self.generation += 1
        self._reader.forget()
        self._last_abort_offset = aborted.no_abort_behind(self._segments, self.log_end_offset)
        self._unflushed.directories.append(self.directory)
        self._is_changed = True

    # Replacing: compaction's segments for those it read

    def begin_swap(self, old: tuple[Segment, ...], generation: int) -> bool:
        """False: the log is not as it was then. Until `end_swap` no segment leaves it in another way."""
        at = self._segments.index(old[0]) if old[0] in self._segments else 0
        is_as_it_was = self._segments[at : at + len(old)] == old and generation == self.generation
        self.is_swapping = is_as_it_was and not self.is_deleted and old[-1] is not self._active
        return self.is_swapping

    def swap(self, old: tuple[Segment, ...], new: Segment) -> None:
        """Readers that hold the old list go on with the old files."""
        at = self._segments.index(old[0])
        self._segments = (*self._segments[:at], new, *self._segments[at + len(old) :])
        self._reader.forget()

    def end_swap(self) -> None:
        self.is_swapping = False

    def close(self) -> None:
        """Blocking. Everything on disk, such that the next start need not read the log. OSError: it is not."""
        assert not self._staged
        active = self._active
        if self._is_changed and self._failure is None:
            active.finish()
            due = self._unflushed
            due.paths += active.index_paths()
            due.snapshots.append(DueSnapshot(self.log_end_offset, dict(self.producers.entries)))
            ticket = self.begin_flush()
            ticket.run()
            self.finish_flush(ticket)
            if ticket.is_partial:
                raise OSError(f"the disk is too full to close {self.directory}")
            self._is_changed = False
        for segment in self._segments:
            segment.close_files()

    def delete(self) -> None:
        """The partition is deleted: no more appends, descriptors go back. The files are the directory's concern."""
        self.is_deleted = True
        self.fail("it was deleted")
        for segment in self._segments:
            segment.close_files()
