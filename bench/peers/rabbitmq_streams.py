"""RabbitMQ with its stream plugin, one node, as `rabbitmq-server` with its defaults has it.

An Erlang node is found through a daemon, epmd, that outlives it by default, and lets in whoever has the cookie of the
user's home. Here both are the peer's own: a daemon on a port of loopback that is ended with it, and a home in its
directory.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.testkit.waiting import free_port

from bench.peers import rabbitmq_load
from bench.peers.peer import Peer, Protocol

# Debian's command becomes the user rabbitmq and works in that user's directories. This is the script behind it.
DEBIAN_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
COMMAND = "rabbitmq-server"


class RabbitMqStreams(Peer):
    """Nothing is set but where it listens, where its files are, and that the stream plugin is on."""

    title = "RabbitMQ streams"
    durability = (
        "written to the file system of one node, never flushed: streams leave that to the operating system, so that "
        "confirmed messages can be lost when the machine fails"
    )
    unable: ClassVar[Mapping[str, str]] = {
        "fsync": "streams have no setting for it (quorum queues flush, streams never do)"
    }
    protocol = Protocol(
        rabbitmq_load.create_stream,
        rabbitmq_load.delete_stream,
        rabbitmq_load.write_one,
        rabbitmq_load.produce,
        rabbitmq_load.consume,
        rabbitmq_load.latencies_ms,
    )

    @classmethod
    def missing(cls) -> str | None:
        if not _script():
            return f"{COMMAND} is not installed (scripts/fetch_peers.sh brings it on Debian)"
        if not shutil.which("epmd"):
            return "Erlang's epmd is not in PATH (Debian: apt-get install erlang-base)"
        return None

    @classmethod
    def version(cls) -> str:
        """As its own directory says: asking the server would start an Erlang machine."""
        found = re.search(r"rabbitmq_server-([0-9.]+)", str(Path(_script()).resolve()))
        if found:
            return found[1]
        asked = subprocess.run([_script(), "--version"], capture_output=True, text=True, timeout=60)
        return asked.stdout.strip() or "unknown"

    def _launch(self) -> None:
        self.port = free_port()
        epmd_port = str(free_port())
        self._run(["epmd", "-address", "127.0.0.1", "-port", epmd_port], {})
        self._run([_script()], self._environment(epmd_port))

    def _environment(self, epmd_port: str) -> dict[str, str]:
        configuration, plugins = self.directory / "rabbitmq.conf", self.directory / "enabled_plugins"
        configuration.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "stream.advertised_host = 127.0.0.1\n"
            f"stream.advertised_port = {self.port}\n"
        )
        plugins.write_text("[rabbitmq_stream].\n")
        return {
            "HOME": str(self.directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": epmd_port,
            "RABBITMQ_NODENAME": f"penstock-bench-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_LOGS": "-",
            # The script becomes the server instead of waiting for it, which then gets our signals itself.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _answers(self) -> bool:
        try:
            rabbitmq_load.greet(self.port)
        except (OSError, rabbitmq_load.Refused):
            return False
        return True


def _script() -> str:
    """Empty when there is none."""
    return str(DEBIAN_SCRIPT) if DEBIAN_SCRIPT.exists() else shutil.which(COMMAND) or ""
