"""A process that ends when the one that started it does, however that one ends.

The kernel sees to it: it works for a process that is stopped or hangs, and needs nobody to watch a pipe. Linux counts
the thread that started the process, so a parent starts its children from a thread that lasts, such as its main one.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


class ParentGone(Exception):
    """Whoever started this process is not there any more."""


def die_with_parent(parent_pid: int) -> None:
    """Raises ParentGone when that is not, or no longer, the process that started this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # It may have ended before the kernel was asked. Then this process has been given another parent.
    if os.getppid() != parent_pid:
        raise ParentGone(f"process {parent_pid} did not start this one, or has ended")
