"""The raw client counts by length, and still says what was wrong when an answer is not the one it expects."""

import pytest
from bench.raw_produce import stub_exchange
from bench.replay import replay
from bench.stub import stub
from bench.wire import batch_of, produce_response

from bench import replay as replaying

TOPIC = "bench-replay"


def test_given_good_answers_when_replayed_then_all_are_counted() -> None:
    exchange, response = stub_exchange(TOPIC, batch_of([b"value"]))

    with stub(exchange.request_size, response) as address:
        replayed = replay(address, [exchange, exchange], 1_000)

    assert replayed.elapsed_s > 0


def test_given_answers_shorter_than_a_success_when_nothing_follows_then_the_answer_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange, _ = stub_exchange(TOPIC, batch_of([b"value"]))
    short = produce_response("t", 0)
    monkeypatch.setattr(replaying, "STALL_S", 0.2)

    with (
        stub(exchange.request_size, short) as address,
        pytest.raises(RuntimeError, match=f"a response is not a success: {short[:8].hex(' ')}"),
    ):
        replay(address, [exchange], 1)


def test_given_no_answer_at_all_when_replayed_then_it_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, response = stub_exchange(TOPIC, batch_of([b"value"]))
    monkeypatch.setattr(replaying, "STALL_S", 0.2)

    with stub(2 * exchange.request_size, response) as address, pytest.raises(TimeoutError, match="no response"):
        replay(address, [exchange], 1)
