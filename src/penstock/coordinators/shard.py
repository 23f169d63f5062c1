"""Drives a coordinator's machine over one partition: load it by replay, decide, append, answer when it is committed.

What must stay true:

- One command at a time, on the event loop. The records of a decision are applied at once, so the next command sees
  them; but no answer leaves before everything decided before it is committed.
- One append is under way at a time. What is decided meanwhile waits for it and then goes together, as one batch: under
  load many decisions share a batch and a flush, and a lone one waits for nobody; unless it says that it may linger, in
  which case the next one takes it along, if it comes soon.
- Records of a transaction, and the markers that end one, are where the log has the last word: it knows which producers
  are fenced. They go to it at once, behind all that was decided before them, and the machine hears of them only when
  they are staged; so a refused one changes nothing. They share no batch with anything.
- What a decision has for an effect is done when its records are committed, before its answers leave. An append that
  fails drops both.
- When an append fails, what the machine believes is not what the log says: the machine is thrown away, everybody who
  waits is told to look for the coordinator again, and a new machine is loaded by replay.
- Until the machine is loaded nothing is answered but COORDINATOR_LOAD_IN_PROGRESS: "no offset committed" would send a
  consumer back to the beginning.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from penstock.coordinators.decision import NOBODY, Caller, Decision, LogRecord, Now, Producer, Ticket
from penstock.coordinators.machine import Machine, TransactionalMachine
from penstock.coordinators.replay import replay
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metrics import CoordinatorMetrics
from penstock.protocol.batch import read_header
from penstock.protocol.control import EndMarker
from penstock.protocol.records import Record, build_batch
from penstock.protocol.schema import Struct
from penstock.replication.appends import ACKS_ALL
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

log = logging.getLogger(__name__)

RETRY_LOAD_S = 1.0
LINGER_S = 0.005
# What a batch adds to its records, and a record to its key and value, at most.
BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 32

_NOT_COORDINATOR = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
# What is wrong with whoever asks, or said by the coordinator itself: told as it is.
_TOLD_AS_IT_IS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
)

M = TypeVar("M", bound=Machine)
Work = Callable[[M, Any, Caller, Now, Decision], None]
Done = Callable[[Struct | BrokerError], None]


def _no_effect(effect: Any) -> None:
    raise AssertionError(f"nobody is there to do {effect!r}")


class Shard(Generic[M]):
    def __init__(
        self,
        partition: Partition,
        new_machine: Callable[[], M],
        *,
        clock: Clock,
        files: Files,
        tasks: TaskGroup,
        metrics: CoordinatorMetrics,
        effect: Callable[[Any], None] = _no_effect,
    ) -> None:
        """`effect` does what decisions have for effects, on the loop."""
        self.partition = partition
        self.machine: M | None = None
        """None while it is being loaded."""

        self._new_machine = new_machine
        self._clock = clock
        self._files = files
        self._tasks = tasks
        self._metrics = metrics
        self._effect = effect
        self._loop = asyncio.get_running_loop()
        self._closed: BrokerError | None = None
        self._waiting: dict[Ticket, Callable[[Any], None]] = {}
        self._last_ticket = NOBODY
        # Decisions that are on their way to being committed, in order, a list for each batch; and those that wait.
        self._under_way: deque[list[Decision]] = deque()
        self._decided: list[Decision] = []
        self._incarnation = 0
        self._is_lingering = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        tasks.spawn(self._load(), name=f"load-{partition.topic_partition}")

    # Asking

    async def ask(
        self,
        work: Work[M],
        request: object,
        *,
        api_version: int,
        client_id: str,
        client_host: str,
    ) -> Any:
        """Has the machine decide about `request`, and waits for its answer."""
        outcome: asyncio.Future[Struct | BrokerError] = self._loop.create_future()

        def done(answer: Struct | BrokerError) -> None:
            if not outcome.cancelled():
                outcome.set_result(answer)

        ticket = self.submit(work, request, done, api_version, client_id, client_host)
        try:
            answer = await outcome
        finally:
            self._waiting.pop(ticket, None)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    def submit(
        self, work: Work[M], request: object, done: Done, api_version: int, client_id: str, client_host: str
    ) -> Ticket:
        """`ask` without a task: calls `done` with the answer, or with what went wrong, now or later, once."""
        machine = self._ready()
        ticket = self._last_ticket = self._last_ticket + 1
        caller = Caller(ticket, api_version, client_id, client_host, _new_id)
        decision = Decision()
        work(machine, request, caller, self._now(), decision)
        self._waiting[ticket] = done
        self._carry_out(machine, decision)
        return ticket

    def tell(self, work: Callable[[M, Now, Decision], None]) -> None:
        """For what nobody asked: a topic was deleted, say. Not while loading: a loaded machine looks by itself."""
        if self.machine is not None and self._closed is None:
            decision = Decision()
            work(self.machine, self._now(), decision)
            self._carry_out(self.machine, decision)

    def write_marker(
        self, marker: EndMarker, transaction_version: int, done: Callable[[BrokerError | None], None]
    ) -> None:
        """Ends a producer's transaction in this partition. Calls `done`, now or later, once: with None when the marker
        is committed, or with what went wrong.
        """
        try:
            self._append_decided()
            machine = self._ready()
            assert isinstance(machine, TransactionalMachine)
            now_ms = self._clock.now_ms()
            ticket = self._last_ticket = self._last_ticket + 1
            self.partition.append_marker(marker, transaction_version, now_ms, self, self._incarnation)
            self._under_way.append([Decision(answers=[(ticket, None)])])
        except BrokerError as error:
            done(_told(error))
            return
        self._waiting[ticket] = done
        machine.transaction_ended(marker.producer_id, committed=marker.is_commit)

    def _ready(self) -> M:
        if self._closed is not None:
            raise self._closed.anew()
        if self.machine is None:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition.topic_partition} is loading")
        return self.machine

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())

    # Carrying out

    def _carry_out(self, machine: M, decision: Decision) -> None:
        if not decision.records:
            self._answer_in_turn(decision)
        elif decision.producer is not None:
            self._carry_out_in_transaction(machine, decision, decision.producer)
        else:
            for record in decision.records:
                machine.apply(record)
            self._decided.append(decision)
            if decision.may_linger:
                self._append_soon()
            elif not self._under_way:
                self._append_decided()
        self._wake_when_due()

    def _answer_in_turn(self, decision: Decision) -> None:
        if self._decided:
            self._decided[-1].effects += decision.effects
            self._decided[-1].answers += decision.answers
            if not self._under_way:
                self._append_decided()
        elif self._under_way:
            self._under_way[-1].append(decision)
        else:
            self._answer(decision)

    def _carry_out_in_transaction(self, machine: M, decision: Decision, producer: Producer) -> None:
        assert isinstance(machine, TransactionalMachine)
        self._append_decided()
        if self.machine is not machine:
            return  # lost with what was decided before; whoever waits has heard
        now_ms = self._clock.now_ms()
        try:
            for records, decisions in _batched([decision], self.partition.max_batch_bytes):
                self._stage(_batch(records, now_ms, producer), now_ms, decisions)
                for record in records:
                    machine.apply_pending(record, producer.producer_id)
        except BrokerError as error:
            self._refuse(decision, _told(error))

    def _append_soon(self) -> None:
        if not self._is_lingering:
            self._is_lingering = True
            self._loop.call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        self._is_lingering = False
        if self._decided and not self._under_way:
            self._append_decided()

    def _append_decided(self) -> None:
        """What was decided, in as few batches as the partition takes; each decision as one, unless it is too large."""
        now_ms = self._clock.now_ms()
        decided, self._decided = self._decided, []
        try:
            for records, decisions in _batched(decided, self.partition.max_batch_bytes):
                self._stage(_batch(records, now_ms), now_ms, decisions)
        except BrokerError as error:
            self._lose(error)

    def _stage(self, batch: bytearray, now_ms: int, decisions: list[Decision]) -> None:
        """`decisions` are answered when the batch is committed. Raises BrokerError when the log does not take it."""
        view = memoryview(batch)
        self.partition.append(view, read_header(view, 0), ACKS_ALL, now_ms, math.inf, self, self._incarnation)
        self._under_way.append(decisions)

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        if slot != self._incarnation:
            return
        for decision in self._under_way.popleft():
            self._answer(decision)
        if self._decided and not self._under_way:
            self._append_decided()

    def failed(self, slot: int, error: BrokerError) -> None:
        if slot == self._incarnation:
            self._lose(error)

    def _answer(self, decision: Decision) -> None:
        for effect in decision.effects:
            self._effect(effect)
        for ticket, answer in decision.answers:
            done = self._waiting.pop(ticket, None)
            if done is not None:
                done(answer)

    def _refuse(self, decision: Decision, error: BrokerError) -> None:
        for ticket, _ in decision.answers:
            done = self._waiting.pop(ticket, None)
            if done is not None:
                done(error)

    def _wake_when_due(self) -> None:
        """A timer that comes too early is left alone: it looks again then."""
        deadline_ms = None if self.machine is None else self.machine.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
        self._timer, self._timer_ms = self._loop.call_later(delay_s, self._due), deadline_ms

    def _due(self) -> None:
        """One deadline a turn: each is decided on after what the one before it decided was applied."""
        self._timer = None
        self.tell(lambda machine, now, decision: machine.due(now, decision))

    # Loading and losing

    async def _load(self) -> None:
        incarnation = self._incarnation
        while self._closed is None and incarnation == self._incarnation:
            machine = self._new_machine()
            try:
                await replay(self.partition, machine, self._files, self._metrics)
            except (BrokerError, OSError) as error:
                if incarnation != self._incarnation:
                    return  # nothing is wrong: the partition went elsewhere meanwhile
                log.log(_level(error), "coordinator not loaded, trying again", extra=self._described(error))
                await asyncio.sleep(RETRY_LOAD_S)
                continue
            if self._closed is None and incarnation == self._incarnation:
                self._become(machine)
            return

    def _become(self, machine: M) -> None:
        self.machine = machine
        decision = Decision()
        machine.loaded(self._now(), decision)
        self._carry_out(machine, decision)

    def _lose(self, error: BrokerError) -> None:
        """The log did not take what the machine had decided."""
        log.log(_level(error), "coordinator lost an append, loading again", extra=self._described(error))
        self._forget(_told(error))
        if self._closed is None:
            self._tasks.spawn(self._reload(), name=f"load-{self.partition.topic_partition}")

    async def _reload(self) -> None:
        await asyncio.sleep(RETRY_LOAD_S)
        await self._load()

    def _forget(self, error: BrokerError) -> None:
        self.machine = None
        self._incarnation += 1
        self._under_way.clear()
        self._decided.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(error)

    def close(self) -> None:
        """This broker no longer has the partition, or it stops: whoever waits is to look elsewhere."""
        self._closed = BrokerError(ErrorCode.NOT_COORDINATOR, f"{self.partition.topic_partition} is not here any more")
        self._forget(self._closed)

    def _described(self, error: BrokerError | OSError) -> dict[str, str]:
        return {"partition": str(self.partition.topic_partition), "reason": str(error)}


def _new_id() -> str:
    return str(uuid.uuid4())


def _level(error: BrokerError | OSError) -> int:
    """Leaders and replicas come and go; a log that gives or takes nothing is another matter."""
    passes = isinstance(error, BrokerError) and error.code is not ErrorCode.KAFKA_STORAGE_ERROR
    return logging.WARNING if passes else logging.ERROR


def _told(error: BrokerError) -> BrokerError:
    """What a client makes the right thing of: to look for the coordinator again, at once or after a while."""
    if error.code in _TOLD_AS_IT_IS:
        return error
    is_elsewhere = error.code in _NOT_COORDINATOR
    code = ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return BrokerError(code, error.message)


def _batch(records: list[LogRecord], now_ms: int, producer: Producer | None = None) -> bytearray:
    """Without sequence numbers, also of a producer: only this coordinator writes here, and it repeats nothing."""
    entries = [Record(each.key, each.value, timestamp=now_ms) for each in records]
    if producer is None:
        return build_batch(entries)
    return build_batch(
        entries,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        is_transactional=True,
    )


def _batched(decided: list[Decision], max_bytes: int) -> Iterator[tuple[list[LogRecord], list[Decision]]]:
    """Records that go together, and the decisions to answer once they are committed."""
    records = [record for decision in decided for record in decision.records]
    if sum(map(_size, records)) <= max_bytes - BATCH_OVERHEAD_BYTES:  # as nearly always
        if records:
            yield records, decided
        return
    records = []
    decisions: list[Decision] = []
    size = BATCH_OVERHEAD_BYTES
    for decision in decided:
        needed = sum(map(_size, decision.records))
        if records and size + needed > max_bytes:
            yield records, decisions
            records, decisions, size = [], [], BATCH_OVERHEAD_BYTES
        for record in decision.records:
            if records and size + _size(record) > max_bytes:
                yield records, []
                records, size = [], BATCH_OVERHEAD_BYTES
            records.append(record)
            size += _size(record)
        decisions.append(decision)
    if records:
        yield records, decisions


def _size(record: LogRecord) -> int:
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES
