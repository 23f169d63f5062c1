"""What the kernel says about a broker's process: processor time, memory, descriptors."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of all threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return (user_ticks + system_ticks) / TICKS_PER_S


def resident_mb(pid: int) -> float:
    return _status_kib(pid, "VmRSS") * 1024 / 1e6


def peak_resident_mb(pid: int) -> float:
    """The highest since the process started or `forget_peak` was called."""
    return _status_kib(pid, "VmHWM") * 1024 / 1e6


def forget_peak(pid: int) -> None:
    reset_peak = "5"
    Path(f"/proc/{pid}/clear_refs").write_text(reset_peak)


def descriptors_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_maps_count(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise LookupError(field)
