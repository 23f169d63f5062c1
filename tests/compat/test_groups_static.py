"""Members that keep their place while they restart (group.instance.id, KIP-345), and the fencing of who takes it."""

from collections.abc import Callable, Iterator

import pytest

from tests.compat.members import Feeder, Group, Kind, Member, group_settings
from tests.testkit import BrokerProcess, broker_under_test, eventually

pytestmark = pytest.mark.xdist_group("groups-static")

# Long enough for a JVM to start again; nobody waits for it to pass.
LONG_SESSION_MS = 20_000
CLASSIC = [
    Kind("confluent-kafka", "classic", ("range",)),
    Kind("kafka-python", "classic", ("range",)),
    Kind("aiokafka", "classic", ("range",)),
    Kind("java", "classic", ("range",)),
]
# aiokafka commits without its instance id, is told that the member is unknown, and joins again: two of it never stop.
FENCEABLE = [kind for kind in CLASSIC if kind.client != "aiokafka"]
CONSUMER = [Kind("confluent-kafka", "consumer", ()), Kind("java", "consumer", ())]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """In the new protocol the broker says how long a session is."""
    settings = group_settings(**{"group.consumer.session.timeout.ms": LONG_SESSION_MS})
    with broker_under_test().start(tmp_path_factory.mktemp("static-broker") / "data", **settings) as broker:
        yield broker


@pytest.mark.parametrize("kind", CLASSIC, ids=str)
def test_given_a_static_member_when_it_restarts_within_its_session_then_nobody_else_notices(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        steady = group.join(kind, instance="steady", session_ms=LONG_SESSION_MS)
        restarting = group.join(kind, instance="restarting", session_ms=LONG_SESSION_MS)
        group.wait_until_shared_by(steady, restarting)
        had, generation = restarting.owned(), steady.generation()
        assignments = len(steady.said("assigned"))

        restarting.kill()
        restarted = group.join(kind, instance="restarting", session_ms=LONG_SESSION_MS)
        group.wait_until_shared_by(steady, restarted)
        group.wait_until_processed(feeder.stop())

        assert restarted.owned() == had
        assert (restarted.generation(), steady.generation()) == (generation, generation)
        assert len(steady.said("assigned")) == assignments

    group.check_one_owner_at_a_time()
    group.check_positions_never_went_back()


@pytest.mark.parametrize("kind", FENCEABLE, ids=str)
def test_given_a_static_member_when_another_takes_its_id_then_the_first_is_fenced(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics):
        first = group.join(kind, instance="same", session_ms=LONG_SESSION_MS)
        group.wait_until_shared_by(first)
        second = group.join(kind, instance="same", session_ms=LONG_SESSION_MS)

        eventually(lambda: "enced" in fate_of(first), 20, "the first was not fenced")
        group.wait_until_shared_by(second)


def fate_of(member: Member) -> str:
    """What ended it, or refused its commits: clients differ in how they tell."""
    return " ".join(event["error"] for kind in ("failed", "refused") for event in member.said(kind))


@pytest.mark.parametrize("kind", CONSUMER, ids=str)
def test_given_a_static_member_of_the_new_protocol_when_it_restarts_then_its_partitions_wait_for_it(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics) as feeder:
        steady, restarting = group.join(kind, instance="steady"), group.join(kind, instance="restarting")
        group.wait_until_shared_by(steady, restarting)
        had, assignments = restarting.owned(), len(steady.said("assigned"))

        restarting.leave()
        restarted = group.join(kind, instance="restarting")
        group.wait_until_shared_by(steady, restarted)
        group.wait_until_processed(feeder.stop())

        assert restarted.owned() == had
        assert len(steady.said("assigned")) == assignments

    group.check()


@pytest.mark.parametrize("kind", CONSUMER, ids=str)
def test_given_a_static_member_of_the_new_protocol_when_another_takes_its_id_then_it_has_to_wait(
    new_group: Callable[[], Group], kind: Kind
) -> None:
    group = new_group()
    with group, Feeder(group.broker.bootstrap, group.topics):
        first = group.join(kind, instance="same")
        group.wait_until_shared_by(first)
        second = group.join(kind, instance="same")

        error = second.ended_with()

        assert "nreleased" in error or "still used by another member" in error
        group.wait_until_shared_by(first)
