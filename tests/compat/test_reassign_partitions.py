"""Kafka's own kafka-reassign-partitions moves partitions of ours, with its throttle, and gives it up; so do clients."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import InvalidReplicationAssignmentError, NoReassignmentInProgressError

from tests.cluster.finding import create_topic_over, states_of, until_readable, write_to_leader
from tests.testkit import Cluster, eventually
from tests.testkit.java import JavaDriver

pytestmark = pytest.mark.xdist_group("reassign-partitions")

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
MORE_THAN_ONE_FETCH = [b"a" * 500_000, b"b" * 500_000, b"c" * 500_000]

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.start(tmp_path_factory.mktemp("cluster"), brokers=3) as cluster:
        yield cluster


@pytest.fixture
def tool(java_driver: JavaDriver, cluster: Cluster, tmp_path: Path) -> Tool:
    """Runs it with a plan of where partitions are to be, and returns what it printed."""

    def run(*words: str, plan: dict[tuple[str, int], list[int]] | None = None) -> str:
        arguments = ["--bootstrap-server", cluster.bootstrap, *words]
        if plan is not None:
            rows = [{"topic": topic, "partition": index, "replicas": to} for (topic, index), to in plan.items()]
            (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": rows}))
            arguments += ["--reassignment-json-file", str(tmp_path / "plan.json")]
        answer = java_driver.call("run_tool", tool=TOOL, arguments=arguments)
        assert answer["code"] == 0, answer["printed"]
        return str(answer["printed"])

    return run


def test_given_a_plan_when_executed_then_partitions_move_and_verifying_it_takes_the_throttle_away(
    cluster: Cluster, tool: Tool, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2), (2, 1))
    write_to_leader(cluster, topic_name, b"before")
    plan = {(topic_name, 0): [3, 2], (topic_name, 1): [3, 1]}

    begun = tool("--execute", "--throttle", "1000000", plan=plan)
    eventually(lambda: tool("--verify", plan=plan).count("is completed") == 2, 60)

    assert "The inter-broker throttle limit was set to 1000000 B/s" in begun
    assert [state.replica_nodes for state in states_of(cluster, topic_name)] == [[3, 2], [3, 1]]
    assert "No partition reassignments found" in tool("--list")
    until_readable(cluster, topic_name, [b"before"])


def test_given_a_throttle_that_lets_nothing_through_when_cancelled_then_all_is_as_it_was(
    cluster: Cluster, tool: Tool, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    for value in MORE_THAN_ONE_FETCH:
        write_to_leader(cluster, topic_name, value)
    plan = {(topic_name, 0): [3, 1]}

    tool("--execute", "--throttle", "1", plan=plan)
    listed = tool("--list")
    cancelled = tool("--cancel", plan=plan)

    assert f"{topic_name}-0: replicas: 3,1,2. adding: 3. removing: 2." in listed
    assert f"Successfully cancelled partition reassignment for: {topic_name}-0" in cancelled
    assert "No partition reassignments found" in tool("--list")
    (state,) = states_of(cluster, topic_name)
    assert set(state.replica_nodes) == {1, 2}
    until_readable(cluster, topic_name, MORE_THAN_ONE_FETCH)


def test_given_kafka_python_when_it_moves_a_partition_then_it_is_listed_until_it_has_moved(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    partition = TopicPartition(topic_name, 0)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        assert admin.alter_partition_reassignments({partition: [9]}) == {partition: InvalidReplicationAssignmentError}
        assert admin.alter_partition_reassignments({partition: None}) == {partition: NoReassignmentInProgressError}
        assert admin.alter_partition_reassignments({partition: [2, 3]}) == {partition: None}
        eventually(lambda: partition not in admin.list_partition_reassignments(), 60)
    finally:
        admin.close()

    (state,) = states_of(cluster, topic_name)
    assert state.replica_nodes == [2, 3]
