"""How a record is printed."""

from __future__ import annotations

import pytest

from penstock.cli.consume_format import BadFormat, OutputRecord, formatter

RECORD = OutputRecord("orders", 2, 41, 1_700_000_000_000, b"k\xff", b"v", (("a", b"1"), ("b", None)))
EMPTY = OutputRecord("orders", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("format", "of_record", "of_empty"),
    [
        ("value", b"v", b"null"),
        ("key-value", b"k\xff\tv", b"null\tnull"),
        (
            "json",
            b'{"topic": "orders", "partition": 2, "offset": 41, "timestamp": 1700000000000, "key_base64": "a/8=", '
            b'"value": "v", "headers": [["a", "1"], ["b", null]]}',
            b'{"topic": "orders", "partition": 0, "offset": 0, "timestamp": null, "key": null, "value": null, '
            b'"headers": []}',
        ),
        (r"{topic}-{partition}\t{offset}", b"orders-2\t41", b"orders-0\t0"),
        (r"{key}{value}\\n{headers}", b"k\xffv\\na=1,b=null", b"nullnull\\n"),
        ("{timestamp} {key_bytes}/{value_bytes}", b"1700000000000 2/1", b"-1 0/0"),
    ],
)
def test_given_a_format_then_a_record_is_printed_as_it_says(format: str, of_record: bytes, of_empty: bytes) -> None:
    write = formatter(format)

    assert write(RECORD) == of_record
    assert write(EMPTY) == of_empty


@pytest.mark.parametrize(
    ("format", "hint"),
    [("jsn", "did you mean json"), ("{ofset}", "{offset}"), ("{zz}", "fields are"), ("{}", "no field")],
)
def test_given_a_format_that_means_nothing_then_the_message_helps(format: str, hint: str) -> None:
    with pytest.raises(BadFormat, match=hint):
        formatter(format)
