"""What must hold after every case of bad input, whatever it was answered.

Clients on other connections, one that was there all along and one that comes afterwards, produce and fetch; the process
has no more descriptors than before and not much more memory; its log tells of no bug. What an input itself is answered
stands in the tests.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from penstock.core.errors import ErrorCode
from tests.badinput.batches import a_batch
from tests.testkit import Broker, BrokerProcess, RawClient, eventually
from tests.testkit.asking import create_usable_topic, fetch, produce

MIB = 1024 * 1024
ANSWER_TIMEOUT_S = 10
BYSTANDER_TOPIC = "nobody-else-names-this-topic"

GOOD_CLIENT_S = 1.0
_CPU_LIMIT_S = 2.0
_REST_WINDOW_S = 0.3
# A bug shows itself by a traceback; a refusal is a warning at most.
_SIGNS_OF_A_BUG = ("Traceback", " ERROR ", " CRITICAL ", "unexpected")


class LogWatch:
    """Reads what the broker has logged since the last look; costs next to nothing when that is nothing."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._path = broker.stderr_path
        self._seen = self._path.stat().st_size

    def signs_of_a_bug(self) -> str:
        size = self._path.stat().st_size
        if size == self._seen:
            return ""
        with self._path.open("rb") as log:
            log.seek(self._seen)
            news = log.read(size - self._seen).decode(errors="replace")
        self._seen = size
        return news if any(sign in news for sign in _SIGNS_OF_A_BUG) else ""


class Vitals:
    """A running broker's state before the bad input, to be compared with afterwards."""

    def __init__(self, broker: BrokerProcess, *, growth_bytes: int) -> None:
        self.broker = broker
        self.growth_bytes = growth_bytes
        # CPU time of the broker, which does not depend on who else wants the machine as time on the wall does.
        self.cpu_limit_s = _CPU_LIMIT_S
        self._old_client = RawClient(broker.address, timeout=ANSWER_TIMEOUT_S)
        ensure_bystander_topic(self._old_client)
        produce_and_fetch(self._old_client)
        self._log = LogWatch(broker)
        self._descriptors = open_descriptors(broker)
        self._resident_bytes = broker.resident_bytes()
        self._cpu_s = cpu_seconds(broker)

    def grown_bytes(self) -> int:
        return self.broker.resident_bytes() - self._resident_bytes

    def used_cpu_s(self) -> float:
        return cpu_seconds(self.broker) - self._cpu_s

    def is_at_rest(self) -> bool:
        """Whether the broker does next to nothing. Looks for a while, so `eventually` may ask often."""
        time_before, cpu_before = time.monotonic(), cpu_seconds(self.broker)
        eventually(lambda: time.monotonic() - time_before > _REST_WINDOW_S)
        return cpu_seconds(self.broker) - cpu_before <= 0.1 * _REST_WINDOW_S

    def assert_unharmed(self) -> None:
        assert self.broker.is_running, "the broker is gone"
        used_cpu_s = self.used_cpu_s()
        self._assert_served_soon(self._old_client)
        with RawClient(self.broker.address, timeout=ANSWER_TIMEOUT_S) as new_client:
            self._assert_served_soon(new_client)
        eventually(self._has_its_descriptors, message="descriptors were not given back")
        if isinstance(self.broker, Broker):  # a JVM's memory, log and compiler are not ours to judge
            assert used_cpu_s <= self.cpu_limit_s, f"{used_cpu_s:.2f} s of CPU time"
            eventually(self._is_small_enough, message=f"more than {self.growth_bytes} bytes larger than before")
            assert not (signs := self._log.signs_of_a_bug()), signs

    def close(self) -> None:
        self._old_client.close()

    def _assert_served_soon(self, client: RawClient) -> None:
        elapsed_s = _served_after_s(client)
        if elapsed_s >= GOOD_CLIENT_S:  # once may be the machine, which serves others too
            elapsed_s = _served_after_s(client)
        assert elapsed_s < GOOD_CLIENT_S, f"others were served after {elapsed_s:.2f} s"

    def _has_its_descriptors(self) -> bool:
        now = open_descriptors(self.broker)
        assert len(now) <= len(self._descriptors), sorted(set(now) - set(self._descriptors))
        return True

    def _is_small_enough(self) -> bool:
        assert self.grown_bytes() <= self.growth_bytes, f"{self.grown_bytes() / MIB:.1f} MiB"
        return True


def _served_after_s(client: RawClient) -> float:
    started = time.monotonic()
    produce_and_fetch(client)
    return time.monotonic() - started


@contextmanager
def unharmed(broker: BrokerProcess, *, growth_bytes: int = 16 * MIB) -> Iterator[Vitals]:
    """Whatever happens in the block, the broker is well after it."""
    with closing(Vitals(broker, growth_bytes=growth_bytes)) as vitals:
        yield vitals
        vitals.assert_unharmed()


def ensure_bystander_topic(client: RawClient) -> None:
    if fetch(client, BYSTANDER_TOPIC, min_bytes=0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        # Acknowledged from the page cache: how soon others are served must not depend on the disk of the moment.
        create_usable_topic(client, BYSTANDER_TOPIC, flush_messages=2**63 - 1)


def produce_and_fetch(client: RawClient) -> None:
    """Raises TimeoutError when the broker does not answer."""
    value = f"written at {time.time_ns()}".encode()

    produced = produce(client, BYSTANDER_TOPIC, a_batch(value))
    assert produced.error_code == 0, produced
    fetched = fetch(client, BYSTANDER_TOPIC, offset=produced.base_offset)

    assert fetched.error_code == 0, fetched
    assert isinstance(fetched.records, memoryview)
    assert value in bytes(fetched.records), "what was acknowledged is not there"


def open_descriptors(broker: BrokerProcess) -> list[str]:
    """Without files of the data directory, which are opened on demand and kept as a cache."""
    directory = Path(f"/proc/{broker.pid}/fd")
    targets = []
    for entry in os.listdir(directory):
        try:
            targets.append(os.readlink(directory / entry))
        except FileNotFoundError:  # closed while we were looking
            continue
    inside = str(broker.data) + os.sep
    return [target for target in targets if not target.startswith(inside)]


def cpu_seconds(broker: BrokerProcess) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]  # utime and stime, as counted in proc(5) after the command
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def peak_resident_bytes(broker: BrokerProcess) -> int:
    """Since the last `forget_peak`."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this kernel does not tell VmHWM")


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
