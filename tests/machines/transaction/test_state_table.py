"""Every status of a transaction, and every command that may come then: the answer, what is written, what is done.

Each row is also tried with a coordinator that has just been loaded from the log: what a producer is told does not
depend on who tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from tests.machines.transaction.dialogue import P0, P1, TIMEOUT_MS, V1, V2, Dialogue, Producer, begun

CONCURRENT, FENCED = "CONCURRENT_TRANSACTIONS", "PRODUCER_FENCED"
INVALID, UNKNOWN = "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING"

EXPIRY_MS = 8 * 24 * 60 * 60 * 1000


class Row(NamedTuple):
    status: str
    command: str
    answer: str
    written: list[str]
    effect: str = ""
    """"commit" or "abort" when markers are to be written."""
    epochs: int = 0
    """By how many the producer's epoch grows."""


# To get there, by clients of both kinds. Of the producer's epoch, the one before is what a retry comes with.


def _absent(talk: Dialogue, version: int) -> Producer:
    return Producer(7, 0)


def _empty(talk: Dialogue, version: int) -> Producer:
    return talk.init(expected=talk.init().producer).producer


def _ongoing(talk: Dialogue, version: int) -> Producer:
    talk.init()
    return begun(talk, P0, P1)


def _prepared(commit: bool) -> Callable[[Dialogue, int], Producer]:
    def prepare(talk: Dialogue, version: int) -> Producer:
        producer = _ongoing(talk, version)
        assert talk.end(producer, commit=commit, version=version).error == "ok"
        return talk.producer

    return prepare


def _ended(commit: bool) -> Callable[[Dialogue, int], Producer]:
    def complete(talk: Dialogue, version: int) -> Producer:
        producer = _prepared(commit)(talk, version)
        talk.write_markers()
        return producer

    return complete


STATUSES = {
    "-": _absent,
    "Empty": _empty,
    "Ongoing": _ongoing,
    "PrepareCommit": _prepared(commit=True),
    "PrepareAbort": _prepared(commit=False),
    "CompleteCommit": _ended(commit=True),
    "CompleteAbort": _ended(commit=False),
}


def _before(producer: Producer) -> Producer:
    return producer._replace(epoch=producer.epoch - 1)


def _after(producer: Producer) -> Producer:
    return producer._replace(epoch=producer.epoch + 1)


def _other(producer: Producer) -> Producer:
    return producer._replace(producer_id=producer.producer_id + 500)


def _nothing_to_hear(act: Callable[[Dialogue], object]) -> Callable[[Dialogue, Producer], str]:
    def command(talk: Dialogue, producer: Producer) -> str:
        act(talk)
        return ""

    return command


COMMANDS: dict[str, Callable[[Dialogue, Producer], str]] = {
    "new instance": lambda talk, producer: talk.init().error,
    "recover": lambda talk, producer: talk.init(expected=producer).error,
    "recover, fenced": lambda talk, producer: talk.init(expected=producer._replace(epoch=30_000)).error,
    "recover, foreign id": lambda talk, producer: talk.init(expected=_other(producer)).error,
    "add": lambda talk, producer: talk.add(producer, P0),
    "add another": lambda talk, producer: talk.add(producer, P0, P1._replace(partition=2)),
    "add offsets": lambda talk, producer: talk.add_offsets(producer),
    "add, old epoch": lambda talk, producer: talk.add(_before(producer), P0),
    "add, future epoch": lambda talk, producer: talk.add(_after(producer), P0),
    "add, foreign id": lambda talk, producer: talk.add(_other(producer), P0),
    "verify": lambda talk, producer: "/".join(talk.verify(producer, P0, P1._replace(partition=2))),
    "verify, old epoch": lambda talk, producer: "/".join(talk.verify(_before(producer), P0)),
    "verify, foreign id": lambda talk, producer: "/".join(talk.verify(_other(producer), P0)),
    "v1 commit": lambda talk, producer: talk.commit(producer, V1).error,
    "v1 abort": lambda talk, producer: talk.abort(producer, V1).error,
    "v1 commit, old epoch": lambda talk, producer: talk.commit(_before(producer), V1).error,
    "v1 abort, future epoch": lambda talk, producer: talk.abort(_after(producer), V1).error,
    "v1 commit, foreign id": lambda talk, producer: talk.commit(_other(producer), V1).error,
    "v2 commit": lambda talk, producer: talk.commit(producer, V2).error,
    "v2 abort": lambda talk, producer: talk.abort(producer, V2).error,
    "v2 commit, retry": lambda talk, producer: talk.commit(_before(producer), V2).error,
    "v2 abort, retry": lambda talk, producer: talk.abort(_before(producer), V2).error,
    "v2 abort, future epoch": lambda talk, producer: talk.abort(_after(producer), V2).error,
    "v2 commit, foreign id": lambda talk, producer: talk.commit(_other(producer), V2).error,
    "markers": _nothing_to_hear(lambda talk: talk.write_markers()),
    "timeout": _nothing_to_hear(lambda talk: talk.pass_ms(TIMEOUT_MS)),
    "expiry": _nothing_to_hear(lambda talk: talk.pass_ms(EXPIRY_MS)),
}

