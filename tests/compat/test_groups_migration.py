"""Groups that change their protocol while they work: member by member, and back."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from tests.compat.members import Feeder, Group, Kind, Member
from tests.testkit import eventually

pytestmark = pytest.mark.xdist_group("groups-migration")

CLASSIC = {
    # Its cooperative-sticky puts data of its own into assignments, for which Kafka refuses to change the protocol.
    "confluent-kafka": Kind("confluent-kafka", "classic", ("range",)),
    "java": Kind("java", "classic", ("cooperative-sticky",)),
}
CONSUMER = {"confluent-kafka": Kind("confluent-kafka", "consumer", ()), "java": Kind("java", "consumer", ())}


def type_of(group: Group) -> str:
    admin = AdminClient({"bootstrap.servers": group.broker.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=10).result(10)
    assert not listed.errors
    (row,) = [row for row in listed.valid if row.group_id == group.group_id]
    return str(row.type.name).lower()


@pytest.mark.parametrize("client", CLASSIC)
def test_given_a_classic_group_when_its_members_change_to_the_new_protocol_and_back_then_nothing_is_lost(
    new_group: Callable[[], Group], client: str
) -> None:
    classic, consumer = CLASSIC[client], CONSUMER[client]
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        old, other = group.join(classic), group.join(classic)
        group.wait_until_shared_by(old, other)
        assert type_of(group) == "classic"

        new = group.join(consumer)
        group.wait_until_shared_by(old, other, new)
        assert type_of(group) == "consumer"
        other.leave()
        group.wait_until_shared_by(old, new)
        new.leave()
        # The last member of the new protocol has left: what is left is a classic group again.
        group.wait_until_shared_by(old)
        eventually(lambda: type_of(group) == "classic")

        group.wait_until_processed(feeder.stop())
        old.leave()

    group.check_one_owner_at_a_time()
    group.check_positions_never_went_back()


def until_read(member: Member, partition: int) -> None:
    eventually(lambda: any(read == partition for _, read, _ in member.processed()), 20, "nothing read")


def test_given_an_empty_group_when_members_of_the_other_protocol_come_then_they_go_on_where_it_was(
    new_group: Callable[[], Group],
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        for kind in (CLASSIC["confluent-kafka"], CONSUMER["confluent-kafka"], CLASSIC["confluent-kafka"]):
            member = group.join(kind)
            group.wait_until_shared_by(member)
            assert type_of(group) == kind.protocol
            until_read(member, partition=0)
            already = len(member.said("committed"))
            eventually(lambda m=member, n=already: len(m.said("committed")) > n, 20, "no commit")  # type: ignore[misc]
            member.leave()
        last = group.join(CONSUMER["confluent-kafka"])
        until_read(last, partition=0)
        group.wait_until_processed(feeder.stop())
        last.leave()

    firsts = [min(offset for _, partition, offset in each.processed() if partition == 0) for each in group.members]
    assert firsts == sorted(firsts) and firsts[1] > 0, firsts
    group.check_one_owner_at_a_time()
    group.check_positions_never_went_back()
