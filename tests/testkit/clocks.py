"""Wall clocks of processes, which can be set while they run: Debian's libfaketime, told by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTICED_WITHIN_S = 1
_LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class WallClock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_by(0)

    @classmethod
    def made(cls, file: Path) -> WallClock:
        if _LIBRARY is None:
            pytest.skip("clocks that can be set need libfaketime: apt-get install libfaketime")
        return cls(file)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that goes by it. The clocks that count since boot stay as they are, as they do in the kernel."""
        return {
            "LD_PRELOAD": str(_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # Every look at a clock would read the file otherwise.
            "FAKETIME_CACHE_DURATION": str(NOTICED_WITHIN_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Timed waits on those clocks would end at once otherwise, and Python's threads wait so for their lock: a
            # start that checks logs in several threads took ten times as long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set_by(self, seconds: int) -> None:
        """In one step, from the true time."""
        unfinished = self._file.with_name(f"{self._file.name}.tmp")
        unfinished.write_text(f"{seconds:+d}\n")
        unfinished.replace(self._file)