COMMON = [
    # Nobody has the transactional id.
    Row("-", "new instance", "ok", ["Empty"]),
    Row("-", "recover", "ok", ["Empty"]),
    Row("-", "recover, fenced", "ok", ["Empty"]),
    Row("-", "recover, foreign id", "ok", ["Empty"]),
    *(Row("-", each, UNKNOWN, []) for each in ("add", "add offsets", "verify, foreign id", "v1 commit", "v1 abort")),
    *(Row("-", each, UNKNOWN, []) for each in ("v2 commit", "v2 abort", "v2 commit, retry")),
    Row("-", "verify", f"{UNKNOWN}/{UNKNOWN}", []),
    Row("-", "expiry", "", []),
    # It is there, and idle.
    Row("Empty", "new instance", "ok", ["Empty"], epochs=1),
    Row("Empty", "recover", "ok", ["Empty"], epochs=1),
    Row("Empty", "recover, fenced", FENCED, []),
    Row("Empty", "recover, foreign id", FENCED, []),
    Row("Empty", "add", "ok", ["Ongoing"]),
    Row("Empty", "add offsets", "ok", ["Ongoing"]),
    Row("Empty", "add, old epoch", FENCED, []),
    Row("Empty", "add, future epoch", FENCED, []),
    Row("Empty", "add, foreign id", UNKNOWN, []),
    Row("Empty", "verify", "TRANSACTION_ABORTABLE/TRANSACTION_ABORTABLE", []),
    Row("Empty", "verify, old epoch", FENCED, []),
    Row("Empty", "verify, foreign id", UNKNOWN, []),
    Row("Empty", "v1 commit", INVALID, []),
    Row("Empty", "v1 abort", INVALID, []),
    Row("Empty", "v1 commit, old epoch", FENCED, []),
    Row("Empty", "v1 commit, foreign id", UNKNOWN, []),
    Row("Empty", "v2 commit", INVALID, []),
    Row("Empty", "v2 abort", "ok", ["PrepareAbort", "CompleteAbort"], epochs=1),
    Row("Empty", "v2 commit, retry", FENCED, []),
    Row("Empty", "v2 abort, retry", FENCED, []),
    Row("Empty", "v2 abort, future epoch", FENCED, []),
    Row("Empty", "v2 commit, foreign id", UNKNOWN, []),
    Row("Empty", "timeout", "", []),
    Row("Empty", "expiry", "", ["-"]),
    # A transaction is open.
    Row("Ongoing", "new instance", CONCURRENT, ["PrepareAbort"], "abort", epochs=1),
    Row("Ongoing", "recover", CONCURRENT, ["PrepareAbort"], "abort", epochs=1),
    Row("Ongoing", "recover, fenced", FENCED, []),
    Row("Ongoing", "recover, foreign id", FENCED, []),
    Row("Ongoing", "add", "ok", []),
    Row("Ongoing", "add another", "ok", ["Ongoing"]),
    Row("Ongoing", "add offsets", "ok", ["Ongoing"]),
    Row("Ongoing", "add, old epoch", FENCED, []),
    Row("Ongoing", "add, future epoch", FENCED, []),
    Row("Ongoing", "add, foreign id", UNKNOWN, []),
    Row("Ongoing", "verify", "ok/TRANSACTION_ABORTABLE", []),
    Row("Ongoing", "verify, old epoch", FENCED, []),
    Row("Ongoing", "verify, foreign id", UNKNOWN, []),
    Row("Ongoing", "v1 commit", "ok", ["PrepareCommit"], "commit"),
    Row("Ongoing", "v1 abort", "ok", ["PrepareAbort"], "abort"),
    Row("Ongoing", "v1 commit, old epoch", FENCED, []),
    Row("Ongoing", "v1 abort, future epoch", FENCED, []),
    Row("Ongoing", "v1 commit, foreign id", UNKNOWN, []),
    Row("Ongoing", "v2 commit", "ok", ["PrepareCommit"], "commit", epochs=1),
    Row("Ongoing", "v2 abort", "ok", ["PrepareAbort"], "abort", epochs=1),
    Row("Ongoing", "v2 commit, retry", FENCED, []),
    Row("Ongoing", "v2 abort, retry", FENCED, []),
    Row("Ongoing", "v2 abort, future epoch", FENCED, []),
    Row("Ongoing", "v2 commit, foreign id", UNKNOWN, []),
    Row("Ongoing", "timeout", "", ["PrepareAbort"], "abort", epochs=1),
    # Its end is decided, and nothing but the markers changes that.
    *(
        row
        for status, outcome in (("PrepareCommit", "commit"), ("PrepareAbort", "abort"))
        for row in (
            *(Row(status, each, CONCURRENT, [], outcome) for each in ("new instance", "recover", "recover, fenced")),
            *(Row(status, each, CONCURRENT, [], outcome) for each in ("add", "add offsets", "add, old epoch")),
            *(Row(status, each, CONCURRENT, [], outcome) for each in ("add, foreign id", "v2 commit", "v2 abort")),
            *(Row(status, each, CONCURRENT, [], outcome) for each in ("v2 commit, retry", "v2 abort, retry")),
            *(Row(status, each, CONCURRENT, [], outcome) for each in ("v2 commit, foreign id", "v1 commit")),
            Row(status, "v1 abort", CONCURRENT, [], outcome),
            Row(status, "v1 commit, old epoch", FENCED, [], outcome),
            Row(status, "v1 commit, foreign id", UNKNOWN, [], outcome),
            Row(status, "verify", f"{CONCURRENT}/{CONCURRENT}", [], outcome),
            Row(status, "verify, old epoch", FENCED, [], outcome),
            Row(status, "verify, foreign id", UNKNOWN, [], outcome),
            Row(status, "timeout", "", [], outcome),
            Row(status, "expiry", "", [], outcome),
        )
    ),
    Row("PrepareCommit", "markers", "", ["CompleteCommit"]),
    Row("PrepareAbort", "markers", "", ["CompleteAbort"]),
    # It has ended.
    *(
        row
        for status in ("CompleteCommit", "CompleteAbort")
        for row in (
            Row(status, "new instance", "ok", ["Empty"], epochs=1),
            Row(status, "recover", "ok", ["Empty"], epochs=1),
            Row(status, "recover, fenced", FENCED, []),
            Row(status, "recover, foreign id", FENCED, []),
            Row(status, "add", "ok", ["Ongoing"]),
            Row(status, "add offsets", "ok", ["Ongoing"]),
            Row(status, "add, old epoch", FENCED, []),
            Row(status, "add, foreign id", UNKNOWN, []),
            Row(status, "verify", "TRANSACTION_ABORTABLE/TRANSACTION_ABORTABLE", []),
            Row(status, "v1 commit, old epoch", FENCED, []),
            Row(status, "v2 commit", INVALID, []),
            Row(status, "v2 abort", "ok", ["PrepareAbort", "CompleteAbort"], epochs=1),
            Row(status, "v2 abort, future epoch", FENCED, []),
            Row(status, "v2 commit, foreign id", UNKNOWN, []),
            Row(status, "timeout", "", []),
            Row(status, "expiry", "", ["-"]),
        )
    ),
    Row("CompleteCommit", "v1 commit", "ok", []),
    Row("CompleteCommit", "v1 abort", INVALID, []),
    Row("CompleteAbort", "v1 commit", INVALID, []),
    Row("CompleteAbort", "v1 abort", "ok", []),
]
BUMPED = [
    Row("CompleteCommit", "v2 commit, retry", "ok", []),
    Row("CompleteCommit", "v2 abort, retry", INVALID, []),
    Row("CompleteAbort", "v2 commit, retry", INVALID, []),
    Row("CompleteAbort", "v2 abort, retry", "ok", []),
]
KEPT = [
    Row(status, f"v2 {each}, retry", FENCED, [])
    for status in ("CompleteCommit", "CompleteAbort")
    for each in ("commit", "abort")
]
CASES = [(V1, row) for row in (*COMMON, *KEPT)] + [(V2, row) for row in (*COMMON, *BUMPED)]


@pytest.mark.parametrize("crashed", [False, True], ids=["", "replayed"])
@pytest.mark.parametrize(("version", "row"), CASES, ids=[f"v{v - 3}-{row.status}-{row.command}" for v, row in CASES])
def test_given_a_status_when_a_command_comes_then_it_does_what_the_table_says(
    version: int, row: Row, crashed: bool
) -> None:
    talk = Dialogue()
    producer = STATUSES[row.status](talk, version)
    assert talk.status == row.status
    if crashed:
        talk.crash()
    written = len(talk.log)

    answer = COMMANDS[row.command](talk, producer)

    assert answer == row.answer
    assert talk.history(written) == row.written
    assert ["commit" if each.is_commit else "abort" for each in talk.effects] == ([row.effect] if row.effect else [])
    if row.status != "-" and row.written != ["-"]:
        assert talk.producer == producer._replace(epoch=producer.epoch + row.epochs)


def test_given_the_table_when_its_rows_are_counted_then_every_status_is_there_and_every_command() -> None:
    assert {row.status for row in COMMON} == set(STATUSES)
    assert {row.command for row in (*COMMON, *BUMPED)} == set(COMMANDS)
