"""Results of windows as the sink takes them: sums of doubles differ in their last digits when a batch is done again."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from penstock.spark.sink_errors import WriteFailed
from tests.spark.sinking import a_sink, create, values, values_of, written
from tests.testkit import BrokerProcess


def test_given_rows_that_are_only_counted_when_a_task_is_done_again_then_other_digits_are_the_same_rows(
    broker: BrokerProcess, topic_name: str
) -> None:
    create(broker.address, topic_name)
    sink, query = a_sink(broker.bootstrap, topic_name, compareRows=False), str(uuid.uuid4())
    written(sink, query, 0, 7, values(b"0.30000000000000004", b"1.0"))

    again = written(sink, query, 0, 7, values(b"1.0", b"0.3"))

    assert again.was_there
    with pytest.raises(WriteFailed, match=r"was written before, with other rows: 2 of .* then, 1 of"):
        written(sink, query, 0, 7, values(b"1.0"))
    with pytest.raises(WriteFailed, match="was written before, with other rows"):
        written(replace(sink, compares_rows=True), query, 0, 7, values(b"1.0", b"0.3"))
    assert values_of(broker.bootstrap, topic_name) == [b"0.30000000000000004", b"1.0"]
