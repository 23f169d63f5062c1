"""Threads read while the loop appends, rolls and deletes: what `wait=True` promises."""

from __future__ import annotations

import random
import threading

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, bytes_of, flush

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import read_header
from penstock.storage import descriptors
from penstock.storage.log import Log


class Readers:
    """Each reads where it likes until it is told to stop; what it finds must be right or gone."""

    def __init__(self, log: Log, count: int) -> None:
        self.log = log
        self.reads = 0
        self.wrong: list[object] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self._stop.is_set():
                self._read(rng)
        except Exception as error:
            self.wrong.append(error)

    def _read(self, rng: random.Random) -> None:
        upper = self.log.end_position
        offset = rng.randint(self.log.log_start_offset, upper.offset)
        try:
            span = self.log.read(offset, rng.choice([1, 5_000]), upper, at_least_one=True, wait=True)
            found = self.log.offset_for_timestamp(NOW_MS + offset, upper)
            self.log.offset_of_max_timestamp(upper)
            self.log.plan_retention(upper.offset, NOW_MS)
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return
        if span is not None:
            self.reads += 1
            header = read_header(bytes_of(span))
            if not header.base_offset <= offset <= header.last_offset:
                self.wrong.append((offset, header))
        # Every record carries its offset as time.
        is_there = offset < upper.offset and self.log.log_start_offset <= offset
        if is_there and (span is None or found is None or found.offset != offset):
            self.wrong.append((offset, span, found))


def test_given_threads_that_read_when_the_log_is_written_and_deleted_then_each_finds_its_batch_or_nothing(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors.DESCRIPTORS, "capacity", 5)
    log = new_log(segment_bytes=4_000, index_interval_bytes=200, retention_bytes=30_000)
    with Readers(log, 3) as readers:
        number = 0
        while (number < 2_000 or readers.reads < 500) and not readers.wrong:
            first = NOW_MS + log.log_end_offset
            append(log, a_batch(timestamps=range(first, first + 1 + number % 3), value=bytes(number % 200)))
            number += 1
            if number % 20 == 0:
                flush(log)
                plan = log.plan_retention(log.log_end_offset, NOW_MS)
                if plan is not None:
                    log.retire(plan, NOW_MS).remove()

    assert not readers.wrong
    assert log.log_start_offset > 0
