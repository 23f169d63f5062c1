"""When a new version of the cluster's format comes into force, and who is kept out by it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller.commands import FeatureUpdate, InitializeCluster, UpdateFeatures
from penstock.controller.features import PENSTOCK_VERSION, check_marked_replicas, check_release
from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.records import FEATURES_KEY, SUPPORTED_FEATURES, FeaturesRecord, broker_key

NEWEST = SUPPORTED_FEATURES[PENSTOCK_VERSION][1]


def an_old_cluster(*with_first_release: int) -> ACluster:
    """Its format is the first one; these brokers were not upgraded yet."""
    cluster = ACluster(ONE, TWO, THREE).with_features(penstock_version=1)
    for broker_id in (ONE, TWO, THREE):
        features = {} if broker_id in with_first_release else SUPPORTED_FEATURES
        cluster.write(broker_key(broker_id), replace(cluster.image.brokers[broker_id], features=features))
    return cluster


def refusal_of(cluster: ACluster, *updates: FeatureUpdate, validate_only: bool = False) -> list[ErrorCode | None]:
    results = cluster.ask(UpdateFeatures(updates, validate_only))
    return [None if result.error is None else result.error.code for result in results]


def level_of(cluster: ACluster) -> int:
    return cluster.image.features[PENSTOCK_VERSION]


def test_given_a_new_cluster_then_its_format_is_the_newest() -> None:
    cluster = ACluster()
    cluster.ask(InitializeCluster("new"))

    assert level_of(cluster) == NEWEST


def test_given_a_broker_that_was_not_upgraded_then_the_format_stays_and_the_message_names_it() -> None:
    cluster = an_old_cluster(TWO)

    (result,) = cluster.ask(UpdateFeatures((FeatureUpdate(PENSTOCK_VERSION, NEWEST),)))

    assert result.error is not None
    assert result.error.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 2:" in result.error.message
    assert level_of(cluster) == 1
    with pytest.raises(BrokerError, match="penstock cluster upgrade"):
        check_marked_replicas(cluster.image)


def test_given_that_all_brokers_were_upgraded_then_the_format_rises_and_never_falls() -> None:
    cluster = an_old_cluster()

    assert refusal_of(cluster, FeatureUpdate(PENSTOCK_VERSION, NEWEST), validate_only=True) == [None]
    assert level_of(cluster) == 1
    assert refusal_of(cluster, FeatureUpdate(PENSTOCK_VERSION, NEWEST)) == [None]
    assert level_of(cluster) == NEWEST
    check_marked_replicas(cluster.image)
    assert refusal_of(cluster, FeatureUpdate(PENSTOCK_VERSION, NEWEST)) == [None]
    assert refusal_of(cluster, FeatureUpdate(PENSTOCK_VERSION, 1)) == [ErrorCode.INVALID_UPDATE_VERSION]
    assert level_of(cluster) == NEWEST


def test_given_several_updates_when_one_is_refused_then_none_is_made() -> None:
    cluster = an_old_cluster()

    refusals = refusal_of(
        cluster,
        FeatureUpdate(PENSTOCK_VERSION, NEWEST),
        FeatureUpdate("no.such.feature", 1),
        FeatureUpdate("transaction.version", 99),
    )

    assert refusals == [None, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.INVALID_UPDATE_VERSION]
    assert level_of(cluster) == 1


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({PENSTOCK_VERSION: NEWEST + 1}, "run a newer one"),
        ({PENSTOCK_VERSION: 0}, "run an older one"),
        ({"something.new": 1}, "something.new 1, this release knows 0 to 0: run a newer one"),
    ],
)
def test_given_a_cluster_of_another_age_then_this_release_stays_out(levels: dict[str, int], message: str) -> None:
    cluster = ACluster(ONE)
    cluster.write(FEATURES_KEY, FeaturesRecord(levels=levels))

    with pytest.raises(BrokerError, match=message) as refusal:
        check_release(cluster.image)

    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
