"""Every API this broker serves: key, versions, handler. ApiVersions, the dispatcher and the docs read this table."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.handlers import fetch as fetch_handler
from penstock.handlers import produce as produce_handler
from penstock.handlers.add_offsets_to_txn import add_offsets_to_txn
from penstock.handlers.add_partitions_to_txn import add_partitions_to_txn
from penstock.handlers.alter_configs import alter_configs
from penstock.handlers.alter_partition_reassignments import alter_partition_reassignments
from penstock.handlers.api_versions import api_versions
from penstock.handlers.consumer_group_describe import consumer_group_describe
from penstock.handlers.consumer_group_heartbeat import consumer_group_heartbeat
from penstock.handlers.context import Broker, Done
from penstock.handlers.create_partitions import create_partitions
from penstock.handlers.create_topics import create_topics
from penstock.handlers.delete_groups import delete_groups
from penstock.handlers.delete_records import delete_records
from penstock.handlers.delete_topics import delete_topics
from penstock.handlers.describe_cluster import describe_cluster
from penstock.handlers.describe_configs import describe_configs
from penstock.handlers.describe_groups import describe_groups
from penstock.handlers.describe_log_dirs import describe_log_dirs
from penstock.handlers.describe_producers import describe_producers
from penstock.handlers.describe_topic_partitions import describe_topic_partitions
from penstock.handlers.describe_transactions import describe_transactions
from penstock.handlers.elect_leaders import elect_leaders
from penstock.handlers.end_txn import end_txn
from penstock.handlers.find_coordinator import find_coordinator
from penstock.handlers.heartbeat import heartbeat
from penstock.handlers.incremental_alter_configs import incremental_alter_configs
from penstock.handlers.init_producer_id import init_producer_id
from penstock.handlers.join_group import join_group
from penstock.handlers.leave_group import leave_group
from penstock.handlers.list_groups import list_groups
from penstock.handlers.list_offsets import list_offsets
from penstock.handlers.list_partition_reassignments import list_partition_reassignments
from penstock.handlers.list_transactions import list_transactions
from penstock.handlers.metadata import metadata
from penstock.handlers.offset_commit import offset_commit
from penstock.handlers.offset_delete import offset_delete
from penstock.handlers.offset_fetch import offset_fetch
from penstock.handlers.offset_for_leader_epoch import offset_for_leader_epoch
from penstock.handlers.sasl_authenticate import sasl_authenticate
from penstock.handlers.sasl_handshake import sasl_handshake
from penstock.handlers.sync_group import sync_group
from penstock.handlers.txn_offset_commit import txn_offset_commit
from penstock.handlers.unregister_broker import unregister_broker
from penstock.handlers.update_features import update_features
from penstock.handlers.write_txn_markers import write_txn_markers
from penstock.net.connection import Connection
from penstock.protocol.codec import Request, Response
from penstock.protocol.frames import RequestHeader
from penstock.protocol.messages.table import REQUESTS, RESPONSES

Handler = Callable[[Any, Any, Broker], Awaitable[Response]]
Begin = Callable[[Any, Any, Broker, Done], None]
Serve = Callable[[Connection, memoryview, RequestHeader, Broker], None]


@dataclass(frozen=True, slots=True)
class Api:
    """`handler` answers a decoded request, in a task. Cheaper, for what comes often: `begin` gives the answer to a
    callback, now or later; `serve` does everything itself (Produce and Fetch).
    """

    key: int
    name: str
    min_version: int
    max_version: int
    # The oldest version really served: Produce is advertised from v0 (see its notes) and served from v3.
    served_since: int
    request: type[Request]
    response: type[Response]
    handler: Handler | None = None
    begin: Begin | None = None
    serve: Serve | None = None

    @property
    def notes(self) -> str:
        """The version notes that stand at the top of the handler's file."""
        work = self.handler or self.begin or self.serve
        assert work is not None
        return sys.modules[work.__module__].__doc__ or ""


def _api(key: int, handler: Handler | None = None, *, begin: Begin | None = None, serve: Serve | None = None) -> Api:
    return api_row(REQUESTS[key], RESPONSES[key], handler, begin=begin, serve=serve)


def api_row(
    request: type[Request],
    response: type[Response],
    handler: Handler | None = None,
    *,
    begin: Begin | None = None,
    serve: Serve | None = None,
) -> Api:
    return Api(
        key=request.API_KEY,
        name=request.NAME,
        min_version=request.ADVERTISED_MIN_VERSION,
        max_version=request.MAX_VERSION,
        served_since=request.MIN_VERSION,
        request=request,
        response=response,
        handler=handler,
        begin=begin,
        serve=serve,
    )


_ALL = (
    _api(0, serve=produce_handler.produce),
    _api(1, serve=fetch_handler.fetch),
    _api(2, list_offsets),
    _api(3, metadata),
    _api(8, begin=offset_commit),
    _api(9, offset_fetch),
    _api(10, find_coordinator),
    _api(11, join_group),
    _api(12, begin=heartbeat),
    _api(13, leave_group),
    _api(14, sync_group),
    _api(15, describe_groups),
    _api(16, list_groups),
    _api(17, sasl_handshake),
    _api(18, api_versions),
    _api(19, create_topics),
    _api(20, delete_topics),
    _api(21, delete_records),
    _api(22, init_producer_id),
    _api(23, offset_for_leader_epoch),
    _api(24, begin=add_partitions_to_txn),
    _api(25, add_offsets_to_txn),
    _api(26, begin=end_txn),
    _api(27, write_txn_markers),
    _api(28, txn_offset_commit),
    _api(32, describe_configs),
    _api(33, alter_configs),
    _api(35, describe_log_dirs),
    _api(36, sasl_authenticate),
    _api(37, create_partitions),
    _api(42, delete_groups),
    _api(43, elect_leaders),
    _api(44, incremental_alter_configs),
    _api(45, alter_partition_reassignments),
    _api(46, list_partition_reassignments),
    _api(47, offset_delete),
    _api(57, update_features),
    _api(60, describe_cluster),
    _api(61, describe_producers),
    _api(64, unregister_broker),
    _api(65, describe_transactions),
    _api(66, list_transactions),
    _api(68, consumer_group_heartbeat),
    _api(69, consumer_group_describe),
    _api(75, describe_topic_partitions),
)

APIS: dict[int, Api] = {api.key: api for api in _ALL}
