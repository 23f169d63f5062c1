"""Every example of delivery runs as its reader would run it, and shows what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testkit import BrokerProcess

_PROJECT = Path(__file__).parents[2]
_TIMEOUT_S = 90


def _run(broker: BrokerProcess, name: str) -> str:
    command = [sys.executable, str(_PROJECT / "examples" / f"{name}.py"), "--bootstrap-server", broker.bootstrap]
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT / "src")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def _named(shown: str, label: str) -> list[str]:
    """The names in the list that a line `label: [...]` shows."""
    line = re.search(rf"^{label}: \[(.*)\]$", shown, re.MULTILINE)
    assert line is not None, shown
    return re.findall(r"'([^']+)'", line[1])


def test_given_at_least_once_when_a_worker_dies_then_nothing_is_lost_and_something_comes_twice(
    broker: BrokerProcess,
) -> None:
    shown = _run(broker, "at_least_once")

    assert "died after 7 orders, exit code 1" in shown
    assert _named(shown, "lost") == []
    assert "order-6" in _named(shown, "processed twice")


def test_given_at_most_once_when_a_worker_dies_then_something_is_lost_and_nothing_comes_twice(
    broker: BrokerProcess,
) -> None:
    shown = _run(broker, "at_most_once")

    assert "died after 7, exit code 1" in shown
    assert "reading-7" in _named(shown, "lost")
    assert _named(shown, "processed twice") == []


def test_given_exactly_once_when_a_copier_dies_then_nothing_is_lost_and_nothing_comes_twice(
    broker: BrokerProcess,
) -> None:
    shown = _run(broker, "exactly_once")

    assert "died after 400 orders, exit code 1" in shown
    assert "went on, exit code 0" in shown
    assert _named(shown, "lost") == []
    assert _named(shown, "copied twice") == []
    (never_committed,) = re.findall(r"never committed: (\d+)", shown)
    assert int(never_committed) > 0


def test_given_one_group_when_several_work_then_each_message_goes_to_one(broker: BrokerProcess) -> None:
    shown = _run(broker, "point_to_point")

    shares = [int(share) for share in re.findall(r"did (\d+) tasks", shown)]
    (published,) = re.findall(r"published: (\d+)", shown)
    assert len(shares) == 3 and all(shares)
    assert f"done by exactly one worker: {published}\n" in shown
    assert sum(shares) == int(published)


def test_given_a_group_each_when_published_then_every_message_goes_to_all(broker: BrokerProcess) -> None:
    shown = _run(broker, "publish_subscribe")

    assert shown.count("received: two pizzas, a salad, three beers\n") == 3


def test_given_messages_consumed_when_replayed_then_they_come_again(broker: BrokerProcess) -> None:
    shown = _run(broker, "replay")

    assert "read: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" in shown
    assert "after seeking to 5: [5, 6, 7, 8, 9]\n" in shown
    assert "after resetting the group to 0: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" in shown


def test_given_the_programs_of_the_guide_when_run_then_they_work(
    broker: BrokerProcess, tmp_path: Path, topic_name: str
) -> None:
    guide = (_PROJECT / "docs" / "sdk.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    whole = [program for program in programs if program.startswith(("from", "import"))]

    for number, program in enumerate(whole):
        script = tmp_path / f"program_{number}.py"
        script.write_text(program.replace("127.0.0.1:9092", broker.bootstrap).replace("orders", topic_name))
        environment = {**os.environ, "PYTHONPATH": str(_PROJECT / "src")}
        ended = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, program + ended.stderr
        assert "two pizzas" in ended.stdout

    if not whole:
        pytest.fail("docs/sdk.md shows no program")
