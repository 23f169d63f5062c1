"""The commands about the cluster while brokers die, which is when somebody needs them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from penstock.cli.cluster_client import ClusterClient
from penstock.controller.commands import ResourceType
from penstock.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.cli.conftest import QuickTools, Tools
from tests.cluster.finding import a_pair, all_are_known, controller_of, create_topic_over, stored, write_to_leader
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, produce

# So long that it cannot end while a test looks at a broker that is dead and has its session still.
LONG_SESSION_MS = 60_000
# A byte a second lets one fetch through, and then none for as long as a test lasts.
SMALL_FETCHES = {"replica.fetch.max.bytes": 1_000}


def test_given_a_broker_that_was_just_killed_when_the_cluster_is_described_then_it_is_the_one_without_an_answer(
    tmp_path: Path,
) -> None:
    with Cluster.start(tmp_path, brokers=2, broker_session_timeout_ms=LONG_SESSION_MS) as cluster:
        all_are_known(cluster)
        bootstrap = cluster.bootstrap
        in_use = ClusterClient.of(bootstrap, timeout_s=10)
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
        ClusterClient.of(cluster.bootstrap, timeout_s=10).configure(
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


def test_given_brokers_that_were_just_killed_when_they_are_unregistered_then_that_waits_for_the_end_of_their_sessions(
    tmp_path: Path,
) -> None:
    with Cluster.start(tmp_path, brokers=2, broker_session_timeout_ms=LONG_SESSION_MS) as cluster:
        cluster.add(3, **{"broker.session.timeout.ms": 3_000})
        all_are_known(cluster)
        for each in (2, 3):
            cluster[each].kill()
        tools = QuickTools(cluster.bootstrap)

        assert tools.output("broker", "unregister", 3) == "unregistered broker 3\n"
        refusal = tools.refusal("broker", "unregister", 2, "--timeout", 1)

        assert "broker 2 does not answer, but its session has not ended yet" in refusal
        assert "up to 60 s (broker.session.timeout.ms)" in refusal
        assert "again" in refusal
        assert "is alive" not in refusal


def test_given_a_controller_that_was_just_killed_when_topics_are_asked_for_then_others_answer_and_the_next_creates_one(
    tmp_path: Path, topic_name: str
) -> None:
    """librdkafka sends such requests to the broker that Metadata calls the controller, and waits for it."""
    with Cluster.start(tmp_path, brokers=3, broker_session_timeout_ms=3_000) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (2, 3))
        assert controller_of(cluster) == 1
        cluster[1].kill()
        tools = QuickTools(cluster.bootstrap)

        listed = tools.lines("topic", "list", "--timeout", 10)
        created = tools.output("topic", "create", f"{topic_name}-new", "--timeout", 20)

        assert listed[1].split() == [topic_name, "1", "2"]
        assert created == f"created {topic_name}-new\n"


def stopped(cluster: Cluster, *arguments: object) -> None:
    """A command that was interrupted as soon as something moved, which goes on."""
    tools = Tools(cluster.bootstrap)
    with subprocess.Popen(tools.command(*arguments), env=tools.environment, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        eventually(ClusterClient.of(cluster.bootstrap, 10).ongoing, 30)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130, running.stderr.read().decode()


def fill(cluster: Cluster, *topics: str) -> None:
    """With more than one fetch can hold."""
    for topic in topics * 3:
        write_to_leader(cluster, topic, b"x" * 1_000)


def rates(cluster: Cluster) -> list[str | None]:
    found = [stored(cluster, f"broker-configs/{each}")["configs"] for each in cluster.ids]
    return [configs.get("leader.replication.throttled.rate") for configs in found]


def throttled_replicas(cluster: Cluster, topic: str) -> dict[str, str]:
    configs = stored(cluster, f"topics/{topic}")["configs"]
    return {key: value for key, value in configs.items() if "throttled" in key}


def test_given_moves_under_way_when_the_command_comes_again_with_another_throttle_then_that_is_theirs(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=1, **SMALL_FETCHES) as cluster:
        topics = [f"{topic_name}-{each}" for each in "ab"]
        for topic in topics:
            create_topic_over(cluster, topic, (1,))
        fill(cluster, *topics)
        cluster.add(2)
        all_are_known(cluster)
        for command in (("cluster", "rebalance"), ("broker", "drain", 1)):
            stopped(cluster, *command, "--yes", "--throttle", "1")
            assert rates(cluster) == ["1", "1"]

            Tools(cluster.bootstrap).output(*command, "--yes", "--throttle", "100MB")

            assert ClusterClient.of(cluster.bootstrap, 10).ongoing() == {}
            assert rates(cluster) == [None, None]
            assert [throttled_replicas(cluster, topic) for topic in topics] == [{}, {}]


def test_given_a_throttled_drain_when_it_is_cancelled_then_its_throttle_goes_and_no_other(
    tmp_path: Path, topic_name: str
) -> None:
    with a_pair(tmp_path, topic_name, **SMALL_FETCHES) as cluster:
        others = f"{topic_name}-others"
        create_topic_over(cluster, others, (2,))
        lists = {"leader.replication.throttled.replicas": "*"}
        ClusterClient.of(cluster.bootstrap, 10).configure({(ResourceType.TOPIC, others): lists})
        fill(cluster, topic_name)
        stopped(cluster, "broker", "drain", 1, "--yes", "--throttle", "1")
        assert throttled_replicas(cluster, topic_name) != {}

        QuickTools(cluster.bootstrap).output("broker", "drain", 1, "--cancel")

        assert rates(cluster) == [None, None]
        assert throttled_replicas(cluster, topic_name) == {}
        assert throttled_replicas(cluster, others) == lists


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


def test_given_replicas_on_several_brokers_when_each_is_asked_for_its_log_dirs_then_all_it_holds_is_there_led_or_not(
    tmp_path: Path, topic_name: str
) -> None:
    alone, shared = f"{topic_name}-alone", f"{topic_name}-shared"
    with a_pair(tmp_path, alone) as cluster:
        create_topic_over(cluster, shared, (1, 2), (2, 1))
        batch = a_batch(b"x" * 1_000)
        with RawClient(cluster[1].address) as client:
            assert produce(client, shared, batch).error_code == 0  # when both have it

        def held(broker_id: int) -> dict[tuple[str, int], int]:
            with RawClient(cluster[broker_id].address) as client:
                request = DescribeLogDirsRequest(topics=None)
                (directory,) = client.exchange(request, 4, DescribeLogDirsResponse).results
            assert (directory.error_code, directory.log_dir) == (0, str(cluster[broker_id].data))
            return {
                (topic.name, each.partition_index): each.partition_size
                for topic in directory.topics
                for each in topic.partitions
            }

        assert held(1) == {(shared, 0): len(batch), (shared, 1): 0, (alone, 0): 0}
        assert held(2) == {(shared, 0): len(batch), (shared, 1): 0, (alone, 1): 0}


def test_given_a_lost_broker_with_the_only_replica_of_a_partition_then_it_is_named_and_draining_it_is_refused(
    tmp_path: Path, topic_name: str
) -> None:
    """It would never end."""
    with Cluster.start(tmp_path, brokers=2) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (2,))
        cluster[2].kill()
        tools = QuickTools(cluster.bootstrap)
        eventually(lambda: "1 without a leader" in tools.output("cluster", "describe"), 30)

        refusal = tools.refusal("broker", "drain", 2, "--yes")

        assert f"no replica that is in sync is left of {topic_name}-0" in refusal
        assert any(line.startswith(f"{topic_name}-0 ") for line in tools.lines("cluster", "describe"))
        tools.output("topic", "delete", topic_name)
        tools.output("broker", "drain", 2, "--yes")
