"""AlterConfigs: replaces all overrides of a topic or broker. IncrementalAlterConfigs is the better request.

v2: flexible
"""

from __future__ import annotations

from penstock.controller.commands import (
    AlterConfigs,
    AlterConfigsResult,
    ChangeConfigs,
    ConfigResource,
    ReplaceConfigs,
)
from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.configs import AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse


async def alter_configs(request: AlterConfigsRequest, context: RequestContext, broker: Broker) -> AlterConfigsResponse:
    alterations = tuple(
        ReplaceConfigs(
            ConfigResource(resource.resource_type, resource.resource_name),
            tuple((config.name, config.value) for config in resource.configs),
        )
        for resource in request.resources
    )
    return AlterConfigsResponse(responses=await altered(alterations, request.validate_only, context, broker))


async def altered(
    alterations: tuple[ReplaceConfigs | ChangeConfigs, ...],
    validate_only: bool,
    context: RequestContext,
    broker: Broker,
) -> list[AlterConfigsResourceResponse]:
    """Have the controller do it; one row per resource."""
    try:
        results = await broker.controller.ask(AlterConfigs(alterations, validate_only), context.principal)
    except BrokerError as error:
        results = tuple(AlterConfigsResult(alteration.resource, error) for alteration in alterations)
    return [_row(result) for result in results]


def _row(result: AlterConfigsResult) -> AlterConfigsResourceResponse:
    row = AlterConfigsResourceResponse(resource_type=result.resource.resource_type, resource_name=result.resource.name)
    if result.error is not None:
        row.error_code, row.error_message = result.error.code, result.error.message
    return row
