"""A store that speaks S3, in a process of its own on loopback: moto, which knows conditional requests.

Everything in it goes with the process. Hadoop's own client of S3 is in Spark's JVM, as on any cluster.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.testkit import eventually
from tests.testkit.java import require_jars

_LISTENS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_BUCKET = "tests"
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 10


class Store(NamedTuple):
    """`settings` are for Hadoop's client, `fs.s3a.*`."""

    url: str
    settings: Mapping[str, str]


@contextlib.contextmanager
def s3(directory: Path) -> Iterator[Store]:
    """With a bucket. Skips the asking test where the client's jars are out of reach."""
    require_jars("s3")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "s3.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = eventually(lambda: _address(process, log), _START_TIMEOUT_S, "S3 does not start")
        urllib.request.urlopen(urllib.request.Request(f"{address}/{_BUCKET}", method="PUT"), timeout=10).close()
        yield Store(f"s3a://{_BUCKET}", _settings(address))
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Empty as long as it is not ready."""
    said = log.read_text(errors="replace")
    if process.poll() is not None:
        raise RuntimeError(f"S3 died: {said[-2_000:]}")
    found = _LISTENS.search(said)
    return found[1] if found else ""


def _settings(address: str) -> dict[str, str]:
    return {
        "fs.s3a.endpoint": address,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": "secret",
        # States are uploaded by another client of Amazon's, which takes a "100 Continue" for the answer here.
        "fs.s3a.optimized.copy.from.local.enabled": "false",
    }
