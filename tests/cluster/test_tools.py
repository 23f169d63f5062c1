"""The commands about the cluster while brokers die, which is when somebody needs them."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.cli.cluster_client import ClusterClient
from penstock.cli.connection import Cluster as Brokers
from penstock.controller.commands import ResourceType
from tests.cli.conftest import QuickTools
from tests.cluster.finding import a_pair, all_are_known, stored
from tests.testkit import Cluster, eventually

# So long that it cannot end while a test looks at a broker that is dead and has its session still.
LONG_SESSION_MS = 60_000


def test_given_a_broker_that_was_just_killed_when_the_cluster_is_described_then_it_is_the_one_without_an_answer(
    tmp_path: Path,
) -> None:
    with Cluster.start(tmp_path, brokers=2, broker_session_timeout_ms=LONG_SESSION_MS) as cluster:
        all_are_known(cluster)
        bootstrap = cluster.bootstrap
        in_use = ClusterClient(Brokers(bootstrap, timeout_s=10))
        in_use.view()
        cluster[1].kill()

        lines = QuickTools(bootstrap).lines("cluster", "describe")
        document = json.loads(QuickTools(bootstrap).output("cluster", "describe", "--json"))

        assert [each.split()[0] for each in lines if "no answer" in each] == ["1"]
        assert [(each["id"], each["alive"], each["answers"]) for each in document["brokers"]] == [
            (1, True, False),
            (2, True, True),
        ]
        # Also of a command that had begun with the broker that is dead now.
        assert [each.state for each in in_use.view().brokers] == ["no answer", "alive"]
        assert in_use.ongoing() == {}


def test_given_the_throttle_of_a_command_that_was_stopped_when_it_is_run_again_then_nothing_is_left_of_it(
    tmp_path: Path, topic_name: str
) -> None:
    with a_pair(tmp_path, topic_name) as cluster:
        tools = QuickTools(cluster.bootstrap)
        lists = {"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:2"}
        rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "1000"}
        ClusterClient(Brokers(cluster.bootstrap, timeout_s=10)).configure(
            {
                (ResourceType.TOPIC, topic_name): lists,
                (ResourceType.BROKER, "1"): rates,
                (ResourceType.BROKER, "2"): rates,
            }
        )

        tools.output("cluster", "rebalance", "--yes")
        assert stored(cluster, "broker-configs/1")["configs"] == rates  # somebody else may have set it

        tools.output("cluster", "rebalance", "--yes", "--throttle", "1k")

        assert [stored(cluster, f"broker-configs/{each}")["configs"] for each in (1, 2)] == [{}, {}]
        assert "throttled" not in str(stored(cluster, f"topics/{topic_name}")["configs"])


def test_given_a_leader_that_has_died_when_a_topic_is_described_then_what_is_known_is_shown(
    tmp_path: Path, topic_name: str
) -> None:
    with a_pair(tmp_path, topic_name) as cluster:
        cluster[1].kill()
        tools = QuickTools(cluster.bootstrap)

        def rows() -> list[list[str]]:
            return [line.split() for line in tools.lines("topic", "describe", topic_name)[-2:]]

        rows()  # at once, while the dead broker still leads
        eventually(lambda: [row[1] for row in rows()] == ["none", "2"], 30)

        assert [row[-2:] for row in rows()] == [["-", "-"], ["0", "0"]]
        document = json.loads(tools.output("topic", "describe", topic_name, "--json"))
        assert [each["end_offset"] for each in document[0]["partitions"]] == [None, 0]
