"""`penstock up`: a cluster on one machine, as somebody at a terminal or a script meets it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.cli.flags import parse
from penstock.cli.up import OPTIONS, cluster_plan
from penstock.core.config_values import ConfigError
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.runtime.stop_signals import TOGETHER_S
from penstock.server.supervisor import LONGEST_PAUSE_S, SETTLED_AFTER_S, ClusterPlan, Pauses
from tests.cli.conftest import QuickTools, Tools
from tests.testkit import RawClient, eventually, lasting_port
from tests.testkit.up import Up

pytestmark = pytest.mark.xdist_group("up")  # its tests share a cluster

SESSION_MS = 1_000
HOST = "127.0.0.2"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three brokers, of which a test may harm one if it waits until all are back. Ctrl-C ends them.

    They are on another address than the default.
    """
    settings = ["--host", HOST, "--set", f"broker.session.timeout.ms={SESSION_MS}", "--set", "num.partitions=5"]
    with Up.start(tmp_path_factory.mktemp("up"), "--brokers", "3", *settings) as up:
        yield up


def address_of(broker: dict[str, Any]) -> tuple[str, int]:
    host, _, port = broker["kafka"].rpartition(":")
    return host, int(port)


def known_to(broker: dict[str, Any]) -> dict[int, tuple[str, int]]:
    """The brokers that a client is told of, and their addresses."""
    with RawClient(address_of(broker)) as client:
        answer = client.exchange(DescribeClusterRequest(), 1, DescribeClusterResponse)
    return {each.broker_id: (each.host, each.port) for each in answer.brokers}


def test_given_three_brokers_then_the_ready_file_names_all_and_each_knows_the_others(shared: Up) -> None:
    brokers = shared.brokers()

    addresses = {broker["node_id"]: address_of(broker) for broker in brokers}
    assert sorted(addresses) == [1, 2, 3]
    eventually(lambda: all(known_to(broker) == addresses for broker in brokers))
    for broker in brokers:
        with urlopen(f"http://{broker['http']}/readyz", timeout=10) as answer:
            assert answer.status == 200
        assert (shared.data / f"broker-{broker['node_id']}" / "meta.properties").exists()


def test_given_a_host_then_all_brokers_are_there_and_serve_clients(shared: Up, topic_name: str) -> None:
    brokers = shared.brokers()
    tools = QuickTools(brokers[0]["kafka"])

    tools.output("produce", topic_name, stdin=b"a\nb\n")

    # Its partitions are five: in which order they are read is nobody's promise.
    assert sorted(tools.lines("consume", topic_name, "--from-beginning")) == ["a", "b"]
    assert {each[name].rpartition(":")[0] for each in brokers for name in ("kafka", "http")} == {HOST}


def test_given_three_brokers_then_all_they_say_comes_as_lines_that_begin_with_a_name(shared: Up) -> None:
    all_ready = re.compile(r"^penstock \| \S+ INFO +all brokers are ready kafka=\S+,\S+,\S+$", re.MULTILINE)
    eventually(lambda: all_ready.search(shared.output()))
    output = shared.output()

    for number in (1, 2, 3):
        assert re.search(rf"^broker-{number} \| penstock \S+ ready: kafka ", output, re.MULTILINE)
    assert [line for line in output.splitlines() if not re.match(r"(broker-[123]|penstock) \| ", line)] == []


def has_replaced(up: Up, old: dict[str, Any]) -> bool:
    """Whether that broker is back, as another process at the same addresses, and nothing else is different."""
    others = [broker for broker in up.brokers() if broker["node_id"] != old["node_id"]]
    (new,) = [broker for broker in up.brokers() if broker["node_id"] == old["node_id"]] or [old]
    return len(others) == 2 and new["pid"] != old["pid"] and {**new, "pid": 0} == {**old, "pid": 0}


def test_given_a_broker_that_is_killed_then_the_ready_file_lacks_it_until_it_is_back_at_its_ports(shared: Up) -> None:
    victim = shared.brokers()[1]

    os.kill(victim["pid"], signal.SIGKILL)

    eventually(lambda: [broker["node_id"] for broker in shared.brokers()] == [1, 3])
    eventually(lambda: has_replaced(shared, victim), 20)
    assert 'a broker ended, starting it again broker=broker-2 exit="signal 9 (Killed)" in_s=1' in shared.output()
    assert len(known_to(shared.brokers()[1])) == 3


