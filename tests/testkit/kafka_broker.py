"""Apache Kafka itself, as a twin of our broker: a test that fails against Kafka is a wrong test."""

import subprocess
from pathlib import Path

from tests.testkit.broker_process import BrokerProcess
from tests.testkit.java import CLASS_PATH, java_command
from tests.testkit.waiting import free_port

_CLUSTER_ID = "cGVuc3RvY2stdGVzdHMtMQ"
_READY_LINE = "Kafka Server started"
_SIGTERM_EXIT_CODE = 143  # a JVM that ran its shutdown hooks after SIGTERM


class KafkaBroker(BrokerProcess):
    """One KRaft node of Apache Kafka, from the jars of tests/compat/java/pom.xml (see scripts/fetch_jars.sh)."""

    START_TIMEOUT_S = 60
    STOP_TIMEOUT_S = 60

    _ready_lines_expected = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def properties_path(self) -> Path:
        return self.data.with_name(self.name + ".properties")

    def format(self) -> None:
        """Makes its directory ready, which takes a virtual machine of its own; a start does it if nobody did."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self._write_properties()
        tool = [*java_command(), "-cp", CLASS_PATH, "kafka.tools.StorageTool"]
        arguments = ["format", "-t", _CLUSTER_ID, "-c", str(self.properties_path)]
        subprocess.run([*tool, *arguments], check=True, capture_output=True, text=True)

    def _command(self) -> list[str]:
        self._ready_lines_expected += 1
        self.port = self.port or free_port()
        if not (self.data / "meta.properties").exists():
            self.format()
        self._write_properties()
        return [
            *java_command("-Xmx512m", "-Dtest.log.level=INFO"),
            "-cp",
            CLASS_PATH,
            "kafka.Kafka",
            str(self.properties_path),
        ]

    def _is_ready(self) -> bool:
        return self.log_text().count(_READY_LINE) >= self._ready_lines_expected

    def _clean_exit_codes(self) -> tuple[int, ...]:
        return (0, _SIGTERM_EXIT_CODE)

    def _write_properties(self) -> None:
        controller = f"127.0.0.1:{free_port()}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.settings,
        }
        self.properties_path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
