"""ApiVersions: which APIs in which versions, and which features are finalized.

v3: flexible, the client says its name and version    v4: features that begin at version 0 are listed too

Any version is answered: one that we do not know with error 35 in the layout of v0 (KIP-511, see the pipeline). The
response header has no tagged fields in any version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import ApiVersionRange, Broker, RequestContext
from penstock.metadata.records import SUPPORTED_FEATURES
from penstock.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def api_versions(request: ApiVersionsRequest, context: RequestContext, broker: Broker) -> ApiVersionsResponse:
    if context.api_version >= 3:
        for label, text in (
            ("name", request.client_software_name),
            ("version", request.client_software_version),
        ):
            if not _SOFTWARE.fullmatch(text):
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"client software {label} {text!r} is not acceptable")
    image = broker.image
    return ApiVersionsResponse(
        api_keys=_ranges(broker.apis),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in sorted(SUPPORTED_FEATURES.items())
            if lowest > 0 or context.api_version >= 4
        ],
        finalized_features_epoch=image.revision,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items())
        ],
    )


def unsupported_version(apis: Mapping[int, ApiVersionRange]) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges(apis))


def _ranges(apis: Mapping[int, ApiVersionRange]) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in apis.values()
    ]