def test_given_a_broker_that_stands_still_past_its_session_then_it_is_killed_and_replaced(shared: Up) -> None:
    victim = shared.brokers()[2]

    os.kill(victim["pid"], signal.SIGSTOP)

    eventually(lambda: has_replaced(shared, victim), 20)
    assert "has lost its session and stands still, killing it broker=broker-3" in shared.output()


def test_given_ctrl_c_then_all_stop_cleanly_and_nothing_is_left(tmp_path: Path) -> None:
    with Up.start(tmp_path, "--brokers", "2") as up:
        brokers = up.brokers()
        os.kill(brokers[0]["pid"], signal.SIGSTOP)

        assert up.interrupt() == 0

        assert up.left_running() == set()
        assert not up.ready_path.exists()
        for broker in brokers:
            data = up.data / f"broker-{broker['node_id']}"
            assert (data / ".kafka_cleanshutdown").exists(), up.output()


def test_given_a_second_ctrl_c_then_brokers_that_take_their_time_are_killed(tmp_path: Path) -> None:
    with Up.start(tmp_path, "--brokers", "1") as up, RawClient(address_of(up.brokers()[0]), timeout=0.5) as client:
        # The broker waits, for a while, until clients have read their answers.
        request = client.request_header(ApiVersionsRequest.API_KEY, 0, 1)
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                client.send_bytes((len(request).to_bytes(4, "big") + request) * 1_000)
        up.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping signal=SIGTERM" in up.output())
        again_s = time.monotonic() + TOGETHER_S
        eventually(lambda: time.monotonic() > again_s)

        assert up.interrupt() == 1

        assert 'did not stop cleanly broker=broker-1 exit="signal 9 (Killed)"' in up.output()
        assert up.left_running() == set()


def test_given_a_supervisor_that_is_killed_then_its_broker_ends_even_one_that_stands_still(tmp_path: Path) -> None:
    with Up.start(tmp_path, "--brokers", "1") as up:
        os.kill(up.brokers()[0]["pid"], signal.SIGSTOP)

        up.kill()

        eventually(lambda: up.left_running() == set())


def test_given_a_broker_whose_parent_is_gone_already_then_it_does_not_start() -> None:
    finished = penstock("serve", "--parent", "1")

    assert finished.returncode == 1
    assert finished.stderr == "penstock serve: --parent: process 1 did not start this one, or has ended\n"


def test_given_a_port_that_is_in_use_then_the_command_ends_and_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        port = lasting_port()
        taken.bind(("127.0.0.1", port))

        finished = penstock("up", "--brokers", "2", "--data-dir", str(tmp_path / "cluster"), "--port", str(port - 1))

    assert finished.returncode == 1
    message = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert finished.stderr == f"penstock up: broker-2 did not start: {message}\n"
    assert f"broker-2 | penstock serve: {message}\n" in finished.stdout


def test_given_a_directory_that_is_in_use_or_not_a_clusters_then_refused(tmp_path: Path, shared: Up) -> None:
    before = shared.brokers()

    in_use = penstock("up", "--data-dir", str(shared.data), "--ready-file", str(shared.ready_path))
    of_a_broker = penstock("up", "--data-dir", str(shared.data / "broker-1"))

    assert (in_use.returncode, of_a_broker.returncode) == (1, 1)
    assert "is in use by another penstock up" in in_use.stderr
    assert "is the data directory of one broker" in of_a_broker.stderr
    assert shared.brokers() == before


def test_given_a_file_as_the_directory_then_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused = penstock("up", "--data-dir", str(tmp_path / "file"))

    assert (refused.returncode, refused.stderr) == (
        1,
        f"penstock up: {tmp_path}/file is a file, or in one: name a directory\n",
    )


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments], capture_output=True, text=True, timeout=60
    )


def test_given_help_then_it_shows_its_options_and_nothing_runs() -> None:
    shown = penstock("up", "--help").stdout

    assert [option.flag for option in OPTIONS if option.flag not in shown] == []
    assert " num.partitions = " in shown


# Plans


def a_plan(*arguments: str, **environment: str) -> ClusterPlan:
    return cluster_plan(parse("up", OPTIONS, arguments), environment)


