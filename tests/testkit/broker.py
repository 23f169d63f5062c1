"""Penstock as a real process: `penstock serve` on free ports, known to be ready through its ready file."""

import json
import sys
from pathlib import Path
from urllib.request import urlopen

from tests.testkit.broker_process import BrokerProcess


class Broker(BrokerProcess):
    """One `penstock serve`. Use as `with Broker.start(tmp_path / "data", num_partitions=3) as broker: ...`."""

    @property
    def bootstrap(self) -> str:
        return self._ready_text("kafka")

    @property
    def http(self) -> str:
        """host:port of the HTTP listener."""
        return self._ready_text("http")

    @property
    def ready_path(self) -> Path:
        return self.data.with_name(self.name + ".ready.json")

    def _command(self) -> list[str]:
        # A ready file of the last run would say "ready" for a broker that is not.
        self.ready_path.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "serve",
            "--data-dir",
            str(self.data),
            "--host",
            "127.0.0.1",
        ]
        command += ["--port", str(self.port), "--http-port", "0", "--ready-file", str(self.ready_path)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return [*command, *self.arguments]

    def until_loaded(self) -> None:
        """The HTTP server is imported when clients are served already, which takes memory and descriptors."""
        with urlopen(f"http://{self.http}/healthz", timeout=self.START_TIMEOUT_S) as answer:
            answer.read()

    def _is_ready(self) -> bool:
        return self.ready_path.exists()

    def _ready_text(self, field: str) -> str:
        # The file appears by an atomic rename, so a file that is there is whole.
        return str(json.loads(self.ready_path.read_text())[field])
