"""The documentation that is written from tables is what the tables say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_docs.py"


def test_given_the_committed_pages_then_they_are_what_the_script_writes() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)

    assert checked.returncode == 0, f"{checked.stderr}\nrun: python scripts/generate_docs.py"
