"""A log that is loaded with what is superseded passed over gives the same as one that is applied record by record."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinators.counters import Ledger
from tests.replication.test_partition import a_partition

from penstock.coordinators import replay
from penstock.coordinators.decision import LogRecord
from penstock.core.metrics import CoordinatorMetrics
from penstock.protocol.batch import place
from penstock.protocol.compression import Codec
from penstock.protocol.control import EndMarker, build_end_marker
from penstock.protocol.records import Record, build_batch
from penstock.runtime.files import Files

KEYS = st.sampled_from([b"a", b"b", b"c"])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9)), min_size=1, max_size=3)
PRODUCERS = st.integers(1, 2)
PLAIN = st.tuples(st.just("plain"), RECORDS, st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
PENDING = st.tuples(st.just("pending"), RECORDS, PRODUCERS)
ENDED = st.tuples(st.just("ended"), st.booleans(), PRODUCERS)


def state(ledger: Ledger) -> tuple[object, object]:
    return ledger.counts, {producer: records for producer, records in ledger.pending.items() if records}


@settings(max_examples=150)
@given(log=st.lists(PLAIN | PENDING | ENDED, max_size=25), most_keys=st.sampled_from([0, 1, 1 << 20]))
def test_given_any_log_when_it_is_loaded_then_the_machine_is_as_if_every_record_had_been_applied(
    log: list[tuple], most_keys: int
) -> None:
    asyncio.run(_load_and_compare(log, most_keys))


async def _load_and_compare(log: list[tuple], most_keys: int) -> None:
    expected, loaded = Ledger(), Ledger()
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "MOST_KEYS", most_keys)
        patch.setattr(replay, "LEAST_BYTES_A_KEY", 1)
        patch.setattr(replay, "CHUNK_BYTES", 300)
        files = Files(1, "test")
        partition = a_partition(Path(directory) / "counters-0", files)
        for kind, what, how in log:
            batch = bytearray(_batch(kind, what, how))
            place(memoryview(batch), 0, partition.log.log_end_offset, 0)
            partition.log.append_replicated(memoryview(batch), 0, 0)
            _apply(expected, kind, what, how)
        partition.high_watermark = partition.log.end_position

        await replay.replay(partition, loaded, files, CoordinatorMetrics())

        files.close()
    assert state(loaded) == state(expected)


def _batch(kind: str, what, how) -> bytes | bytearray:  # type: ignore[no-untyped-def]
    if kind == "ended":
        return build_end_marker(EndMarker(how, 0, what, 0), 1)
    records = [Record(key, None if value is None else b"%d" % value, (), 1) for key, value in what]
    if kind == "plain":
        return build_batch(records, codec=how)
    return build_batch(records, is_transactional=True, producer_id=how, producer_epoch=0)


def _apply(told: Ledger, kind: str, what, how) -> None:  # type: ignore[no-untyped-def]
    if kind == "ended":
        told.transaction_ended(how, committed=what)
        return
    for key, value in what:
        record = LogRecord(key, None if value is None else b"%d" % value)
        if kind == "plain":
            told.apply(record)
        else:
            told.apply_pending(record, how)
