"""What readers of committed records are spared, held against a log of which everything is known."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.batch import BatchHeader, read_header
from penstock.protocol.records import Record, build_batch
from penstock.wire.transactions import AbortedTransactions

PRODUCERS = (1, 2, 3)


@dataclass
class Entry:
    header: BatchHeader
    outcome: bool | None = None  # of a transaction's batch or marker: whether it was committed


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], list[tuple[int, int, int]]]:
    """Batches and markers up to a last stable offset, and the aborted transactions: producer, first and last offset."""
    entries: list[Entry] = []
    began: dict[int, list[Entry]] = {}
    aborted: list[tuple[int, int, int]] = []
    offset = draw(st.integers(0, 5))

    def append(producer_id: int, count: int, *, transactional: bool, control: bool = False) -> Entry:
        nonlocal offset
        offset += draw(st.sampled_from((0, 0, 0, 1, 7)))  # compaction leaves gaps
        batch = build_batch(
            [Record(None, b"", (), 0)] * count,
            base_offset=offset,
            producer_id=producer_id,
            is_transactional=transactional,
            is_control=control,
        )
        entries.append(Entry(read_header(batch)))
        offset += count
        return entries[-1]

    def end(producer_id: int, is_commit: bool) -> None:
        marker = append(producer_id, 1, transactional=True, control=True)
        written = began.pop(producer_id)
        for each in (*written, marker):
            each.outcome = is_commit
        if not is_commit:
            aborted.append((producer_id, written[0].header.base_offset, marker.header.base_offset))

    steps = st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(("plain", "write", "write", "commit", "abort")))
    for producer_id, step in draw(st.lists(steps, max_size=30)):
        if step == "plain":
            append(producer_id, draw(st.integers(1, 3)), transactional=False)
        elif step == "write":
            began.setdefault(producer_id, []).append(append(producer_id, draw(st.integers(1, 3)), transactional=True))
        elif producer_id in began:
            end(producer_id, step == "commit")
    for producer_id in list(began):
        end(producer_id, draw(st.booleans()))
    return entries, aborted


@given(logs(), st.data())
def test_given_any_log_when_any_part_of_it_is_read_then_exactly_what_was_aborted_is_left_out(
    log: tuple[list[Entry], list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    entries, transactions = log
    first = data.draw(st.integers(0, len(entries)))
    part = entries[first : data.draw(st.integers(first, len(entries)))]
    # As brokers answer: those that reach into the part, however early they began; more than needed does no harm.
    reaching = [
        (producer_id, begin)
        for producer_id, begin, marker in transactions
        if part and begin <= part[-1].header.last_offset and marker >= part[0].header.base_offset
    ]
    aborted = AbortedTransactions(data.draw(st.permutations(reaching)))

    for entry in part:
        if entry.header.is_control:
            aborted.ended(entry.header, is_abort=entry.outcome is False)
        else:
            assert aborted.hides(entry.header) == (entry.outcome is False), entry
