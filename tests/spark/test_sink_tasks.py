"""What tasks of a sink write, exactly once whatever becomes of their attempts: real brokers, without Spark around.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/spark/test_sink_tasks.py` runs them against Apache Kafka itself.
"""

from __future__ import annotations

import itertools
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from penstock.spark.markers import MarkerKey
from penstock.spark.producing import Outbox
from penstock.spark.sink_checks import check_cluster
from penstock.spark.sink_errors import BadRow, WriteFailed
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.task_writer import Task, TaskWritten, write_at_least_once, write_exactly_once
from penstock.wire.errors import TimedOut, UnknownTopic, Unreachable, WireError
from penstock.wire.patience import Patience
from tests.spark.sinking import (
    a_batch,
    a_sink,
    an_attempt,
    create,
    is_settled,
    records,
    sink_options,
    values,
    values_of,
    written,
)
from tests.testkit import BrokerProcess, broker_under_test, eventually, lasting_port
from tests.wire.reading import a_client

NOW = datetime.now(UTC).replace(microsecond=123_000)
NOW_MS = int(NOW.timestamp() * 1_000)


@pytest.fixture
def topic(broker: BrokerProcess, topic_name: str) -> str:
    create(broker.address, topic_name, partitions=2)
    return topic_name


@pytest.fixture
def sink(broker: BrokerProcess, topic: str) -> SinkOptions:
    return a_sink(broker.bootstrap, topic)


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


