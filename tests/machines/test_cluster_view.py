"""Which brokers a client is told of."""

from __future__ import annotations

from tests.machines.controlled_cluster import ONE, TWO, ACluster

from penstock.controller.registration import Registration, begin_session
from penstock.core.errors import ErrorCode
from penstock.handlers.cluster_view import ClusterView
from penstock.metadata.records import Endpoint, SessionState
from penstock.metadata.store import LeaseId


def test_given_brokers_without_a_session_then_clients_are_told_of_those_that_have_one_and_of_who_answers() -> None:
    cluster = ACluster()
    for broker_id in (ONE, TWO):
        endpoint = Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9090 + broker_id)
        registration = Registration(broker_id, (endpoint,), host="machine")
        transaction, _ = begin_session(registration, cluster.image, SessionState.SERVING, LeaseId(broker_id))
        cluster._commit(transaction)
    cluster.create("orders", -1, -1, assignments=((0, (ONE,)),))
    cluster.broker_dies(ONE)

    asked_one, asked_two = (ClusterView(cluster.image, "PLAINTEXT", asked) for asked in (ONE, TWO))

    assert [broker.broker_id for broker in asked_one.brokers] == [ONE, TWO]
    assert [broker.broker_id for broker in asked_two.brokers] == [TWO]
    assert asked_one.leadership(cluster.partition("orders")).leader_id == -1  # it may lead again soon, but does not now
    assert [each.way_to_controller(is_overdue=False) for each in (asked_one, asked_two)] == [ONE, TWO]
    other = ClusterView(cluster.image, "OTHER", ONE)
    assert (other.brokers, other.way_to_controller(is_overdue=False)) == ([], -1)


def test_given_a_broker_that_is_cut_off_then_it_names_the_others_and_leads_nothing_unless_nobody_else_is_there() -> (
    None
):
    cluster = ACluster()
    endpoint = Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9091)
    transaction, _ = begin_session(
        Registration(ONE, (endpoint,), host="machine"), cluster.image, SessionState.SERVING, LeaseId(1)
    )
    cluster._commit(transaction)
    cluster.create("orders", -1, -1, assignments=((0, (ONE,)),))
    alone = ClusterView(cluster.image, "PLAINTEXT", ONE, is_cut_off=True)
    transaction, _ = begin_session(
        Registration(TWO, (endpoint,), host="machine"), cluster.image, SessionState.SERVING, LeaseId(2)
    )
    cluster._commit(transaction)
    view = ClusterView(cluster.image, "PLAINTEXT", ONE, is_cut_off=True)

    assert [broker.broker_id for broker in alone.brokers] == [ONE]
    assert [broker.broker_id for broker in view.brokers] == [TWO]
    assert [each.way_to_controller(is_overdue=True) for each in (alone, view)] == [ONE, TWO]
    assert view.leadership(cluster.partition("orders")) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert view.leader(cluster.partition("orders")) is None
    assert view.offline_replicas(cluster.partition("orders")) == [ONE]
