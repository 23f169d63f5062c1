"""UpdateFeatures: raise the finalized version of a feature, once every broker knows it.

v1: what kind of change, and only checking it    v2: no row per feature in the answer
"""

from __future__ import annotations

from penstock.controller.commands import FeatureUpdate, UpdateFeatures
from penstock.core.errors import ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def update_features(
    request: UpdateFeaturesRequest, context: RequestContext, broker: Broker
) -> UpdateFeaturesResponse:
    updates = tuple(FeatureUpdate(each.feature, each.max_version_level) for each in request.feature_updates)
    results = await broker.controller.ask(UpdateFeatures(updates, request.validate_only), context.principal)
    response = UpdateFeaturesResponse(results=[])
    for result in results:
        row = UpdatableFeatureResult(feature=result.feature)
        if result.error is not None:
            row.error_code, row.error_message = result.error.code, result.error.message
            if not response.error_code:
                response.error_code, response.error_message = row.error_code, row.error_message
        elif any(each.error is not None for each in results):
            row.error_code, row.error_message = ErrorCode.FEATURE_UPDATE_FAILED, "another one was refused"
        response.results.append(row)
    return response
