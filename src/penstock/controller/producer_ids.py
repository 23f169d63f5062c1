"""Producer ids for this broker, never the same twice: they come out of blocks that the controller has set aside."""

from __future__ import annotations

import asyncio

from penstock.controller.commands import AllocateProducerIds
from penstock.controller.forwarding import Controller
from penstock.controller.service import ControllerService
from penstock.core.ids import ProducerId


class ProducerIds:
    def __init__(self, controller: Controller | ControllerService) -> None:
        self._controller = controller
        self._one_at_a_time = asyncio.Lock()
        self._next = 0
        self._end = 0

    async def next(self) -> ProducerId:
        async with self._one_at_a_time:
            if self._next == self._end:
                block = await self._controller.ask(AllocateProducerIds())
                self._next, self._end = block.first, block.first + block.count
            producer_id = ProducerId(self._next)
            self._next += 1
            return producer_id
