"""HDFS as Hadoop has it, a namenode and a datanode, in a process of its own on loopback.

Everything in it goes with the process. Its client is in Spark's JVM, as on any cluster.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.testkit import eventually
from tests.testkit.java import LOG_TO_STDERR, PROJECT, require_jars

_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
# Of Spark's jars: with all of them it starts more slowly.
_JARS = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-*")
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 10


@contextlib.contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Its URL. Skips the asking test where the jars are out of reach."""
    require_jars("hdfs")
    directory.mkdir(parents=True, exist_ok=True)
    details, log = directory / "details.json", directory / "hdfs.log"
    java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", *LOG_TO_STDERR, "-cp", _class_path()]
    settings = ["-D", f"hdfs.minidfs.basedir={directory / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*java, _MAIN, "-format", "-datanodes", "1", *settings, "-writeDetails", str(details)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        port = eventually(lambda: _port(details, process, log), _START_TIMEOUT_S, "HDFS does not start")
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _class_path() -> str:
    theirs = Path(pyspark.__file__).parent / "jars"
    found = [jar for name in _JARS for jar in sorted(theirs.glob(f"{name}.jar"))]
    return ":".join(map(str, [*sorted((PROJECT / ".jars/hdfs").glob("*.jar")), *found]))


def _port(details: Path, process: subprocess.Popen[bytes], log: Path) -> int | None:
    """None as long as it is not ready. Its file may be there and not be whole."""
    if process.poll() is not None:
        raise RuntimeError(f"HDFS died: {log.read_text(errors='replace')[-2_000:]}")
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(json.loads(details.read_text())["namenode_port"])
    return None
