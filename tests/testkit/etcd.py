"""A cluster of etcd as real processes on loopback, whose members can be killed, paused and started again.

Administration goes through etcd's own JSON gateway, so that nothing of the broker is needed to set a test up.
"""

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.testkit.hosts import Host
from tests.testkit.waiting import eventually, lasting_port

START_TIMEOUT_S = 30
REQUEST_TIMEOUT_S = 5
ROOT_PASSWORD = "root's secret"


@dataclass(frozen=True)
class Certificates:
    """An authority, and one certificate for 127.0.0.1 that serves members and clients alike."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> Self:
        made = cls(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
        subject, ca_key = ["-subj", "/CN=penstock test"], directory / "ca-key.pem"
        new_key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
        _openssl("req", "-x509", *new_key, *subject, "-keyout", ca_key, "-out", made.ca)
        extensions = (
            "subjectAltName=IP:127.0.0.1",
            "extendedKeyUsage=serverAuth,clientAuth",
            "basicConstraints=CA:FALSE",
        )
        _openssl(
            "req",
            "-x509",
            *new_key,
            *subject,
            *(word for extension in extensions for word in ("-addext", extension)),
            *("-keyout", made.key, "-out", made.cert, "-CA", made.ca, "-CAkey", ca_key),
        )
        return made


class EtcdMember:
    def __init__(
        self, name: str, directory: Path, certificates: Certificates | None = None, host: Host | None = None
    ) -> None:
        self.name = name
        self._address = "127.0.0.1" if host is None else host.address
        self._launcher = () if host is None else host.launcher
        self.client_port, self.peer_port = lasting_port(), lasting_port()
        self._data = directory / name
        self._log = directory / f"{name}.log"
        self._certificates = certificates
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{self._address}:{self.client_port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._certificates else 'http'}://{self.endpoint}"

    @property
    def peer(self) -> str:
        return f"{self.name}={self._peer_url}"

    @property
    def _peer_url(self) -> str:
        return f"http://{self._address}:{self.peer_port}"

    def start(self, peers: list[str]) -> None:
        command = [*self._launcher, "etcd"]
        command += ["--name", self.name, "--data-dir", str(self._data), "--initial-cluster", ",".join(peers)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self._peer_url, "--initial-advertise-peer-urls", self._peer_url]
        command += ["--logger", "zap", "--log-outputs", "stderr"]
        if self._certificates is not None:
            command += ["--cert-file", str(self._certificates.cert), "--key-file", str(self._certificates.key)]
            command += ["--trusted-ca-file", str(self._certificates.ca), "--client-cert-auth"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def pause(self) -> None:
        """Returns when it stands still: on a busy machine its threads go on for a moment."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])

    def ask(self, path: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request to the JSON gateway; HTTPError when etcd refuses."""
        context = None
        if self._certificates is not None:
            context = ssl.create_default_context(cafile=self._certificates.ca)
            context.load_cert_chain(self._certificates.cert, self._certificates.key)
        body = None if request is None else json.dumps(request).encode()
        with urlopen(self.url + path, body, timeout=REQUEST_TIMEOUT_S, context=context) as answer:
            answered: dict[str, Any] = json.load(answer)
        return answered

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} does not run"
        return self._process


class EtcdCluster:
    """Use as `with EtcdCluster.start(directory) as etcd: ...`; nothing of it outlives the block."""

    def __init__(self, members: Sequence[EtcdMember], certificates: Certificates | None = None) -> None:
        self.certificates = certificates
        self.members = list(members)

    @classmethod
    def start(cls, directory: Path, *, members: int = 3, certificates: Certificates | None = None) -> Self:
        return cls.start_on(
            [EtcdMember(f"etcd{number}", directory, certificates) for number in range(members)], certificates
        )

    @classmethod
    def start_on(cls, members: Sequence[EtcdMember], certificates: Certificates | None = None) -> Self:
        if shutil.which("etcd") is None:
            pytest.skip("etcd is not installed: apt-get install etcd-server")
        cluster = cls(members, certificates)
        try:
            cluster.start_missing()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def start_missing(self) -> None:
        """Starts the members that do not run, and returns when all of them take part."""
        peers = [member.peer for member in self.members]
        for member in self.members:
            if not member.is_running:
                member.start(peers)
        for member in self.members:
            eventually(partial(_is_healthy, member), START_TIMEOUT_S, f"{member.name} is not healthy")

    def address(self, prefix: str, *, of: Sequence[EtcdMember] = (), credentials: str = "") -> str:
        """Of all members, or of some; a store asks the first one first."""
        endpoints = ",".join(member.endpoint for member in of or self.members)
        if self.certificates is None:
            return f"etcd://{credentials}{endpoints}/{prefix}"
        files = f"ca={self.certificates.ca}&cert={self.certificates.cert}&key={self.certificates.key}"
        return f"etcds://{credentials}{endpoints}/{prefix}?{files}"

    @property
    def leader(self) -> EtcdMember:
        return next(member for member in self.members if _is_leader(member))

    @property
    def followers(self) -> list[EtcdMember]:
        leader = self.leader
        return [member for member in self.members if member is not leader]

    def compact(self, revision: int) -> None:
        """Forget what happened before the revision."""
        self._any_member().ask("/v3/kv/compaction", {"revision": revision, "physical": True})

    def put(self, key: str, value: bytes) -> None:
        request = {"key": _base64(key.encode()), "value": _base64(value)}
        self._any_member().ask("/v3/kv/put", request)

    def values(self, prefix: str) -> dict[str, bytes]:
        """All that is under the prefix, by what follows it."""
        request = {"key": _base64(f"{prefix}/".encode()), "range_end": _base64(f"{prefix}0".encode())}
        found = self._any_member().ask("/v3/kv/range", request).get("kvs", [])
        pairs = ((base64.b64decode(each["key"]).decode(), base64.b64decode(each["value"])) for each in found)
        return {key.removeprefix(f"{prefix}/"): value for key, value in pairs}

    def require_passwords(self, user: str, password: str, prefix: str) -> None:
        """From now on only `user` (with what is under the prefix) and root are let in."""
        member = self.members[0]
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        permission = {"permType": "READWRITE", "key": _base64(prefix.encode()), "range_end": _base64(end.encode())}
        member.ask("/v3/auth/user/add", {"name": "root", "password": ROOT_PASSWORD})
        member.ask("/v3/auth/role/add", {"name": "root"})
        member.ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        member.ask("/v3/auth/user/add", {"name": user, "password": password})
        member.ask("/v3/auth/role/add", {"name": "penstock"})
        member.ask("/v3/auth/role/grant", {"name": "penstock", "perm": permission})
        member.ask("/v3/auth/user/grant", {"user": user, "role": "penstock"})
        member.ask("/v3/auth/enable", {})

    @contextmanager
    def healed_afterwards(self) -> Iterator[None]:
        """However the block ends, all members run again."""
        try:
            yield
        finally:
            for member in self.members:
                if member.is_running:
                    member.resume()
            self.start_missing()

    def stop(self) -> None:
        for member in self.members:
            if member.is_running:
                member.kill()

    def _any_member(self) -> EtcdMember:
        return next(member for member in self.members if member.is_running)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _is_healthy(member: EtcdMember) -> bool:
    """Whether it has a leader and commits, as it says itself; this asks for no password."""
    assert member.is_running, member.log_tail()
    try:
        return bool(member.ask("/health")["health"] == "true")
    except (URLError, OSError):
        return False


def _is_leader(member: EtcdMember) -> bool:
    if not member.is_running:
        return False
    status = member.ask("/v3/maintenance/status", {})
    return bool(status["leader"] == status["header"]["member_id"])


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
