"""Every API that brokers serve to each other: those that clients are served, and their own."""

from __future__ import annotations

from penstock.handlers.ask_controller import ask_controller
from penstock.handlers.registry import APIS, Api, api_row
from penstock.handlers.replica_progress import replica_progress
from penstock.handlers.suspect_log import suspect_log
from penstock.protocol.messages.internal import (
    INTERNAL_MESSAGES,
    AskControllerRequest,
    AskControllerResponse,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
    SuspectLogRequest,
    SuspectLogResponse,
)
from penstock.protocol.messages.table import FLEXIBLE_SINCE

INTERNAL_APIS: dict[int, Api] = APIS | {
    AskControllerRequest.API_KEY: api_row(AskControllerRequest, AskControllerResponse, ask_controller),
    ReplicaProgressRequest.API_KEY: api_row(ReplicaProgressRequest, ReplicaProgressResponse, begin=replica_progress),
    SuspectLogRequest.API_KEY: api_row(SuspectLogRequest, SuspectLogResponse, begin=suspect_log),
}
INTERNAL_FLEXIBLE_SINCE = FLEXIBLE_SINCE | {request.API_KEY: request.FLEXIBLE_SINCE for request, _ in INTERNAL_MESSAGES}
