"""Histories in files: what a process wrote before it was killed is read, and nothing is made of a damaged file."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import FULL
from tests.history.checker import check
from tests.history.findings import Anomaly, report
from tests.history.reading import DamagedHistory, read_history
from tests.history.recording import HistoryFile, Recorder
from tests.history.simulated import Cluster


def test_given_processes_with_files_when_read_then_they_are_one_history(tmp_path: Path) -> None:
    producer = Recorder("producer", HistoryFile(tmp_path, "producer").append, is_idempotent=True)
    line = producer.writing("t", 0)
    producer.written(line, "ok", 0)
    consumer = Recorder("consumer", HistoryFile(tmp_path, "consumer").append)
    consumer.positioned(consumer.now(), ("t", 0, 0))
    consumer.polled(consumer.now(), [])
    consumer.reached_end(("t", 0, 0), is_final=True)

    (finding,) = check(read_history(tmp_path))

    assert finding.anomaly is Anomaly.LOST_WRITE
    assert (tmp_path / "producer.history").read_text().splitlines()[line - 1].startswith('{"event":"write"')


def test_given_a_process_killed_in_the_middle_of_a_line_when_read_then_that_line_was_never_written(
    tmp_path: Path,
) -> None:
    producer = Recorder("producer", HistoryFile(tmp_path, "producer").append)
    line = producer.writing("t", 0)
    path = tmp_path / "producer.history"
    path.write_bytes(path.read_bytes() + b'{"event":"written","wri')

    history = read_history(tmp_path)

    assert history.writes[producer.id_of(line)].outcome == "unknown"


@pytest.mark.parametrize("text", ['{"event":"write"}\n', '{"event":"poll","begin":1,"end":2,"records":[]}\n'])
def test_given_a_file_that_no_process_wrote_when_read_then_it_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.history").write_text(text)

    with pytest.raises(DamagedHistory, match=r"odd\.history:1"):
        read_history(tmp_path)


@pytest.mark.timeout(300)
def test_given_many_events_when_checked_then_it_takes_seconds(tmp_path: Path) -> None:
    cluster = Cluster(random.Random(7))
    cluster.run(1_600_000 if FULL else 80_000)
    for process, events in cluster.events.items():
        file = HistoryFile(tmp_path, process)
        for event in events:
            file.append(event)
        file.close()
    begin = time.process_time()

    history = read_history(tmp_path)
    findings = check(history)

    took_s = time.process_time() - begin
    print(f"{history.event_count} events in {took_s:.1f} s")
    assert not findings, report(findings)
    # Twice what a busy machine needs; a check that is quadratic takes minutes.
    assert took_s < 20 * max(1, history.event_count / 1_000_000)
