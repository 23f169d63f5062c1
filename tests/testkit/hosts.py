"""Hosts on one machine: network namespaces behind a bridge, whose packets to each other can be dropped.

What is dropped is dropped silently, as by a broken switch: nobody is told, and only deadlines notice. It is dropped
where it arrives, so a cut in one direction leaves the other as it was. The machine itself is on the bridge too: that is
where clients are.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import pytest

# Names of interfaces have at most 15 characters.
_NUMBERS = itertools.count(os.getpid() * 10 % 1_000_000)


class Host:
    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address

    @property
    def launcher(self) -> tuple[str, ...]:
        """In front of a command that is to run there; the process is the command's own."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}", "--")

    def deaf_to(self, others: Sequence[str]) -> None:
        for address in others:
            _run(*self.launcher, "iptables", "-A", "INPUT", "-s", address, "-j", "DROP")

    def hears_all(self) -> None:
        _run(*self.launcher, "iptables", "-F", "INPUT")


class Hosts:
    """Use as `with Hosts.made("a", "b") as hosts: hosts.cut("a", "b")`; nothing of them outlives the block."""

    def __init__(self, names: Sequence[str]) -> None:
        self._number = next(_NUMBERS)
        self._bridge = f"ps{self._number}"
        # Of the addresses that are set aside for tests of networks (RFC 2544).
        third = random.SystemRandom().randrange(255)
        self._network = ipaddress.ip_network(f"198.18.{third}.0/24")
        self.clients = str(self._network[254])
        self._hosts = {
            name: Host(name, f"{self._bridge}-{index}", str(self._network[index]))
            for index, name in enumerate(names, 1)
        }

    @classmethod
    def made(cls, *names: str) -> Self:
        for tool in ("ip", "nsenter", "iptables"):
            if shutil.which(tool) is None:
                pytest.skip(f"networks of their own need {tool}: apt-get install iproute2 iptables")
        hosts = cls(names)
        try:
            hosts._make()
        except subprocess.CalledProcessError as error:
            hosts._remove()
            pytest.skip(f"no networks of their own here: {error.stderr.decode().strip()}")
        return hosts

    def _make(self) -> None:
        bridge = self._bridge
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.clients}/{self._network.prefixlen}", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for host in self._hosts.values():
            namespace = host.namespace
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", namespace, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "set", namespace, "master", bridge, "up")
            within = ("ip", "-n", namespace)
            _run(*within, "address", "add", f"{host.address}/{self._network.prefixlen}", "dev", "eth0")
            _run(*within, "link", "set", "eth0", "up")
            _run(*within, "link", "set", "lo", "up")
            host.hears_all()

    @property
    def names(self) -> list[str]:
        return list(self._hosts)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def cut(self, source: str, *destinations: str) -> None:
        """What `source` sends does not arrive there any more."""
        for destination in destinations:
            self[destination].deaf_to([self[source].address])

    def cut_both_ways(self, one: str, *others: str) -> None:
        self[one].deaf_to([self[other].address for other in others])
        self.cut(one, *others)

    def cut_from_clients(self, name: str) -> None:
        self[name].deaf_to([self.clients])

    def heal(self) -> None:
        for host in self._hosts.values():
            host.hears_all()

    @contextmanager
    def healed_afterwards(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.heal()

    def _remove(self) -> None:
        for host in self._hosts.values():
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
