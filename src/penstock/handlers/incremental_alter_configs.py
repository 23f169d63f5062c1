"""IncrementalAlterConfigs: sets, deletes, appends to or subtracts from single keys of a topic or broker (KIP-339).

v1: flexible
"""

from __future__ import annotations

from penstock.controller.commands import ChangeConfigs, ConfigChange, ConfigResource
from penstock.handlers.alter_configs import altered
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse


async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext, broker: Broker
) -> IncrementalAlterConfigsResponse:
    alterations = tuple(
        ChangeConfigs(
            ConfigResource(resource.resource_type, resource.resource_name),
            tuple(ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs),
        )
        for resource in request.resources
    )
    return IncrementalAlterConfigsResponse(responses=await altered(alterations, request.validate_only, context, broker))