def test_given_nothing_then_three_brokers_with_ports_in_a_row_and_free_ones_for_http() -> None:
    plan = a_plan()

    assert [(broker.name, broker.port, broker.http_port) for broker in plan.brokers] == [
        ("broker-1", 9092, 0),
        ("broker-2", 9093, 0),
        ("broker-3", 9094, 0),
    ]
    assert plan.brokers[2].arguments == ("--metadata=sqlite:penstock-data/metadata.db", "--set=node.id=3")


def test_given_options_then_they_are_passed_on_to_every_broker() -> None:
    plan = a_plan(
        "--brokers=2", "--port=0", "--http-port=80", "--host=127.0.0.2", "--set=num.partitions=2", "--insecure"
    )

    assert [(broker.port, broker.http_port) for broker in plan.brokers] == [(0, 80), (0, 81)]
    assert {"--host=127.0.0.2", "--set=num.partitions=2", "--insecure"} <= {*plan.brokers[1].arguments}


def test_given_a_store_then_ids_are_left_to_it_and_an_address_from_the_environment_stays_there() -> None:
    given, inherited = a_plan("--metadata=etcd://h/a"), a_plan(PENSTOCK_PENSTOCK_METADATA="etcd://u:secret@h/a")

    assert given.brokers[0].arguments == ("--metadata=etcd://h/a",)
    assert inherited.brokers[0].arguments == ()
    assert given.metadata_file is inherited.metadata_file is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--brokers=0"], '--brokers "0": expected a whole number from 1'),
        (["--brokers=x"], '--brokers "x": expected a whole number from 1'),
        (["--port=65534"], "--port 65534: there are no 3 ports from there on"),
        (["--port=9092", "--http-port=9094"], "with 3 brokers both want 9094"),
        (["--set=node.id=1"], "node.id would be the same for all brokers"),
        (["--set=penstock.internal.port=9192"], "penstock.internal.port would be the same for all brokers"),
        (["--set=num.partitons=1"], 'did you mean "num.partitions"?'),
        (
            [
                "--set=listeners=PLAINTEXT://127.0.0.1:1,B://127.0.0.1:2",
                "--set=listener.security.protocol.map=PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
            ],
            "listeners has several",
        ),
    ],
)
def test_given_what_no_cluster_can_have_then_refused_before_a_broker_starts(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        a_plan(*arguments)


def test_given_a_broker_that_ends_again_and_again_then_pauses_grow_until_it_has_run_for_a_while() -> None:
    pauses = Pauses()

    assert [pauses.next_s(1) for _ in range(7)] == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert [pauses.next_s(SETTLED_AFTER_S), pauses.next_s(0)] == [1, 2]


def test_given_a_broker_whose_directory_is_lost_then_up_says_how_to_go_on_and_that_works(
    tmp_path: Path, topic_name: str
) -> None:
    fast = ("--set", f"broker.session.timeout.ms={SESSION_MS}")
    with Up.start(tmp_path, "--brokers", "3", *fast) as up:
        tools = Tools(up.brokers()[0]["kafka"])
        tools.output("topic", "create", topic_name, "--replication-factor", 3)
        tools.output("produce", topic_name, stdin=b"a\nb\n")
        assert up.interrupt() == 0
    shutil.rmtree(up.data / "broker-2")

    refused = Up(tmp_path, "--brokers", "3", *fast)
    assert refused.process.wait(60) == 1
    assert "broker-2 did not start" in refused.output()
    assert "`penstock up --without 2` starts the others" in refused.output()

    with Up.start(tmp_path, "--brokers", "4", "--without", "2", *fast) as up:
        assert sorted(broker["node_id"] for broker in up.brokers()) == [1, 3, 4]
        tools = Tools(up.brokers()[0]["kafka"])
        tools.output("broker", "drain", 2, "--yes")
        tools.output("broker", "unregister", 2)
        assert tools.lines("consume", topic_name, "--from-beginning") == ["a", "b"]
        assert up.interrupt() == 0
    with Up.start(tmp_path, "--brokers", "4", *fast) as up:
        assert sorted(broker["node_id"] for broker in up.brokers()) == [1, 2, 3, 4]


@pytest.mark.parametrize("without", [["0"], ["4"], ["two"], ["1", "2", "3"]])
def test_given_brokers_to_leave_out_that_are_not_there_or_are_all_then_it_is_refused(
    tmp_path: Path, without: list[str]
) -> None:
    arguments = [f"--data-dir={tmp_path}", *(f"--without={each}" for each in without)]

    with pytest.raises(ConfigError, match="--without"):
        cluster_plan(parse("up", OPTIONS, arguments), {})
