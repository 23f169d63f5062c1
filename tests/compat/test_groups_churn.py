"""Groups of every client whose members are killed, stopped for longer than their session, and joined by others."""

from collections.abc import Callable

import pytest

from tests.compat.members import Feeder, Group, Kind

pytestmark = pytest.mark.xdist_group("groups-churn")

KINDS = [
    Kind("confluent-kafka", "classic", ("cooperative-sticky",)),
    Kind("confluent-kafka", "consumer", ()),
    Kind("kafka-python", "classic", ("range",)),
    Kind("aiokafka", "classic", ("roundrobin",)),
    Kind("java", "classic", ("cooperative-sticky",)),
    Kind("java", "consumer", ()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_given_three_members_when_one_is_killed_one_paused_and_one_joins_then_nothing_is_lost_or_owned_twice(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        first, paused, killed = (group.join(kind) for _ in range(3))
        group.wait_until_shared_by(first, paused, killed)
        killed.kill()
        group.wait_until_shared_by(first, paused)
        paused.hold()
        paused.stop()
        joined = group.join(kind)
        group.wait_until_shared_by(first, joined)

        paused.go()
        paused.resume()
        group.wait_until_shared_by(first, paused, joined)
        group.wait_until_processed(feeder.stop())
        for member in (first, paused, joined):
            member.leave()

    resumed_at = paused.said("continued")[0]["at"]
    tries = [event for event in paused.events() if event["event"] in ("refused", "committed")]
    assert next(event["event"] for event in tries if event["at"] > resumed_at) == "refused"
    group.check()
