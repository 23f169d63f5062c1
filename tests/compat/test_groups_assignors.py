"""How groups share partitions: every assignor of every client, clients of different makers in one group, patterns."""

import time
from collections.abc import Callable

import pytest

from tests.compat.clients.confluent import ConfluentAdminClient
from tests.compat.members import PARTITIONS, Feeder, Group, Kind
from tests.compat.topics import eventually_known
from tests.testkit import eventually

pytestmark = pytest.mark.xdist_group("groups-assignors")

# The others are in the tests of churn and in the mixed groups: a JVM takes longer to start than all the rest.
KINDS = [
    *(Kind("confluent-kafka", "classic", (assignor,)) for assignor in ("range", "roundrobin")),
    Kind("confluent-kafka", "consumer", ("range",)),
    *(Kind("kafka-python", "classic", (assignor,)) for assignor in ("roundrobin", "sticky", "cooperative-sticky")),
    *(Kind("aiokafka", "classic", (assignor,)) for assignor in ("range", "sticky")),
    Kind("java", "classic", ("sticky",)),
]

# Every client that has the assignor.
MIXED = {
    "range": ("confluent-kafka", "kafka-python", "aiokafka", "java"),
    "roundrobin": ("confluent-kafka", "kafka-python", "aiokafka", "java"),
    "cooperative-sticky": ("confluent-kafka", "kafka-python", "java"),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_given_an_assignor_when_members_join_and_leave_then_each_has_its_part(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        first, second = group.join(kind), group.join(kind)
        group.wait_until_shared_by(first, second)
        third = group.join(kind)
        group.wait_until_shared_by(first, second, third)
        first.leave()
        group.wait_until_shared_by(second, third)
        group.wait_until_processed(feeder.stop())

    group.check()


@pytest.mark.parametrize("assignor", MIXED)
def test_given_clients_of_different_makers_when_they_join_one_group_then_they_agree_on_who_has_what(
    new_group: Callable[[], Group], assignor: str
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        members = [group.join(Kind(client, "classic", (assignor,))) for client in MIXED[assignor]]
        group.wait_until_shared_by(*members)
        # Each of the others has to be able to lead what this one led.
        leader, *others = members
        leader.kill()
        group.wait_until_shared_by(*others)
        others[0].leave()
        group.wait_until_shared_by(*others[1:])
        group.wait_until_processed(feeder.stop())

    group.check()


def test_given_a_mixed_group_when_somebody_comes_or_goes_every_second_then_nothing_is_lost_or_owned_twice(
    new_group: Callable[[], Group],
) -> None:
    """Nobody waits until the group has settled: most rebalances are overtaken by the next one."""
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        kinds = [Kind(client, "classic", ("roundrobin",)) for client in MIXED["roundrobin"]]
        staying = [group.join(kind) for kind in kinds]
        group.wait_until_shared_by(*staying)
        for kind in kinds[:3]:  # a JVM has hardly started in that time
            guest = group.join(kind)
            a_second_passes()
            guest.leave()
            a_second_passes()
        group.wait_until_shared_by(*staying)
        group.wait_until_processed(feeder.stop())

    group.check()


def a_second_passes() -> None:
    over = time.monotonic() + 1
    eventually(lambda: time.monotonic() >= over)


def test_given_patterns_when_a_topic_that_matches_is_created_then_it_is_shared_out_and_no_other(
    new_group: Callable[[], Group], topic_name: str
) -> None:
    """All kinds at once: Kafka looks for new topics every ten seconds only."""
    kinds = [Kind(client, protocol) for client in ("confluent-kafka", "java") for protocol in ("classic", "consumer")]
    groups = [new_group() for _ in kinds]
    broker = groups[0].broker
    admin = ConfluentAdminClient(broker.bootstrap)
    pattern = f"^{topic_name}-[0-9a-f]+.*"
    expected = {(topic, partition) for group in groups for topic in group.topics for partition in range(PARTITIONS)}

    def own_exactly(wanted: set[tuple[str, int]]) -> bool:
        for group in groups:
            assert set().union(*(member.owned() for member in group.members)) == wanted, group.group_id
        return True

    for group, kind in zip(groups, kinds, strict=True):
        for _ in range(2):
            group.join(kind, topics=[pattern])
    eventually(lambda: own_exactly(expected), 20, "the topics that are there")
    for new in (f"other-{topic_name}-1", f"{topic_name}-1-new"):
        admin.create_topic(new, partitions=1)
    eventually_known(lambda: admin.partition_leaders(f"{topic_name}-1-new"))

    eventually(lambda: own_exactly(expected | {(f"{topic_name}-1-new", 0)}), 30, "the new topic")
    for group in groups:
        for member in group.members:
            member.end()
        group.check_one_owner_at_a_time()
