"""Which version of the cluster's own format is in force, so that its brokers can be upgraded one by one.

A release knows a range of versions of each feature, and its brokers register it. What is finalized is what all of them
write, so it rises by request only, once every registered broker knows the new version. It never falls: what was
written since may be unreadable to an older release.
"""

from __future__ import annotations

from penstock.controller.commands import FeatureResult, FeatureUpdate, UpdateFeatures
from penstock.controller.decision import Decision, Writes
from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.image import ClusterImage
from penstock.metadata.records import (
    FEATURES_KEY,
    FIRST_FEATURES,
    SUPPORTED_FEATURES,
    BrokerRecord,
    FeaturesRecord,
    FeatureVersions,
    broker_key,
)

PENSTOCK_VERSION = "penstock.version"
# From this version on a partition's record says which replicas come, go or are spoilt.
MARKED_REPLICAS_SINCE = 2


def update_features(command: UpdateFeatures, image: ClusterImage) -> Decision[tuple[FeatureResult, ...]]:
    """All of them or none."""
    levels = dict(image.features)
    results = []
    for update in command.updates:
        error = None
        try:
            _check(update, image)
            levels[update.feature] = update.level
        except BrokerError as refused:
            error = refused
        results.append(FeatureResult(update.feature, error))
    writes = Writes()
    is_possible = all(result.error is None for result in results)
    if is_possible and levels != image.features and not command.validate_only:
        # A broker of an older release must not come to be registered at this very moment.
        for broker_id in image.brokers:
            key = broker_key(broker_id)
            writes.expect(key, image.mod_revisions[key])
        record = FeaturesRecord.of(levels)
        writes.put(FEATURES_KEY, record, mod_revision=image.mod_revisions.get(FEATURES_KEY, 0))
    return Decision(writes.transactions(), tuple(results))


def _check(update: FeatureUpdate, image: ClusterImage) -> None:
    name, level = update
    if name not in SUPPORTED_FEATURES:
        known = ", ".join(sorted(SUPPORTED_FEATURES))
        raise BrokerError(ErrorCode.INVALID_UPDATE_VERSION, f"there is no feature {name!r}, only {known}")
    present = image.features.get(name, 0)
    if level < present:
        raise BrokerError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} is {present} and cannot be lowered: what was written since may be unreadable to an older release",
        )
    without = [each.broker_id for each in image.brokers.values() if not _knows(each, name, level)]
    if without:
        brokers = ", ".join(map(str, sorted(without)))
        raise BrokerError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} {level} is unknown to the release of broker {brokers}: upgrade it, or unregister it if it is gone",
        )


def _knows(broker: BrokerRecord, name: str, level: int) -> bool:
    lowest, highest = features_of(broker).get(name, (0, 0))
    return lowest <= level <= highest


def features_of(broker: BrokerRecord) -> FeatureVersions:
    """The first release did not register what it knows."""
    return broker.features or FIRST_FEATURES


def check_release(image: ClusterImage) -> None:
    """Raises UNSUPPORTED_VERSION when this release is too old for the cluster, or too new."""
    for name, level in image.features.items():
        lowest, highest = SUPPORTED_FEATURES.get(name, (0, 0))
        if not lowest <= level <= highest:
            other = "a newer" if level > highest else "an older"
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster uses {name} {level}, this release knows {lowest} to {highest}: run {other} one",
            )


def can_mark_replicas(image: ClusterImage) -> bool:
    """Not while a controller of the first release could be there, which would lose the marks."""
    return image.features.get(PENSTOCK_VERSION, 0) >= MARKED_REPLICAS_SINCE


def check_marked_replicas(image: ClusterImage) -> None:
    """Raises UNSUPPORTED_VERSION when replicas cannot come, go or be given up yet."""
    if not can_mark_replicas(image):
        level = image.features.get(PENSTOCK_VERSION, 0)
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{PENSTOCK_VERSION} is {level}, and replicas can be moved from {MARKED_REPLICAS_SINCE} on: "
            "when every broker is upgraded, say so with `penstock cluster upgrade`",
        )
