"""NATS with JetStream, one server and one replica, as `nats-server` with its defaults has it."""

import shutil
import socket
import subprocess
from collections.abc import Mapping
from typing import ClassVar

from tests.testkit.waiting import free_port

from bench.peers import nats_load
from bench.peers.peer import Peer, Protocol

COMMAND = "nats-server"
SEARCH_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


class NatsJetStream(Peer):
    """Its data directory and its port on loopback are all that is set."""

    title = "NATS JetStream"
    durability = (
        "written to the file system of one server, not flushed: the server calls fsync every two minutes by default, "
        "so that messages acknowledged since can be lost when the machine fails"
    )
    unable: ClassVar[Mapping[str, str]] = {"fsync": "version 2.9, which Debian 12 has, has no setting for it"}
    protocol = Protocol(
        nats_load.create_stream,
        nats_load.delete_stream,
        nats_load.write_one,
        nats_load.produce,
        nats_load.consume,
        nats_load.latencies_ms,
    )

    @classmethod
    def missing(cls) -> str | None:
        return None if _executable() else f"{COMMAND} is not installed (scripts/fetch_peers.sh brings it on Debian)"

    @classmethod
    def version(cls) -> str:
        said = subprocess.run([_executable(), "--version"], capture_output=True, text=True, check=True).stdout
        return said.strip().rpartition("v")[2]

    def _launch(self) -> None:
        self.port = free_port()
        configuration = self.directory / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'pid_file: "{self.directory / "nats.pid"}"\n'
            f'jetstream {{ store_dir: "{self.directory / "data"}" }}\n'
        )
        self._run([_executable(), "--config", str(configuration)], {})

    def _answers(self) -> bool:
        # Clients are let in only after JetStream has started.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


def _executable() -> str:
    """Empty when there is none. It is in /usr/sbin, which is not in every user's PATH."""
    return shutil.which(COMMAND) or shutil.which(COMMAND, path=SEARCH_PATH) or ""
