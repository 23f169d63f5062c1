"""Lines of input become records, or a reason why not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.consume_format import OutputRecord, formatter
from penstock.cli.produce_input import BadLine, InputRecord, json_line, keyed_line, value_line


def test_given_a_plain_line_then_all_of_it_is_the_value() -> None:
    assert value_line(b"a:b\xff") == InputRecord(value=b"a:b\xff")


def test_given_a_separator_then_the_first_one_parts_key_and_value() -> None:
    assert keyed_line(b"::")(b"k::v::w") == InputRecord(value=b"v::w", key=b"k")
    with pytest.raises(BadLine, match="'::'"):
        keyed_line(b"::")(b"k:v")


@pytest.mark.parametrize(
    ("document", "record"),
    [
        ({"value": "v"}, InputRecord(value=b"v")),
        ({"value": None, "key": "k"}, InputRecord(value=None, key=b"k")),
        ({"value": {"a": [1, "é"]}}, InputRecord(value='{"a":[1,"é"]}'.encode())),
        ({"value": 7, "key": False}, InputRecord(value=b"7", key=b"false")),
        ({"value_base64": "AP8=", "key_base64": "/w=="}, InputRecord(value=b"\x00\xff", key=b"\xff")),
        ({"value": "", "partition": 3, "timestamp": 5}, InputRecord(value=b"", partition=3, timestamp_ms=5)),
        (
            {"value": "v", "headers": {"a": "1", "b": None}},
            InputRecord(value=b"v", headers=[("a", b"1"), ("b", None)]),
        ),
        (
            {"value": "v", "headers": [["a", "1"], ["a", {"base64": "/w=="}]]},
            InputRecord(value=b"v", headers=[("a", b"1"), ("a", b"\xff")]),
        ),
        ({"value": "v", "topic": "other", "offset": 9}, InputRecord(value=b"v")),
    ],
)
def test_given_a_json_line_then_it_is_the_record(document: object, record: InputRecord) -> None:
    assert json_line(json.dumps(document).encode()) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", 'no "value"'),
        (b'{"value_base64": "?"}', "not base64"),
        (b'{"value": "v", "partition": "1"}', "partition"),
        (b'{"value": "v", "partition": true}', "partition"),
        (b'{"value": "v", "timestamp": -1}', "timestamp"),
        (b'{"value": "v", "headers": "a"}', "headers"),
        (b'{"value": "v", "headers": [["a"]]}', "headers"),
    ],
)
def test_given_a_bad_json_line_then_the_reason_is_told(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        json_line(line)


_data = st.none() | st.binary()


@given(key=_data, value=_data, headers=st.lists(st.tuples(st.text(), _data)), timestamp_ms=st.integers(0, 2**62))
def test_given_any_record_when_consume_prints_json_then_produce_reads_the_same_record(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp_ms: int
) -> None:
    record = OutputRecord("t", 2, 7, timestamp_ms, key, value, tuple(headers))

    line = formatter("json")(record)

    assert b"\n" not in line
    assert json_line(line) == InputRecord(value, key, [*headers], 2, timestamp_ms)