def breaking(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a task that fails behind them."""
    yield from batches
    raise ZeroDivisionError


# What is written


@pytest.mark.parametrize("exactly_once", [True, False])
def test_given_rows_with_everything_when_a_task_writes_them_then_records_are_as_they_say(
    broker: BrokerProcess, topic: str, query: str, exactly_once: bool
) -> None:
    batch = a_batch(
        key=[b"a", None, b""],
        value=[b"1", None, b""],
        partition=[1, 1, 1],
        headers=[[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], [], None],
        timestamp=[NOW, NOW - timedelta(seconds=5), None],
    )

    if exactly_once:
        done = written(a_sink(broker.bootstrap, topic), query, 3, 0, [batch])
    else:
        done = write_at_least_once(a_sink(broker.bootstrap, topic, exactlyOnce=False), 3, [batch])

    first, second, third = records(broker.bootstrap, topic, 1)
    assert done == TaskWritten(3, 3)
    assert first[1:] == (NOW_MS, b"a", b"1", [("h", b"x"), ("h", None)])
    assert second[1:] == (NOW_MS - 5_000, None, None, [])
    assert third[2:] == (b"", b"", [])
    assert third.timestamp >= NOW_MS


def test_given_a_record_without_a_timestamp_when_it_is_copied_then_it_has_none_again(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    none = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)

    written(sink, query, 0, 0, [a_batch(value=[b"1"], partition=[0], timestamp=[none])])

    assert records(broker.bootstrap, topic)[0].timestamp == -1


def test_given_keys_when_a_task_writes_them_then_they_are_where_javas_producer_puts_them(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    # By murmur2: -973932308, -790332482, -1486304829 and 479470107, without the sign, modulo two partitions.
    keys = [b"21", b"foobar", b"a-little-bit-longer-string", b"abc"]

    written(sink, query, 0, 0, [a_batch(key=keys, value=keys)])

    assert [values_of(broker.bootstrap, topic, partition) for partition in (0, 1)] == [keys[:2], keys[2:]]


def test_given_rows_of_several_topics_when_a_task_writes_them_then_each_goes_where_it_says_in_order(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    create(broker.address, f"{topic}-other")
    sink = a_sink(broker.bootstrap, None)
    names = [topic, f"{topic}-other"] * 3

    written(sink, query, 0, 0, [a_batch(topic=names, value=[b"%d" % at for at in range(6)], partition=[0] * 6)])

    assert values_of(broker.bootstrap, topic) == [b"0", b"2", b"4"]
    assert values_of(broker.bootstrap, f"{topic}-other") == [b"1", b"3", b"5"]


def test_given_more_rows_than_the_queue_takes_when_a_task_writes_them_then_they_are_all_there_in_order(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    sink = a_sink(broker.bootstrap, topic, **{"kafka.buffer.memory": 16 << 10})
    wanted = [b"%04d" % at + bytes(1_000) for at in range(500)]
    wanted[-1] = bytes(16_000)  # fills it up, so that the marker has to wait as well

    written(sink, query, 0, 0, [*values(*wanted[:300]), *values(*wanted[300:])])

    assert values_of(broker.bootstrap, topic) == wanted


def test_given_a_row_larger_than_the_queue_when_a_task_writes_it_then_the_setting_is_named(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    sink = a_sink(broker.bootstrap, topic, **{"kafka.queue.buffering.max.kbytes": 1})

    with pytest.raises(
        WriteFailed, match=r"a record batch of 50\d\d bytes, and 1024 is the limit.*kafka\.buffer\.memory"
    ):
        written(sink, query, 0, 0, values(bytes(5_000)))


# Attempts


def test_given_a_batch_that_is_written_when_it_is_run_again_then_nothing_is_written_twice(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    first = written(sink, query, 0, 7, values(b"1", b"2"))

    again = written(sink, query, 0, 7, values(b"1", b"2"))
    after = written(sink, query, 0, 8, values(b"3"))

    assert (first.was_there, again.was_there, after.was_there) == (False, True, False)
    assert again.rows == 2
    assert values_of(broker.bootstrap, topic) == [b"1", b"2", b"3"]


def test_given_a_batch_that_is_written_when_its_rows_come_in_another_order_and_cut_then_they_are_the_same(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    written(sink, query, 0, 0, values(b"1", b"2", b"3"))

    again = written(sink, query, 0, 0, [*values(b"3"), *values(), *values(b"1", b"2")])

    assert again.was_there
    assert values_of(broker.bootstrap, topic) == [b"1", b"2", b"3"]


def test_given_a_task_that_fails_when_the_batch_is_run_again_then_only_its_rows_are_written(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    written(sink, query, 0, 0, values(b"good"))
    with pytest.raises(ZeroDivisionError):
        written(sink, query, 1, 0, breaking(values(b"bad")))
    assert values_of(broker.bootstrap, topic) == [b"good"]

    again = [written(sink, query, 0, 0, values(b"good")), written(sink, query, 1, 0, values(b"bad"))]

    assert [each.was_there for each in again] == [True, False]
    assert values_of(broker.bootstrap, topic) == [b"good", b"bad"]


def test_given_an_attempt_that_died_in_its_transaction_when_the_task_runs_again_then_it_is_aborted_and_fenced(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    with an_attempt(sink, query, 0) as zombie:
        zombie.produce(topic, b"dead", partition=0)
        zombie.produce(sink.marker_topic, b"never", MarkerKey(query, 0).to_bytes(), MarkerKey(query, 0).partition())
        zombie.flush(10)

        written(sink, query, 0, 0, values(b"alive"))

        with pytest.raises(KafkaException, match="fenced"):
            zombie.commit_transaction(10)
    assert values_of(broker.bootstrap, topic) == [b"alive"]


def test_given_two_attempts_at_once_when_the_second_has_written_then_the_first_fails_and_rows_are_there_once(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    slow: queue.Queue[pa.RecordBatch] = queue.Queue()
    outcome: list[BaseException | TaskWritten] = []
    has_begun = threading.Event()

    def first_attempt() -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            yield from values(b"1")
            has_begun.set()
            yield slow.get()

        try:
            outcome.append(written(sink, query, 0, 0, rows()))
        except WireError as error:
            outcome.append(error)

    thread = threading.Thread(target=first_attempt)
    thread.start()
    assert has_begun.wait(30)
    second = written(sink, query, 0, 0, values(b"1", b"2"))
    slow.put(values(b"2")[0])
    thread.join(60)

    assert not second.was_there
    assert isinstance(outcome[0], WriteFailed)
    assert "another attempt of this task has taken over" in str(outcome[0])
    assert values_of(broker.bootstrap, topic) == [b"1", b"2"]


@pytest.mark.parametrize(
    "other", [pytest.param([b"1"], id="fewer"), pytest.param([b"1", b"2", b"3"], id="more"), [b"1", b"x"], []]
)
def test_given_a_query_that_gives_other_rows_when_a_batch_is_run_again_then_it_fails_and_says_what_to_do(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str, other: list[bytes]
) -> None:
    written(sink, query, 0, 0, values(b"1", b"2"))

    with pytest.raises(WriteFailed) as refused:
        written(sink, query, 0, 0, values(*other))

    for word in ("task 0 of batch 0", "same rows twice", "exactlyOnce=false", "new checkpoint"):
        assert word in str(refused.value)
    assert values_of(broker.bootstrap, topic) == [b"1", b"2"]


@pytest.mark.parametrize("rows", [[b"1"], []])
def test_given_output_of_later_batches_when_an_older_checkpoint_writes_then_it_fails_and_says_so(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str, rows: list[bytes]
) -> None:
    written(sink, query, 0, 5, values(b"5"))

    with pytest.raises(WriteFailed, match=r"task 0 of batch 4 comes before batch 5.*older than the output"):
        written(sink, query, 0, 4, values(*rows))

    assert values_of(broker.bootstrap, topic) == [b"5"]


def test_given_a_task_without_rows_when_it_runs_then_it_leaves_nothing_and_still_ends_what_was_left(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    key = MarkerKey(query, 0)
    with an_attempt(sink, query, 0) as zombie:
        zombie.produce(topic, b"dead", partition=0)
        zombie.produce(sink.marker_topic, b"{}", key.to_bytes(), key.partition())
        zombie.flush(10)

        assert written(sink, query, 0, 0, values()) == TaskWritten(0, 0)

        with pytest.raises(KafkaException, match="fenced"):
            zombie.commit_transaction(10)
    committed = records(broker.bootstrap, sink.marker_topic, key.partition())
    assert [record for record in committed if record.key == key.to_bytes()] == []


# Tasks that take longer than a transaction may


class Clock:
    """In seconds; every batch of rows takes a while."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def slowly(self, *batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.now_s += 230
            yield batch


ONE, TWO, THREE = (values(value)[0] for value in (b"1", b"2", b"3"))


def test_given_a_task_longer_than_its_transaction_may_be_when_it_fails_then_the_next_attempt_goes_on_from_there(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    task, clock = Task(query, 0, 0), Clock()
    with pytest.raises(ZeroDivisionError):
        write_exactly_once(sink, task, breaking(clock.slowly(ONE, TWO)), clock)
    assert values_of(broker.bootstrap, topic) == [b"1", b"2"]

    again = write_exactly_once(sink, task, values(b"1", b"2", b"3"), clock)
    once_more = write_exactly_once(sink, task, clock.slowly(ONE, TWO, THREE), clock)

    assert (again.rows, again.was_there, once_more.was_there) == (3, False, True)
    assert values_of(broker.bootstrap, topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("other", [pytest.param([b"1"], id="fewer"), pytest.param([b"1", b"x", b"3"], id="others"), []])
def test_given_a_task_that_is_partly_written_when_its_first_rows_are_others_then_it_fails(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str, other: list[bytes]
) -> None:
    task, clock = Task(query, 0, 0), Clock()
    with pytest.raises(ZeroDivisionError):
        write_exactly_once(sink, task, breaking(clock.slowly(ONE, TWO)), clock)

    for compare_rows in (True, False):
        again = a_sink(broker.bootstrap, topic, compareRows=compare_rows)
        with pytest.raises(WriteFailed, match="same rows twice"):
            write_exactly_once(again, task, values(*other), clock)

    assert values_of(broker.bootstrap, topic) == [b"1", b"2"]


def test_given_an_attempt_that_sleeps_behind_a_partial_commit_when_another_one_has_written_then_it_fails(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fences is the last attempt, but for one that has merely slept: else it would write the rest again."""
    task, clock = Task(query, 0, 0), Clock()
    fences, fence = itertools.count(), Outbox.fence
    others: list[TaskWritten] = []

    def sleeping(outbox: Outbox) -> None:
        if next(fences) == 1:
            others.append(write_exactly_once(sink, task, values(b"1", b"2", b"3")))
        fence(outbox)

    monkeypatch.setattr(Outbox, "fence", sleeping)
    with pytest.raises(WriteFailed, match="another attempt of this task has taken over"):
        write_exactly_once(sink, task, clock.slowly(ONE, TWO, THREE), clock)

    assert others == [TaskWritten(0, 3)]
    assert values_of(broker.bootstrap, topic) == [b"1", b"2", b"3"]


# Brokers that go and come back


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_given_a_broker_that_restarts_while_a_task_writes_when_it_is_back_then_rows_are_there_once_and_in_order(
    tmp_path: Path, topic_name: str, query: str, how: str
) -> None:
    with broker_under_test().start(tmp_path / "data", port=lasting_port()) as broker:
        create(broker.address, topic_name)
        sink = a_sink(broker.bootstrap, topic_name)

        def rows() -> Iterator[pa.RecordBatch]:
            yield from values(*(b"%d" % at for at in range(100)))
            getattr(broker, how)()
            broker.restart()
            yield from values(*(b"%d" % at for at in range(100, 200)))

        done = written(sink, query, 0, 0, rows())
        again = written(sink, query, 0, 0, values(*(b"%d" % at for at in range(200))))

        assert (done.rows, again.was_there) == (200, True)
        assert values_of(broker.bootstrap, topic_name) == [b"%d" % at for at in range(200)]


def test_given_a_transaction_that_the_broker_gave_up_when_the_task_goes_on_then_it_fails_and_names_the_timeout(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    sink = a_sink(broker.bootstrap, topic, **{"kafka.transaction.timeout.ms": 1_000})

    def rows() -> Iterator[pa.RecordBatch]:
        yield from values(b"1")
        eventually(lambda: not is_settled(broker.bootstrap, topic))
        eventually(lambda: is_settled(broker.bootstrap, topic), 30)
        yield from values(b"2")

    with pytest.raises(WriteFailed, match=r"took longer than kafka\.transaction\.timeout\.ms"):
        write_exactly_once(sink, Task(query, 0, 0), rows(), clock=lambda: 0.0)

    assert values_of(broker.bootstrap, topic) == []


def test_given_a_broker_that_is_away_when_a_batch_of_a_stream_begins_then_driver_and_tasks_wait_for_it(
    tmp_path: Path, topic_name: str, query: str
) -> None:
    with broker_under_test().start(tmp_path / "data", port=lasting_port()) as broker:
        create(broker.address, topic_name)
        sink = a_sink(broker.bootstrap, topic_name)
        at_least_once = a_sink(broker.bootstrap, topic_name, exactlyOnce=False)
        broker.stop()
        with pytest.raises(Unreachable):
            check_cluster(sink, Kind.BATCH)

        with ThreadPoolExecutor(4) as pool:
            driver = pool.submit(check_cluster, sink, Kind.STREAM)
            tasks = [
                pool.submit(written, sink, query, 0, 0, values(b"1")),
                pool.submit(written, sink, query, 1, 0, values()),
                pool.submit(write_at_least_once, at_least_once, 2, values(b"2")),
            ]
            broker.restart()
            driver.result()
            assert [task.result().rows for task in tasks] == [1, 0, 1]

        assert sorted(map(str, values_of(broker.bootstrap, topic_name))) == ["b'1'", "b'2'"]


def test_given_a_broker_that_does_not_know_a_topic_yet_when_a_batch_of_a_stream_begins_then_the_driver_waits_for_it(
    broker: BrokerProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has just come back; it must not end the query."""
    is_waiting, after = threading.Event(), Patience.after

    def watched(patience: Patience, what: str, error: WireError) -> None:
        is_waiting.set()
        after(patience, what, error)

    monkeypatch.setattr(Patience, "after", watched)
    sink = sink_options(broker.bootstrap, Kind.STREAM, topic=topic_name)
    with pytest.raises(UnknownTopic):
        check_cluster(sink, Kind.BATCH)

    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(check_cluster, sink, Kind.STREAM)
        eventually(lambda: is_waiting.is_set() or driver.done())
        create(broker.address, topic_name)
        driver.result()


# What cannot be written


def test_given_a_topic_that_is_not_there_when_a_row_names_it_then_it_is_named_and_not_created(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    sink = a_sink(broker.bootstrap, None, **{"kafka.default.api.timeout.ms": 3_000})
    missing = f"{topic}-missing"

    with pytest.raises(UnknownTopic, match=missing):
        written(sink, query, 0, 0, [a_batch(topic=[topic, missing], value=[b"1", b"2"], partition=[0, 0])])

    with a_client(broker.bootstrap) as cluster:
        assert missing not in cluster.topics()[1]
    assert values_of(broker.bootstrap, topic) == []


def test_given_a_partition_that_is_not_there_when_a_row_asks_for_it_then_it_is_named(
    broker: BrokerProcess, topic: str, sink: SinkOptions, query: str
) -> None:
    with pytest.raises(BadRow, match=r"partition 2 of topic .* has 2"):
        written(sink, query, 0, 0, values(b"1", partition=2))


@pytest.mark.parametrize("exactly_once", [True, False])
def test_given_a_row_that_the_topic_does_not_take_when_a_task_writes_it_then_it_fails_and_says_what_to_do(
    broker: BrokerProcess, topic_name: str, query: str, exactly_once: bool
) -> None:
    create(broker.address, topic_name, max_message_bytes=1_000)
    sink = a_sink(broker.bootstrap, topic_name, exactlyOnce=exactly_once)

    with pytest.raises(WriteFailed, match=r"max\.message\.bytes"):
        if exactly_once:
            written(sink, query, 0, 0, values(b"fits", bytes(5_000)))
        else:
            write_at_least_once(sink, 0, values(b"fits", bytes(5_000)))

    assert not exactly_once or values_of(broker.bootstrap, topic_name) == []


def test_given_a_timeout_that_brokers_do_not_allow_when_a_task_begins_then_it_says_so(
    broker: BrokerProcess, topic: str, query: str
) -> None:
    sink = a_sink(broker.bootstrap, topic, **{"kafka.transaction.timeout.ms": 2_000_000_000})

    with pytest.raises(WriteFailed, match=r"lower kafka\.transaction\.timeout\.ms"):
        written(sink, query, 0, 0, values(b"1"))


def test_given_no_broker_when_a_task_begins_then_it_gives_up_in_time_and_says_why(query: str) -> None:
    sink = sink_options("127.0.0.1:1", Kind.STREAM, topic="t", **{"kafka.default.api.timeout.ms": 1_500})

    for rows in (values(b"1"), values()):
        with pytest.raises(TimedOut, match=r"nothing has come for 1\.5 s.*127\.0\.0\.1:1.*refused"):
            written(sink, query, 0, 0, rows)
