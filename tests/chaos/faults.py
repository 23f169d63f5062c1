"""Faults of system calls in a running process, by strace."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testkit import eventually


def strace_or_skip() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed: apt-get install strace")
    return path


def inject(strace: str, pid: int, fault: str) -> subprocess.Popen[bytes]:
    """Attach to a running process; returns when the fault is armed."""
    call = fault.partition(":")[0]
    tracer = subprocess.Popen(
        [strace, "-f", "-q", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}"],
        stderr=subprocess.PIPE,
    )

    def is_traced() -> bool:
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            if tracer.returncode:
                pytest.skip(f"strace cannot attach here: {tracer.stderr.read().decode().strip()}")
            return True  # the fault has come already, and the process is gone
        try:
            tasks = Path(f"/proc/{pid}/task").iterdir()
            return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)
        except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
            return False

    eventually(is_traced, 10, "strace did not attach")
    return tracer
