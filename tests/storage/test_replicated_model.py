"""A follower's log beside its leader's: any history, copied in any pieces, with crashes and truncations in between."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.storage.compaction_kit import COMPACTED, MEMORY, clean, keyed_batch
from tests.storage.kit import NOW_MS, SMALL, file_size_limit, flush, headers, stage
from tests.storage.replication_kit import State, copy, state_of
from tests.storage.transaction_kit import a_marker, batches_of, committed, txn_batch

from penstock.core.errors import BrokerError
from penstock.protocol.batch import BatchHeader, read_header, split
from penstock.protocol.control import read_end_marker
from penstock.replication.truncation import diverging_epoch, truncation_offset
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.log import AbortedTransaction, Log

PRODUCERS = (3, 4, 5)
KINDS = ("data", "data", "plain", "numbered", "commit", "abort", "abort+")
STEPS = st.lists(st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(KINDS)), min_size=1, max_size=6)


@dataclasses.dataclass(frozen=True)
class Producer:
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Transaction:
    producer_id: int
    first_offset: int
    # Of the marker; -1 while there is none.
    last_offset: int = -1
    is_aborted: bool = False


def transactions_of(batches: list[tuple[BatchHeader, bytes]], end_offset: int) -> list[Transaction]:
    """By their bytes, and nothing else."""
    found: list[Transaction] = []
    still_open: dict[int, Transaction] = {}
    for header, batch in batches:
        if header.base_offset >= end_offset:
            break
        marker = read_end_marker(batch) if header.is_control else None
        if marker is None and header.is_transactional:
            still_open.setdefault(header.producer_id, Transaction(header.producer_id, header.base_offset))
        elif marker is not None and header.producer_id in still_open:
            ended = still_open.pop(header.producer_id)
            found.append(dataclasses.replace(ended, last_offset=header.base_offset, is_aborted=not marker.is_commit))
    return found + list(still_open.values())


class FollowerBesideLeader(RuleBasedStateMachine):
    config = SMALL

    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="replicated-", dir=MEMORY)
        of_leader = dataclasses.replace(self.config, segment_bytes=900, index_interval_bytes=200)
        of_follower = dataclasses.replace(self.config, segment_bytes=500, index_interval_bytes=100)
        self.leader = Log.open(f"{self.data}/leader-0", of_leader, now_ms=NOW_MS)
        self.follower = Log.open(f"{self.data}/follower-0", of_follower, now_ms=NOW_MS)
        self.leader_epoch = 0
        self.checkpointed = 0
        self.on_disk = 0
        # The producers as they were when the leader's log ended there, and what the log meant.
        self.producers_at: dict[int, dict[int, Producer]] = {0: {}}
        # All that the leader wrote, whatever became of it.
        self.history: list[tuple[BatchHeader, bytes]] = []
        self.states: dict[int, State] = {0: state_of(self.leader)}
        self.high_watermark = 0
        # All batches that were ever in the leader's log, by their bytes.
        self.written: set[bytes] = set()

    @property
    def end(self) -> int:
        return self.follower.log_end_offset

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    # The leader

    def stage(self, producer_id: int, kind: str) -> None:
        producers = self.producers_at[self.leader.log_end_offset]
        producer = producers.get(producer_id, Producer())
        epoch, sequence, is_open = dataclasses.astuple(producer)
        keys = [b"%d" % (producer_id + at) for at in range(1 + (producer_id + self.leader.log_end_offset) % 3)]
        if kind == "plain":
            batch = keyed_batch([(key, b"plain") for key in keys])
        elif kind == "numbered" and not is_open:
            batch = keyed_batch([(key, b"numbered") for key in keys], producer=(producer_id, epoch, sequence))
            producer = Producer(epoch, sequence + len(keys))
        elif kind in ("data", "numbered"):
            batch = txn_batch((producer_id, epoch, sequence), len(keys), keys=keys)
            producer = Producer(epoch, sequence + len(keys), is_open=True)
        else:
            producer = Producer(epoch + 1) if kind == "abort+" else Producer(epoch, sequence)
            batch = a_marker(producer_id, producer.epoch, commit=kind == "commit")
        stage(self.leader, batch, epoch=self.leader_epoch)
        self.history.append((read_header(batch), bytes(batch)))
        self.producers_at[self.leader.log_end_offset] = {**producers, producer_id: producer}
        self.states[self.leader.log_end_offset] = state_of(self.leader)

    @rule(steps=STEPS)
    def produce(self, steps: list[tuple[int, str]]) -> None:
        for producer_id, kind in steps:
            self.stage(producer_id, kind)
        self.leader.write_staged()

    @rule(by=st.integers(1, 2))
    def new_epoch(self, by: int) -> None:
        self.leader_epoch += by

    @rule()
    def leader_rolls(self) -> None:
        self.leader.roll(NOW_MS)

    # Copying

    def settle(self) -> None:
        """The follower cuts off what the leader has not."""
        leader, follower = self.leader, self.follower
        while True:
            diverging = diverging_epoch(
                leader.leader_epochs,
                leader.log_end_offset,
                last_fetched_epoch=follower.leader_epochs.latest_epoch,
                fetch_offset=self.end,
            )
            if diverging is None:
                return
            offset = truncation_offset(follower.leader_epochs, self.end, diverging)
            assert offset < self.end
            self.cut_follower(offset)

    def cut_follower(self, offset: int) -> None:
        self.follower.truncate_to(offset, NOW_MS)
        self.checkpointed = min(self.checkpointed, self.follower.recovery_point)
        self.on_disk = min(self.on_disk, self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    @rule(max_bytes=st.integers(1, 1500), fetches=st.integers(1, 4))
    def copy(self, max_bytes: int, fetches: int) -> None:
        for _ in range(fetches):
            copy(self.leader, self.follower, max_bytes)

    @rule(max_bytes=st.integers(1, 1500), room=st.integers(0, 700))
    def copy_to_a_full_disk(self, max_bytes: int, room: int) -> None:
        before, content = self.follower.end_position, state_of(self.follower)
        try:
            with file_size_limit(min(before.position, 200) + room):
                copy(self.leader, self.follower, max_bytes)
        except BrokerError:
            assert not self.follower.is_failed
            assert self.follower.end_position == before
            assert state_of(self.follower) == content

    @rule(share=st.integers(0, 100))
    def advance(self, share: int) -> None:
        self.high_watermark += max(0, (self.end - self.high_watermark) * share // 100)

    # The follower's own life

    @rule()
    def follower_rolls(self) -> None:
        self.follower.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        flush(self.follower)
        self.on_disk = self.end

    @rule()
    def checkpoint(self) -> None:
        self.checkpointed = self.follower.recovery_point

    @rule()
    def restart(self) -> None:
        self.follower.close()
        self.follower = Log.open(
            self.follower.directory,
            self.follower.config,
            log_start_offset=self.follower.log_start_offset,
            now_ms=NOW_MS,
        )
        assert self.follower.recovery_report is None
        self.checkpointed = self.high_watermark = self.on_disk = self.follower.recovery_point

    @rule(share=st.integers(0, 100))
    def crash(self, share: int) -> None:
        """What was not flushed is cut anywhere."""
        last = self.follower.segments[-1]
        with open(last.path, "r+b") as file:
            kept = sum(header.size for _, header in split(file.read()) if header.last_offset < self.on_disk)
            file.truncate(kept + (last.size - kept) * share // 100)

        self.follower = Log.open(
            self.follower.directory,
            self.follower.config,
            recovery_point=self.checkpointed,
            log_start_offset=self.follower.log_start_offset,
            clean=False,
            now_ms=NOW_MS,
        )

        assert self.end >= self.on_disk
        self.high_watermark = self.follower.flushed_offset

    @rule(share=st.integers(30, 100))
    def cut(self, share: int) -> None:
        self.cut_follower(self.end * share // 100)

    @invariant()
    def knows_the_epochs_of_its_batches(self) -> None:
        epochs = LeaderEpochs()
        for header in headers(self.follower):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
        assert self.follower.leader_epochs.entries == epochs.entries


class FollowerOfEverything(FollowerBesideLeader):
    @rule(share=st.integers(60, 100))
    def leader_is_replaced(self, share: int) -> None:
        """By one that has less, and writes on in a later epoch."""
        self.leader.truncate_to(self.leader.log_end_offset * share // 100, NOW_MS)
        self.leader_epoch += 1
        end_offset = self.leader.log_end_offset
        self.states = {at: state for at, state in self.states.items() if at <= end_offset}
        self.producers_at = {at: each for at, each in self.producers_at.items() if at <= end_offset}
        self.produce([(3, "plain")])
        self.settle()

    @invariant()
    def has_the_leaders_batches(self) -> None:
        of_leader = [batch for header, batch in batches_of(self.leader) if header.last_offset < self.end]
        assert [batch for _, batch in batches_of(self.follower)] == of_leader

    @invariant()
    def knows_what_the_leader_knew_there(self) -> None:
        assert state_of(self.follower) == self.states[self.end]

    @invariant()
    def has_the_leaders_stable_offset_and_aborted_transactions(self) -> None:
        transactions = transactions_of(batches_of(self.leader), self.end)
        unstable = [each.first_offset for each in transactions if not 0 <= each.last_offset < self.high_watermark]
        assert self.follower.first_unstable_offset(self.high_watermark) == min(unstable, default=None)
        aborted = [each for each in transactions if each.is_aborted]
        for offset in range(0, self.end, 2):
            expected = [
                AbortedTransaction(each.producer_id, each.first_offset)
                for each in sorted(aborted, key=lambda each: each.first_offset)
                if each.last_offset >= offset
            ]
            assert self.follower.aborted_transactions(offset, self.end) == expected
            assert self.follower.may_have_aborted(offset) or not expected


class FollowerOfCompacted(FollowerBesideLeader):
    config = COMPACTED

    @rule()
    def leader_is_cleaned(self) -> None:
        self.leader.roll(NOW_MS)
        unstable = self.leader.first_unstable_offset(self.leader.log_end_offset)
        clean(self.leader, upper_offset=self.leader.log_end_offset if unstable is None else unstable)
        self.written |= {batch for _, batch in batches_of(self.leader)}

    @invariant()
    def has_batches_that_the_leader_had(self) -> None:
        self.written |= {batch for _, batch in batches_of(self.leader)}
        of_follower = batches_of(self.follower)
        assert all(batch in self.written for _, batch in of_follower)
        assert all(one.last_offset < other.base_offset for (one, _), (other, _) in pairwise(of_follower))

    @invariant()
    def hides_what_was_aborted_and_nothing_else(self) -> None:
        of_follower = batches_of(self.follower)
        aborted = [each for each in transactions_of(self.history, self.end) if each.is_aborted]
        visible = [
            header.base_offset
            for header, _ in of_follower
            if not header.is_control
            and not any(
                header.is_transactional
                and each.producer_id == header.producer_id
                and each.first_offset <= header.base_offset < each.last_offset
                for each in aborted
            )
        ]
        assert committed(of_follower, self.follower.aborted_transactions(0, self.end), 0, self.end) == visible

    @invariant()
    def knows_what_is_open_once_it_has_everything(self) -> None:
        if self.end == self.leader.log_end_offset:
            assert self.follower.open_transactions() == self.leader.open_transactions()


TestFollowerOfEverything = FollowerOfEverything.TestCase
TestFollowerOfEverything.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFollowerOfCompacted = FollowerOfCompacted.TestCase
TestFollowerOfCompacted.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
