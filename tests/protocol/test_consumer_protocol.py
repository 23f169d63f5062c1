"""Subscriptions and assignments of consumers, against kio."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import kio_oracle
from tests.protocol.every_version import examples

from penstock.protocol.codec import Data
from penstock.protocol.messages.consumer_protocol import (
    BadConsumerProtocol,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    blob_version,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)

CODECS: dict[type[Data], Any] = {
    ConsumerProtocolSubscription: (encode_subscription, decode_subscription, "subscription"),
    ConsumerProtocolAssignment: (encode_assignment, decode_assignment, "assignment"),
}
every_blob_version = pytest.mark.parametrize(
    ("layout", "version"), [(layout, version) for layout in CODECS for version in range(4)]
)


def of_kio(layout: type[Data], version: int) -> type:
    module = import_module(f"kio.schema.consumer_protocol_{CODECS[layout][2]}.v{version}.data")
    entity: type = getattr(module, layout.__name__)
    return entity


@every_blob_version
@examples(20)
@given(data=st.data())
def test_given_any_blob_then_we_write_and_read_the_bytes_that_kio_writes(
    layout: type[Data], version: int, data: st.DataObject
) -> None:
    encode, decode, _ = CODECS[layout]
    theirs = data.draw(kio_oracle.entities(of_kio(layout, version)))
    blob = version.to_bytes(2, "big") + kio_oracle.encoded_by_kio(theirs)
    ours = kio_oracle.ours(layout, kio_oracle.plain(theirs))

    assert encode(ours, version) == blob
    assert decode(blob) == decode(memoryview(blob)) == decode(blob + b"more") == ours
    assert blob_version(blob) == version
    assert layout.MAX_VERSION == 3


def test_given_a_version_of_the_future_then_it_is_read_and_written_as_the_newest() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], generation_id=5, rack_id="r")
    assignment = ConsumerProtocolAssignment(assigned_partitions=[TopicPartitions(topic="t", partitions=[1, 2])])
    newest = encode_subscription(subscription)

    assert blob_version(newest) == 3
    assert decode_subscription(b"\0\7" + newest[2:] + b"what is new") == subscription
    assert encode_assignment(assignment, 7) == encode_assignment(assignment, 3)


def test_given_a_subscription_with_only_its_topics_readable_then_they_are_known() -> None:
    # Some clients say version 1 and leave its fields away.
    blob = b"\0\1" + encode_subscription(ConsumerProtocolSubscription(topics=["a", "b"]), 0)[2:]

    assert subscribed_topics(blob) == ["a", "b"]
    with pytest.raises(BadConsumerProtocol, match=r"ConsumerProtocolSubscription v1: .* it goes on"):
        decode_subscription(blob)


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (b"", "0 bytes, not even a version"),
        (b"\0", "1 bytes, not even a version"),
        (b"\xff\xff\0\0\0\0\xff\xff\xff\xff", "ConsumerProtocolSubscription v-1 is not supported"),
        (b"\0\0\xff\xff\xff\xff", "topics: must not be null"),
        (b"\0\0\0\0\0\1\0\5t", "topics: 5 bytes, but only 1 are left"),
    ],
)
def test_given_a_broken_blob_then_the_complaint_says_what_is_wrong(blob: bytes, complaint: str) -> None:
    with pytest.raises(BadConsumerProtocol, match=complaint):
        decode_subscription(blob)


@examples(500)
@given(
    version=st.integers(-1, 4),
    garbage=st.one_of(
        st.binary(max_size=40),
        st.lists(st.sampled_from([0, 0, 0, 1, 2, 0x7F, 0x80, 0xFF]), max_size=30).map(bytes),
    ),
)
def test_given_garbage_then_nothing_but_a_bad_blob_is_raised(version: int, garbage: bytes) -> None:
    for blob in (garbage, version.to_bytes(2, "big", signed=True) + garbage):
        for decode in (decode_subscription, decode_assignment, subscribed_topics):
            try:
                decode(blob)
            except BadConsumerProtocol as error:
                assert str(error)
