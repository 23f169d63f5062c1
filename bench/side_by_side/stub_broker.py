"""A server that speaks just enough Kafka for a client library and does nothing: it acknowledges what it is sent
without a look, and gives the same batches to whoever fetches.

What a library reaches against it is the library's own ceiling. One thread for each connection; what comes often is
answered with as little work as Python allows. Run as `python -m bench.side_by_side.stub_broker READY_FILE LOAD`.
"""

import json
import socket
import struct
import sys
import threading
from pathlib import Path

from tests.testkit.broker_process import BrokerProcess

from bench.side_by_side.loads import Load
from bench.side_by_side.stub_answers import Answers
from penstock.protocol.messages.table import FLEXIBLE_SINCE, REQUESTS

API_VERSIONS_KEY = 18
HEADER = struct.Struct(">hhih")


class StubBroker(BrokerProcess):
    """As a process, with the surface of a broker."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ready_path.read_text()}"

    @property
    def _ready_path(self) -> Path:
        return self.data.with_name(self.name + ".port")

    def _command(self) -> list[str]:
        self._ready_path.unlink(missing_ok=True)
        return [sys.executable, "-m", "bench.side_by_side.stub_broker", str(self._ready_path), *self.arguments]

    def _is_ready(self) -> bool:
        return self._ready_path.exists()

    def _clean_exit_codes(self) -> tuple[int, ...]:
        return (0, -15)  # nothing to be closed: SIGTERM may end it where it is


def load_argument(load: Load) -> str:
    return json.dumps([load.size, load.partitions_count, load.codec])


def serve(ready_path: Path, load: Load) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    answers = Answers(port, load)
    unfinished = ready_path.with_suffix(".tmp")
    unfinished.write_text(str(port))
    unfinished.replace(ready_path)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_serve_connection, args=(connection, answers), daemon=True).start()


def _serve_connection(connection: socket.socket, answers: Answers) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(1 << 20)
    with connection:
        while (request := _next_request(connection, buffer)) is not None:
            connection.sendall(_answered(request, answers))


def _next_request(connection: socket.socket, buffer: bytearray) -> memoryview | None:
    """In the one buffer of the connection; None when the client has gone."""
    size_bytes = _receive_exactly(connection, memoryview(buffer)[:4])
    if size_bytes is None:
        return None
    size = int.from_bytes(size_bytes, "big")
    whole = memoryview(buffer if size <= len(buffer) else bytearray(size))
    return _receive_exactly(connection, whole[:size])


def _receive_exactly(connection: socket.socket, place: memoryview) -> memoryview | None:
    received = 0
    while received < len(place):
        try:
            taken = connection.recv_into(place[received:])
        except ConnectionError:
            return None
        if not taken:
            return None
        received += taken
    return place


def _answered(request: memoryview, answers: Answers) -> bytes:
    api_key, version, correlation_id, client_id_size = HEADER.unpack_from(request)
    is_flexible = version >= FLEXIBLE_SINCE[api_key]
    body = request[HEADER.size + max(0, client_id_size) + is_flexible :]
    answer = answers.to(REQUESTS[api_key].decode(body, version)).encode(version)
    has_tags = bool(is_flexible and api_key != API_VERSIONS_KEY)
    return struct.pack(">ii", 4 + has_tags + len(answer), correlation_id) + b"\x00" * has_tags + answer


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Load(*json.loads(sys.argv[2])))
