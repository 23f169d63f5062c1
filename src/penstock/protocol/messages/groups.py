"""Finding the coordinator of a group, a transaction or a share group."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Request, api_key=10, versions="0-6", flexible=3):
    """v1: transactional ids too    v4: several keys at once (KIP-699)    v6: share groups (KIP-932)"""

    key: str = string(versions="0-3")
    key_type: int = int8(versions="1+")
    coordinator_keys: list[str] = array(string, versions="4+")


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="4+")


class FindCoordinatorResponse(Response, to=FindCoordinatorRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16(versions="0-3")
    error_message: str | None = string(versions="1-3", nullable="1-3")
    node_id: int = int32(versions="0-3")
    host: str = string(versions="0-3")
    port: int = int32(versions="0-3")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+")
