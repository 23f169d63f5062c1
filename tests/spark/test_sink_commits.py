"""What the driver finds when all tasks have committed: that others had before, with a real broker and without Spark.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/spark/test_sink_commits.py` runs them against Apache Kafka itself.
"""

from __future__ import annotations

import uuid

import pytest

from penstock.spark.markers import Marker, MarkerKey
from penstock.spark.sink_errors import WriteFailed
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.task_writer import TaskWritten
from penstock.spark.writing import BatchWriter, QueryWritten, StreamWriter
from tests.spark.sinking import a_sink, an_attempt, create, sink_options, values, values_of, written
from tests.testkit import BrokerProcess


@pytest.fixture
def sink(broker: BrokerProcess, topic_name: str) -> SinkOptions:
    create(broker.address, topic_name)
    return a_sink(broker.bootstrap, topic_name, markerTopic=f"markers-of-{topic_name}")


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


def commit(sink: SinkOptions, query: str, batch_id: int, *tasks: TaskWritten) -> None:
    """As the first batch of a run."""
    run = str(uuid.uuid4())
    StreamWriter(sink).commit([QueryWritten(query, run, task) for task in tasks], batch_id)


def test_given_tasks_that_died_with_their_driver_when_fewer_write_the_batch_again_then_the_commit_says_so(
    sink: SinkOptions, query: str
) -> None:
    for number in (1, 2, 12):
        written(sink, query, number, 0, values(b"%d" % number))

    only = written(sink, query, 0, 0, values(b"1", b"2", b"12"))

    with pytest.raises(WriteFailed, match=r"by other tasks: 3 rows of tasks 1, 2, 12 are there .* those of task 0,"):
        commit(sink, query, 0, only)


def test_given_markers_of_earlier_batches_and_of_others_when_a_batch_has_fewer_tasks_then_nothing_is_wrong(
    sink: SinkOptions, query: str
) -> None:
    first = [written(sink, query, number, 0, values(b"%d" % number)) for number in (0, 1, 2)]
    written(sink, str(uuid.uuid4()), 7, 1, values(b"7"))
    commit(sink, query, 0, *first)

    second = [written(sink, query, 0, 1, values(b"4")), written(sink, query, 1, 1, values())]

    commit(sink, query, 1, *second)
    commit(sink, query, 1, *second)


def test_given_a_transaction_of_another_task_that_is_open_when_a_batch_commits_then_it_never_comes_to_be(
    broker: BrokerProcess, sink: SinkOptions, query: str
) -> None:
    """Of a worker that is cut off from its driver: nobody else would stop it."""
    key = MarkerKey(query, 3)
    with an_attempt(sink, query, 3) as cut_off:
        cut_off.produce(str(sink.topic), b"1", partition=0)
        cut_off.produce(sink.marker_topic, Marker(0, 1, 1).to_bytes(), key.to_bytes(), key.partition())
        assert cut_off.flush(10) == 0

        commit(sink, query, 0, written(sink, query, 0, 0, values(b"1")))

        with pytest.raises(Exception, match=r"fenced|INVALID_PRODUCER_EPOCH"):
            cut_off.commit_transaction(10)
    assert values_of(broker.bootstrap, str(sink.topic)) == [b"1"]


def test_given_a_batch_with_a_name_when_fewer_tasks_write_it_again_then_its_commit_says_so(
    broker: BrokerProcess, sink: SinkOptions, query: str
) -> None:
    named = sink_options(broker.bootstrap, Kind.BATCH, topic=sink.topic, writeId=query, markerTopic=sink.marker_topic)
    written(named, query, 1, 0, values(b"2"))

    only = written(named, query, 0, 0, values(b"1", b"2"))

    with pytest.raises(WriteFailed, match=r"1 rows of task 1 are there.*spark\.sql\.adaptive\.enabled=false"):
        BatchWriter(named).commit([only])
