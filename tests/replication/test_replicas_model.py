"""Traps A1, A2, A4: replicas on real logs that copy, crash, restart and are elected, while answers are late or lost.

What the leader's high watermark has passed once is in the log of every later leader, byte by byte.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.compaction_kit import MEMORY
from tests.storage.kit import NOW_MS, a_batch, append, config, flush
from tests.storage.replication_kit import fetched
from tests.storage.transaction_kit import batches_of

from penstock.core.errors import ErrorCode
from penstock.core.ids import BrokerId
from penstock.replication.follower import FetchAnswer, Follower, NextFetch, StartAnew, Take, Truncate
from penstock.replication.isr import Isr, Proposal
from penstock.replication.truncation import diverging_epoch
from penstock.storage.log import Log

SETTINGS = config(segment_bytes=400, index_interval_bytes=100)
REPLICAS = tuple(BrokerId(each) for each in (1, 2, 3))
WHO = st.sampled_from(REPLICAS)
LAG_MAX_MS = 5_000


@dataclass(frozen=True)
class InFlight:
    replica: BrokerId
    asked: NextFetch
    answer: FetchAnswer
    records: bytes


class ThreeReplicas(RuleBasedStateMachine):
    flushes = False

    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="replicas-", dir=MEMORY)
        self.logs = {each: Log.open(f"{self.data}/{each}-0", SETTINGS, now_ms=NOW_MS) for each in REPLICAS}
        self.now_ms = 0
        self.written = 0
        self.answers: list[InFlight] = []
        self.proposals: list[Proposal] = []
        self.checkpointed = dict.fromkeys(REPLICAS, 0)
        self.high_watermarks = dict.fromkeys(REPLICAS, 0)
        # The store.
        self.members = frozenset(REPLICAS)
        self.partition_epoch = 0
        self.leader_epoch = 0
        # Batches that were below a leader's high watermark, by their offsets.
        self.committed: dict[int, bytes] = {}
        self.begin(REPLICAS[0])

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    def begin(self, leader: BrokerId) -> None:
        self.leader = leader
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.proposals.clear()  # of an earlier leader epoch: refused
        self.isr = Isr(
            self.members,
            self.high_watermarks[leader],
            leader=leader,
            replicas=REPLICAS,
            partition_epoch=self.partition_epoch,
            start_offset=self.logs[leader].log_end_offset,
            lag_max_ms=LAG_MAX_MS,
            serving=dict.fromkeys(REPLICAS, 1),
            now_ms=self.now_ms,
        )
        self.followers = {
            each: Follower(self.logs[each], self.leader_epoch, self.high_watermarks[each])
            for each in REPLICAS
            if each != leader
        }
        self.held()

    @property
    def log(self) -> Log:
        return self.logs[self.leader]

    # The leader

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            append(self.log, a_batch(value=b"%d" % self.written), epoch=self.leader_epoch)
        self.held()

    def held(self) -> None:
        if self.flushes:
            flush(self.log)
        self.isr.held(self.leader, self.log.flushed_offset if self.flushes else self.log.log_end_offset)
        self.note()

    def note(self) -> None:
        self.high_watermarks[self.leader] = self.isr.high_watermark
        for header, batch in batches_of(self.log):
            if header.last_offset < self.isr.high_watermark:
                assert self.committed.setdefault(header.base_offset, batch) == batch

    def propose(self) -> None:
        proposal = self.isr.propose(self.log.log_end_offset, self.now_ms)
        if proposal is not None:
            self.proposals.append(proposal)

    @precondition(lambda self: self.proposals)
    @rule(is_told=st.booleans())
    def proposal_arrives(self, is_told: bool) -> None:
        proposal = self.proposals.pop(0)
        if proposal.partition_epoch == self.partition_epoch:
            self.members = frozenset(each.broker_id for each in proposal.members)
            self.partition_epoch += 1
        if is_told:
            self.isr.committed(self.members, self.partition_epoch, self.log.log_end_offset, self.now_ms)
        elif self.isr.pending is not None:
            self.isr.refused(self.isr.pending, ErrorCode.REQUEST_TIMED_OUT, self.log.log_end_offset, self.now_ms)
        self.note()

    def serve(self, replica: BrokerId, asked: NextFetch) -> tuple[FetchAnswer, bytes]:
        log, isr = self.log, self.isr
        error = ErrorCode.NONE
        if asked.current_leader_epoch != self.leader_epoch:
            return FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, -1, -1), b""
        if asked.fetch_offset < log.log_start_offset:
            return FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE, isr.high_watermark, log.log_start_offset), b""
        diverging = diverging_epoch(
            log.leader_epochs,
            log.log_end_offset,
            last_fetched_epoch=asked.last_fetched_epoch,
            fetch_offset=asked.fetch_offset,
        )
        if diverging is None:
            held = asked.flushed_offset if self.flushes else asked.fetch_offset
            isr.fetched(replica, 1, asked.fetch_offset, held, log.log_end_offset, self.now_ms)
            self.note()
            self.propose()
        records = fetched(log, asked.fetch_offset, 250) if diverging is None else b""
        return FetchAnswer(error, isr.high_watermark, log.log_start_offset, diverging), records

    # Followers

    @rule(replica=WHO, is_late=st.booleans())
    def ask(self, replica: BrokerId, is_late: bool) -> None:
        if replica == self.leader:
            return
        self.now_ms += 10
        asked = self.followers[replica].next_fetch(self.now_ms)
        if asked is None:
            return
        self.answers.append(InFlight(replica, asked, *self.serve(replica, asked)))
        if not is_late:
            self.take(self.answers.pop())

    @rule(asking=st.lists(WHO, min_size=1, max_size=6))
    def copy(self, asking: list[BrokerId]) -> None:
        for replica in asking:
            self.ask(replica, False)

    @rule(count=st.integers(1, 2), asking=st.lists(WHO, min_size=2, max_size=6))
    def append_and_copy(self, count: int, asking: list[BrokerId]) -> None:
        self.append(count)
        self.copy(asking)

    @precondition(lambda self: self.answers)
    @rule(at=st.integers(0, 9))
    def answer_arrives(self, at: int) -> None:
        self.take(self.answers.pop(at % len(self.answers)))

    @precondition(lambda self: self.answers)
    @rule()
    def answers_are_lost(self) -> None:
        for lost in self.answers:
            if lost.replica != self.leader:
                self.followers[lost.replica].unanswered("the connection ended", self.now_ms)
        self.answers.clear()

    def take(self, each: InFlight) -> None:
        if each.replica == self.leader:
            return
        follower, log = self.followers[each.replica], self.logs[each.replica]
        step = follower.answered(each.asked, each.answer, self.now_ms)
        if isinstance(step, Truncate):
            log.truncate_to(step.offset, NOW_MS)
            follower.shortened()
        elif isinstance(step, StartAnew):
            log.start_at(step.offset, NOW_MS, step.log_start_offset)
            follower.shortened()
        elif isinstance(step, Take):
            log.append_replicated(memoryview(each.records), each.asked.current_leader_epoch, NOW_MS)
            log.move_log_start(follower.appended(each.answer))
        self.checkpointed[each.replica] = min(self.checkpointed[each.replica], log.recovery_point)
        self.high_watermarks[each.replica] = follower.high_watermark

    @rule(replica=WHO)
    def flush(self, replica: BrokerId) -> None:
        flush(self.logs[replica])

    @rule(ms=st.sampled_from([100, 3_000, 6_000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.isr.tick(self.log.log_end_offset, self.now_ms)
        self.propose()
        self.note()

    # Faults

    @rule(share=st.integers(0, 60))
    def delete_records(self, share: int) -> None:
        self.log.move_log_start(self.isr.high_watermark * share // 100)

    @rule(replica=WHO, share=st.integers(0, 100))
    def crash(self, replica: BrokerId, share: int) -> None:
        """A process dies. What it knew of the high watermark is as old as its last checkpoint; a topic that flushes
        has lost what was not flushed.
        """
        log = self.logs[replica]
        if self.flushes:
            last, flushed = log.segments[-1], log.flushed_position
            with open(last.path, "r+b") as file:
                file.truncate(flushed.position if flushed.segment_base_offset == last.base_offset else 0)
        self.logs[replica] = Log.open(
            log.directory,
            SETTINGS,
            recovery_point=self.checkpointed[replica],
            log_start_offset=log.log_start_offset,
            clean=False,
            now_ms=NOW_MS,
        )
        # A start flushes what it finds before it tells anybody of it; all of that was on the disk already.
        flush(self.logs[replica])
        self.high_watermarks[replica] = self.high_watermarks[replica] * share // 100
        self.answers = [each for each in self.answers if each.replica != replica]
        if replica == self.leader:
            self.elect(replica)
        else:
            self.followers[replica] = Follower(self.logs[replica], self.leader_epoch, self.high_watermarks[replica])

    @rule(replica=WHO)
    def elect(self, replica: BrokerId) -> None:
        """From the in-sync set of the store, and only from it."""
        self.begin(replica if replica in self.members else min(self.members))

    # What must hold

    @invariant()
    def the_leader_has_everything_that_was_committed(self) -> None:
        start, of_leader = self.log.log_start_offset, {header.base_offset: b for header, b in batches_of(self.log)}
        for offset, batch in self.committed.items():
            if offset >= start:
                assert of_leader.get(offset) == batch

    @invariant()
    def followers_show_only_what_was_committed(self) -> None:
        for replica, follower in self.followers.items():
            log = self.logs[replica]
            assert follower.high_watermark <= log.log_end_offset
            for header, batch in batches_of(log):
                if log.log_start_offset <= header.base_offset < follower.high_watermark:
                    assert self.committed[header.base_offset] == batch


class ThreeReplicasThatFlush(ThreeReplicas):
    flushes = True


TestThreeReplicas = ThreeReplicas.TestCase
TestThreeReplicas.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestThreeReplicasThatFlush = ThreeReplicasThatFlush.TestCase
TestThreeReplicasThatFlush.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
