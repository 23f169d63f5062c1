"""Traps A4, A5: whoever may be elected holds everything that is committed, whatever is delayed, lost or repeated.

The leader is the real machine. Around it are replicas that copy, crash and lose their disks, a network that holds
fetches back, and a store whose answers come late or never, while what was asked of it may still happen.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.replication.isr import Isr, Proposal

LEADER, OTHERS = BrokerId(1), (BrokerId(2), BrokerId(3))
ANY = st.integers(0, 5)


@dataclass(frozen=True)
class Fetch:
    replica: BrokerId
    broker_epoch: int
    held_offset: int


class Election(RuleBasedStateMachine):
    @initialize(
        committed=st.integers(0, 5),
        known=st.integers(0, 5),
        above=st.integers(0, 5),
        in_sync=st.sets(st.sampled_from(OTHERS)),
        behind=st.lists(st.integers(0, 10), min_size=2, max_size=2),
    )
    def elect(self, committed: int, known: int, above: int, in_sync: set[BrokerId], behind: list[int]) -> None:
        """Earlier leaders have committed more than this one may know."""
        self.end = committed + above
        self.committed_before = committed
        self.on_disk = {LEADER: self.end}
        for replica, offset in zip(OTHERS, behind, strict=True):
            self.on_disk[replica] = (
                max(committed, min(offset, self.end)) if replica in in_sync else offset % (self.end + 1)
            )
        self.members = frozenset({LEADER, *in_sync})
        self.partition_epoch = 1
        self.sessions = {LEADER: 1, **dict.fromkeys(OTHERS, 1)}
        self.now_ms = 0
        self.fetches: list[Fetch] = []
        self.proposals: list[Proposal] = []
        self.answers: list[tuple[Proposal, frozenset[BrokerId] | ErrorCode]] = []
        self.isr = Isr(
            self.members,
            min(known, committed),
            leader=LEADER,
            replicas=(LEADER, *OTHERS),
            partition_epoch=1,
            start_offset=self.end,
            min_isr=1,
            lag_max_ms=100,
            serving=dict(self.sessions),
            now_ms=0,
        )
        self.highest = self.isr.high_watermark

    # The leader and its replicas

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.end += count
        self.on_disk[LEADER] = self.end
        self.isr.held(LEADER, self.end)

    @rule(replica=st.sampled_from(OTHERS), lacks=st.sampled_from([0, 0, 0, 1, 4]), is_late=st.booleans())
    def copy(self, replica: BrokerId, lacks: int, is_late: bool) -> None:
        self.on_disk[replica] = max(self.on_disk[replica], self.end - lacks)
        self.fetches.append(Fetch(replica, self.sessions[replica], self.on_disk[replica]))
        if not is_late:
            self.fetch_arrives(len(self.fetches) - 1)

    @precondition(lambda self: self.fetches)
    @rule(at=ANY)
    def fetch_arrives(self, at: int) -> None:
        """Those of one process in their order, those of others whenever."""
        chosen = self.fetches[at % len(self.fetches)]
        fetch = next(
            each for each in self.fetches if (each.replica, each.broker_epoch) == (chosen.replica, chosen.broker_epoch)
        )
        self.fetches.remove(fetch)
        try:
            self.isr.fetched(
                fetch.replica, fetch.broker_epoch, fetch.held_offset, fetch.held_offset, self.end, self.now_ms
            )
        except BrokerError as error:
            assert error.code == ErrorCode.STALE_BROKER_EPOCH
        else:
            self.propose()

    @rule(replica=st.sampled_from(OTHERS))
    def replica_loses_its_disk(self, replica: BrokerId) -> None:
        """And registers anew, which takes it out of the in-sync set."""
        self.on_disk[replica] = 0
        self.sessions[replica] += 1
        self.leave(replica)

    @rule(replica=st.sampled_from(OTHERS))
    def leave(self, replica: BrokerId) -> None:
        if replica in self.members:
            self.members -= {replica}
            self.partition_epoch += 1

    @rule(ms=st.sampled_from([50, 150, 250]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.isr.tick(self.end, self.now_ms)
        self.propose()

    # The store

    def propose(self) -> None:
        proposal = self.isr.propose(self.end, self.now_ms)
        if proposal is not None:
            self.proposals.append(proposal)

    def is_acceptable(self, proposal: Proposal) -> bool:
        return proposal.partition_epoch == self.partition_epoch and all(
            each.broker_epoch in (-1, self.sessions[each.broker_id]) for each in proposal.members
        )

    @precondition(lambda self: self.proposals)
    @rule(at=ANY)
    def proposal_arrives(self, at: int) -> None:
        proposal = self.proposals.pop(at % len(self.proposals))
        if self.is_acceptable(proposal):
            self.members = frozenset(each.broker_id for each in proposal.members)
            self.partition_epoch += 1
            self.answers.append((proposal, self.members))
        elif proposal.partition_epoch != self.partition_epoch:
            self.answers.append((proposal, ErrorCode.INVALID_UPDATE_VERSION))
        else:
            self.answers.append((proposal, ErrorCode.INELIGIBLE_REPLICA))

    @precondition(lambda self: self.answers)
    @rule(at=ANY)
    def answer_arrives(self, at: int) -> None:
        proposal, outcome = self.answers.pop(at % len(self.answers))
        if isinstance(outcome, frozenset):
            self.isr.committed(outcome, proposal.partition_epoch + 1, self.end, self.now_ms)
        else:
            self.isr.refused(proposal, outcome, self.end, self.now_ms)

    @precondition(lambda self: self.isr.pending is not None)
    @rule()
    def answer_is_given_up(self) -> None:
        """The proposal may arrive all the same, and so may what was answered before."""
        assert self.isr.pending is not None
        self.isr.refused(self.isr.pending, ErrorCode.REQUEST_TIMED_OUT, self.end, self.now_ms)

    @rule()
    def image_arrives(self) -> None:
        self.isr.serving = dict(self.sessions)
        self.isr.committed(self.members, self.partition_epoch, self.end, self.now_ms)

    # What must hold

    @invariant()
    def everybody_who_may_be_elected_holds_everything_committed(self) -> None:
        committed = max(self.committed_before, self.isr.high_watermark)
        electable = set(self.members)
        for proposal in self.proposals:
            if self.is_acceptable(proposal):
                electable |= {each.broker_id for each in proposal.members}
        assert {each for each in electable if self.on_disk[each] < committed} == set()

    @invariant()
    def the_high_watermark_never_goes_back_and_is_in_the_log(self) -> None:
        assert self.highest <= self.isr.high_watermark <= self.end
        self.highest = self.isr.high_watermark

    def teardown(self) -> None:
        """When everybody copies and everything arrives, all are in sync and all is committed."""
        if not hasattr(self, "isr"):
            return
        self.proposals.clear()
        self.answers.clear()
        if self.isr.pending is not None:
            self.answer_is_given_up()
        for _ in range(4):
            self.now_ms += 1_000
            for replica in OTHERS:
                self.copy(replica, 0, False)
            while self.fetches:
                self.fetch_arrives(0)
            self.isr.held(LEADER, self.end)
            self.image_arrives()
            self.propose()
            while self.proposals:
                self.proposal_arrives(0)
                self.answer_arrives(0)
        assert self.isr.members == self.members == {LEADER, *OTHERS}
        assert self.isr.high_watermark == self.end


TestElection = Election.TestCase
TestElection.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
