"""Faults of system calls in a running broker, by strace."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testkit import BrokerProcess, eventually


def strace_or_skip() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed: apt-get install strace")
    return path


def inject(strace: str, broker: BrokerProcess, fault: str) -> subprocess.Popen[bytes]:
    """Attach to the running broker; returns when the fault is armed."""
    call = fault.partition(":")[0]
    tracer = subprocess.Popen(
        [strace, "-f", "-q", "-p", str(broker.pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}"],
        stderr=subprocess.PIPE,
    )

    def is_traced() -> bool:
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"strace cannot attach here: {tracer.stderr.read().decode().strip()}")
        tasks = Path(f"/proc/{broker.pid}/task")
        return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks.iterdir())

    eventually(is_traced, 10, "strace did not attach")
    return tracer
