"""The HTTP port: metrics and health.

aiohttp takes a fifth of a second to import, and a quarter of an idle broker's memory. So the socket listens from the
start, and the import comes with the first who connects, in a thread: they wait in the socket's backlog until it ends.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.runtime.files import Files

if TYPE_CHECKING:
    from aiohttp import web

HTTP_BACKLOG = 128


class HttpServer:
    """`/healthz`: the process answers. `/readyz`: it serves clients. `/metrics`: Prometheus."""

    def __init__(self, metrics: Callable[[], bytes], unready_reason: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._unready_reason = unready_reason
        self._files: Files | None = None
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._asked: asyncio.Future[None] | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(HTTP_BACKLOG)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        self._socket = sock
        address = sock.getsockname()
        return address[0], address[1]

    async def serve(self, files: Files) -> None:
        self._files = files
        await self._until_somebody_connects()
        await files.run(importlib.import_module, "aiohttp.web")
        await files.run(importlib.import_module, "penstock.server.metrics")
        from aiohttp import web

        assert self._socket is not None
        application = web.Application()
        application.router.add_get("/metrics", self._answer_metrics)
        application.router.add_get("/healthz", self._answer_healthy)
        application.router.add_get("/readyz", self._answer_ready)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, backlog=HTTP_BACKLOG).start()

    async def _until_somebody_connects(self) -> None:
        assert self._socket is not None
        loop, descriptor = asyncio.get_running_loop(), self._socket.fileno()
        self._asked = asked = loop.create_future()

        def connected() -> None:
            loop.remove_reader(descriptor)
            asked.set_result(None)

        loop.add_reader(descriptor, connected)
        await asked

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web

        assert self._files is not None
        body = await self._files.run(self._metrics)  # ten thousand partitions take a while
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _answer_healthy(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response({"status": "ok"})

    async def _answer_ready(self, request: web.Request) -> web.Response:
        from aiohttp import web

        reason = self._unready_reason()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)

    async def close(self) -> None:
        if self._asked is not None and not self._asked.done():
            assert self._socket is not None
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if self._runner is not None:
            await self._runner.cleanup()
        elif self._socket is not None:
            self._socket.close()
