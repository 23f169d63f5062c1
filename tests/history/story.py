"""Histories told by hand: who did what, in the order of the lines of a test."""

from __future__ import annotations

import itertools

from tests.history.checker import check
from tests.history.events import NO_OFFSET, AnyEvent, Ending, Isolation, Outcome, Position, WriteId
from tests.history.findings import Anomaly, Finding
from tests.history.reading import History
from tests.history.recording import Recorder

TOPIC = "t"
OTHER_TOPIC = "other"


class Story:
    """Time passes with every line."""

    def __init__(self) -> None:
        self.events: dict[str, list[AnyEvent]] = {}
        self._clock = itertools.count(1)

    def producer(self, name: str = "producer", *, is_idempotent: bool = True, group: str | None = None) -> Producer:
        return Producer(self._recorder(name, is_idempotent=is_idempotent, group=group, isolation="read_committed"))

    def consumer(
        self, name: str = "consumer", isolation: Isolation = "read_committed", group: str | None = None
    ) -> Consumer:
        return Consumer(self._recorder(name, is_idempotent=False, group=group, isolation=isolation))

    def _recorder(self, name: str, *, is_idempotent: bool, group: str | None, isolation: Isolation) -> Recorder:
        events = self.events[name] = []
        clock = self._clock.__next__
        return Recorder(name, events.append, clock, isolation=isolation, group=group, is_idempotent=is_idempotent)

    def findings(self, *compacted: str) -> list[Finding]:
        return check(History.of(self.events), compacted=compacted)

    def anomalies(self, *compacted: str) -> list[Anomaly]:
        return [finding.anomaly for finding in self.findings(*compacted)]


class Producer:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def write(
        self,
        offset: int = NO_OFFSET,
        outcome: Outcome = "ok",
        *,
        transaction: int | None = None,
        partition: int = 0,
        topic: str = TOPIC,
        key: str | None = None,
        source: Position | None = None,
    ) -> WriteId:
        line = self.recorder.writing(topic, partition, transaction=transaction, key=key, source=source)
        self.recorder.written(line, outcome, offset)
        return self.recorder.id_of(line)

    def end(self, transaction: int, ending: Ending, outcome: Outcome = "ok") -> None:
        self.recorder.ending(transaction, ending)
        self.recorder.ended(transaction, ending, outcome)


class Consumer:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def read(
        self,
        *records: tuple[int, WriteId],
        start: int | None = None,
        partition: int = 0,
        final: bool = False,
        topic: str = TOPIC,
    ) -> None:
        """Polls records; from `start` on in a new session; to the end of everything if it is final."""
        if final:
            start = start or 0
        if start is not None:
            self.recorder.positioned(self.recorder.now(), (topic, partition, start))
        self.recorder.polled(self.recorder.now(), [(topic, partition, *record) for record in records])
        if final:
            end = records[-1][0] + 1 if records else 0
            self.recorder.reached_end((topic, partition, end), is_final=True)

    def told(self, offset: int) -> None:
        """The position of its group."""
        self.recorder.positioned(self.recorder.now(), (TOPIC, 0, offset), is_committed=True)

    def commit(self, offset: int, outcome: Outcome = "ok") -> None:
        line = self.recorder.committing([(TOPIC, 0, offset)])
        self.recorder.committed(line, outcome)
