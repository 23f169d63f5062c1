"""`penstock cluster` and `penstock broker` against one broker; in tests/cluster/test_growth.py they move partitions."""

from __future__ import annotations

import json

import pytest
import typer
from tests.cli.conftest import Tools
from tests.testkit.broker_process import BrokerProcess

from penstock.cli.cluster_view import BrokerView, ClusterView, PartitionView, print_cluster, print_plan
from penstock.cli.throttling import parse_rate
from penstock.controller.balance import Move
from penstock.core.ids import BrokerId, TopicPartition

ORDERS = TopicPartition("orders", 0)
B1, B2, B3 = map(BrokerId, (1, 2, 3))


def test_given_a_broker_when_the_cluster_is_described_then_it_is_the_controller_and_nothing_is_wrong(
    quick: Tools, broker: BrokerProcess, topic: str
) -> None:
    quick.output("topic", "create", topic, "--partitions", 3)

    document = json.loads(quick.output("cluster", "describe", "--json"))
    lines = quick.lines("cluster", "describe")

    (row,) = document["brokers"]
    assert document["controller"] == row["id"]
    assert row["address"] == broker.bootstrap
    assert row["leaders"] == row["replicas"] == document["partitions"] >= 3
    assert document["under_replicated"] == document["offline"] == document["moving"] == []
    assert lines[0].startswith(f"cluster {document['cluster_id']}, controller {row['id']}")
    assert lines[2].split()[:4] == [str(row["id"]), broker.bootstrap, "-", "alive"]


def test_given_one_broker_when_rebalanced_then_there_is_nothing_to_do(quick: Tools) -> None:
    finished = quick.run("cluster", "rebalance", "--yes")

    assert finished.returncode == 0
    assert b"nothing to move" in finished.stderr


def test_given_one_broker_when_it_is_drained_then_that_is_refused_and_nothing_has_changed(
    quick: Tools, topic: str
) -> None:
    quick.output("topic", "create", topic)
    before = json.loads(quick.output("cluster", "describe", "--json"))
    (row,) = before["brokers"]

    refusal = quick.refusal("broker", "drain", row["id"], "--yes")

    assert "too few" in refusal
    assert "INVALID_REPLICATION_FACTOR" in refusal
    assert json.loads(quick.output("cluster", "describe", "--json")) == before


def test_given_a_broker_that_is_unknown_or_alive_when_it_is_to_go_then_the_reason_is_said(quick: Tools) -> None:
    (row,) = json.loads(quick.output("cluster", "describe", "--json"))["brokers"]

    refusals = quick.each_refusal(
        ("broker", "drain", 4711), ("broker", "unregister", 4711), ("broker", "unregister", row["id"])
    )

    assert "there is no broker 4711" in refusals[0]
    assert "BROKER_ID_NOT_REGISTERED" in refusals[1]
    assert "stop it first" in refusals[2]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1000", 1000), ("500k", 512_000), ("10MB", 10 << 20), ("1.5 GiB/s", 3 << 29), ("2mib", 2 << 20)],
)
def test_given_a_rate_then_it_is_read_as_bytes_a_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "10 apples", "1e9"])
def test_given_what_is_no_rate_then_it_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        parse_rate(text)

    assert "--throttle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("partition", "lacks"),
    [
        (PartitionView(ORDERS, 1, (B1, B2), (1, 2)), False),
        (PartitionView(ORDERS, 1, (B1, B2), (1,)), True),
        (PartitionView(ORDERS, 1, (B1, B3), (1, 2), adding=(B3,), leaving=(B2,)), False),
        (PartitionView(ORDERS, 1, (B1, B3), (1,), adding=(B3,), leaving=(B2,)), True),
    ],
)
def test_given_a_partition_that_moves_then_it_lacks_what_it_had_and_not_what_it_gets(
    partition: PartitionView, lacks: bool
) -> None:
    assert partition.lacks_replicas is lacks


def test_given_a_partition_that_nobody_leads_then_it_is_named_even_if_all_its_replicas_are_in_sync(
    capsys: pytest.CaptureFixture[str],
) -> None:
    brokers = [BrokerView(each, "localhost:9092", None, each == B1, each == B1, False, "here") for each in (B1, B2)]
    partitions = [PartitionView(TopicPartition("single", 0), None, (B2,), (2,)), PartitionView(ORDERS, 1, (B1,), (1,))]

    print_cluster(ClusterView("cluster", 1, brokers, partitions))

    said = capsys.readouterr().out
    assert "2 partitions: 0 under-replicated, 1 without a leader" in said
    assert said.splitlines()[-1].split() == ["single-0", "none", "2", "2"]


def test_given_a_broker_that_is_away_then_stranded_is_what_nobody_else_has_in_sync() -> None:
    brokers = [BrokerView(each, "localhost:9092", None, each != B2, each != B2, False, "here") for each in (B1, B2, B3)]
    single, behind, soon, led, other = (
        PartitionView(TopicPartition(name, 0), *rest)
        for name, *rest in (
            ("single", None, (B2,), (2,)),
            ("behind", None, (B1, B2), (2,)),
            ("soon", None, (B1, B2), (1, 2)),
            ("led", 1, (B1, B2), (1,)),
            ("other", None, (B3,), ()),
        )
    )

    view = ClusterView("cluster", 1, brokers, [single, behind, soon, led, other])

    assert view.stranded(B2) == [single, behind]


def test_given_one_of_each_then_what_is_said_of_it_is_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = [BrokerView(each, "localhost:9092", None, True, True, False, "here") for each in (B1, B2)]
    view = ClusterView("cluster", 1, brokers, [PartitionView(ORDERS, 1, (B1,), (1,))])

    print_cluster(view)
    print_plan(view, [Move(ORDERS, (B1,), (B2,))], {ORDERS: 1})

    said = capsys.readouterr().out
    assert "1 partition: 0 under-replicated" in said
    assert said.endswith("1 partition changes, 1 replica is copied (1 B)\n")
