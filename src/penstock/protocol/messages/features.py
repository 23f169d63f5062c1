"""Finalized features (KIP-584)."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Struct):
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(versions="0")
    upgrade_type: int = int8(versions="1+", default=1)


class UpdateFeaturesRequest(Request, api_key=57, versions="0-2", flexible=0):
    """v1: kinds of change, and only checking    v2: the answer has no row per feature"""

    timeout_ms: int = int32(default=60_000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(versions="1+")


class UpdatableFeatureResult(Struct):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UpdateFeaturesResponse(Response, to=UpdateFeaturesRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, versions="0-1")
