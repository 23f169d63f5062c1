"""What clients are told of brokers that come and go."""

from __future__ import annotations

from penstock.core.ids import BrokerId
from penstock.handlers.cluster_view import ClusterView
from penstock.metadata import records
from penstock.metadata.image import EMPTY_IMAGE, ClusterImage
from penstock.metadata.records import BrokerRecord, Endpoint, SessionRecord, SessionState
from penstock.metadata.store import Change, Changes

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def a_cluster(*, registered: tuple[BrokerId, ...], alive: tuple[BrokerId, ...]) -> ClusterImage:
    listeners = (Endpoint(name="PLAINTEXT", host="machine", port=9092),)
    changes = [
        Change(
            records.broker_key(each),
            records.encode(BrokerRecord(broker_id=each, epoch=1, listeners=listeners, host="")),
            1,
        )
        for each in registered
    ]
    changes += [
        Change(
            records.session_key(each),
            records.encode(SessionRecord(broker_id=each, epoch=1, state=SessionState.SERVING, directory_id="")),
            1,
        )
        for each in alive
    ]
    image, _ = EMPTY_IMAGE.apply(Changes(1, tuple(changes)))
    return image


def reachable(image: ClusterImage, *, here: BrokerId) -> list[int]:
    return [each.broker_id for each in ClusterView(image, "PLAINTEXT", here).brokers]


def test_given_brokers_whose_sessions_are_over_then_clients_are_not_told_of_them() -> None:
    image = a_cluster(registered=(ONE, TWO, THREE), alive=(ONE, THREE))

    assert reachable(image, here=ONE) == [ONE, THREE]


def test_given_no_session_at_all_then_clients_are_still_told_of_the_broker_that_answers() -> None:
    image = a_cluster(registered=(ONE, TWO), alive=())

    assert reachable(image, here=TWO) == [TWO]
