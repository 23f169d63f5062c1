"""Deletes committed offsets of a group (OffsetDelete), which librdkafka can do and confluent-kafka does not offer.

So librdkafka is called directly: the same library that confluent-kafka has loaded, with the same settings, through its
public C interface. A client of our own would have to repeat its TLS and logins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

from penstock.core.ids import TopicPartition

_PRODUCER = 0  # the cheapest kind of client; any kind can administer
_ANY_OPERATION = 0
_TEXT_BYTES = 512
# The answer comes within the request's own timeout; this is for a library that does not keep its word.
_GRACE_S = 5

_POINTER_FUNCTIONS = (
    "rd_kafka_conf_new",
    "rd_kafka_new",
    "rd_kafka_queue_new",
    "rd_kafka_topic_partition_list_new",
    "rd_kafka_topic_partition_list_add",
    "rd_kafka_DeleteConsumerGroupOffsets_new",
    "rd_kafka_AdminOptions_new",
    "rd_kafka_queue_poll",
    "rd_kafka_event_DeleteConsumerGroupOffsets_result",
    "rd_kafka_group_result_error",
)


class DeletionRefused(Exception):
    """Nothing was deleted, or not everything; the message says why."""


class _Partition(ctypes.Structure):
    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("error", c_int),
        ("private", c_void_p),
    )


class _PartitionList(ctypes.Structure):
    _fields_ = (("count", c_int), ("size", c_int), ("elements", POINTER(_Partition)))


def delete_offsets(
    settings: Mapping[str, object], group: str, partitions: Iterable[TopicPartition], timeout_s: float
) -> None:
    library = _library()
    with ExitStack() as stack:
        client = stack.enter_context(_client(library, settings))
        queue = stack.enter_context(_freed(library.rd_kafka_queue_new(client), library.rd_kafka_queue_destroy))
        _send(library, client, queue, group, list(partitions), timeout_s)
        event = library.rd_kafka_queue_poll(queue, int((timeout_s + _GRACE_S) * 1_000))
        if not event:
            raise DeletionRefused(f"no answer within {timeout_s:g} s")
        stack.enter_context(_freed(event, library.rd_kafka_event_destroy))
        _check(library, event)


def _library() -> Any:
    from confluent_kafka import cimpl

    # The symbols of an extension's own libraries are found through it, wherever they were installed.
    library = ctypes.CDLL(cimpl.__file__)
    try:
        for name in _POINTER_FUNCTIONS:
            getattr(library, name).restype = c_void_p
        for name in ("rd_kafka_err2str", "rd_kafka_err2name", "rd_kafka_error_string", "rd_kafka_event_error_string"):
            getattr(library, name).restype = c_char_p
        library.rd_kafka_DeleteConsumerGroupOffsets_result_groups.restype = POINTER(c_void_p)
        library.rd_kafka_group_result_partitions.restype = POINTER(_PartitionList)
    except AttributeError as error:
        raise DeletionRefused(f"this build of confluent-kafka cannot delete offsets: {error}") from None
    return library


@contextmanager
def _freed(pointer: int, free: Any) -> Iterator[c_void_p]:
    try:
        yield c_void_p(pointer)
    finally:
        free(c_void_p(pointer))


@contextmanager
def _client(library: Any, settings: Mapping[str, object]) -> Iterator[c_void_p]:
    said = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = c_void_p(library.rd_kafka_conf_new())
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), said, c_size_t(_TEXT_BYTES)):
            library.rd_kafka_conf_destroy(conf)
            raise DeletionRefused(said.value.decode())
    client = library.rd_kafka_new(_PRODUCER, conf, said, c_size_t(_TEXT_BYTES))
    if not client:
        library.rd_kafka_conf_destroy(conf)  # a client that was made has taken it over
        raise DeletionRefused(said.value.decode())
    with _freed(client, library.rd_kafka_destroy) as pointer:
        yield pointer


def _send(
    library: Any, client: c_void_p, queue: c_void_p, group: str, partitions: list[TopicPartition], timeout_s: float
) -> None:
    said = ctypes.create_string_buffer(_TEXT_BYTES)
    with ExitStack() as stack:
        listed = stack.enter_context(
            _freed(
                library.rd_kafka_topic_partition_list_new(len(partitions)),
                library.rd_kafka_topic_partition_list_destroy,
            )
        )
        for topic, partition in partitions:
            library.rd_kafka_topic_partition_list_add(listed, topic.encode(), c_int32(partition))
        request = stack.enter_context(
            _freed(
                library.rd_kafka_DeleteConsumerGroupOffsets_new(group.encode(), listed),
                library.rd_kafka_DeleteConsumerGroupOffsets_destroy,
            )
        )
        options = stack.enter_context(
            _freed(library.rd_kafka_AdminOptions_new(client, _ANY_OPERATION), library.rd_kafka_AdminOptions_destroy)
        )
        library.rd_kafka_AdminOptions_set_request_timeout(options, int(timeout_s * 1_000), said, c_size_t(_TEXT_BYTES))
        library.rd_kafka_DeleteConsumerGroupOffsets(client, byref(request), c_size_t(1), options, queue)


def _check(library: Any, event: int) -> None:
    """Raises what the broker refused: the request, the group or some of its partitions."""
    pointer = c_void_p(event)
    code = library.rd_kafka_event_error(pointer)
    if code:
        raise DeletionRefused(_error_text(library, code))
    result = c_void_p(library.rd_kafka_event_DeleteConsumerGroupOffsets_result(pointer))
    count = c_size_t()
    group = c_void_p(library.rd_kafka_DeleteConsumerGroupOffsets_result_groups(result, byref(count))[0])
    error = library.rd_kafka_group_result_error(group)
    if error:
        raise DeletionRefused(_error_text(library, library.rd_kafka_error_code(c_void_p(error))))
    partitions = library.rd_kafka_group_result_partitions(group).contents
    refused = [
        f"{found.topic.decode()}-{found.partition}: {_error_text(library, found.error)}"
        for found in partitions.elements[: partitions.count]
        if found.error
    ]
    if refused:
        raise DeletionRefused("; ".join(refused))


def _error_text(library: Any, code: int) -> str:
    """As `client.reason` has it."""
    return f"{library.rd_kafka_err2str(code).decode()} ({library.rd_kafka_err2name(code).decode()})"
