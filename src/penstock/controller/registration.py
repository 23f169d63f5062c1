"""What a broker writes about itself: its registration, which stays, and its session, which goes with its lease.

Nobody else writes these keys, and each write compares what was there, so of two brokers with one id the second is
refused, whichever way they race. That holds for copies of one data directory, too: a session that lasts is taken over
only by who knows that its process is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.controller.features import check_release
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata import records
from penstock.metadata.image import ClusterImage
from penstock.metadata.records import (
    FEATURES_KEY,
    BrokerRecord,
    Endpoint,
    SessionRecord,
    SessionState,
    broker_key,
    session_key,
)
from penstock.metadata.store import Expect, LeaseId, Put, Transaction

FIRST_BROKER_ID = 1


@dataclass(frozen=True, slots=True)
class Registration:
    """What other brokers and clients need to know of a broker."""

    broker_id: BrokerId
    listeners: tuple[Endpoint, ...]
    host: str
    rack: str | None = None
    directory_id: str = ""
    internal: Endpoint | None = None


def free_broker_id(image: ClusterImage) -> BrokerId:
    """For a broker that was not given an id: the lowest that no broker ever had."""
    numbers = range(FIRST_BROKER_ID, FIRST_BROKER_ID + len(image.brokers) + 1)
    return BrokerId(next(number for number in numbers if number not in image.brokers))


def reserve_broker_id(broker_id: BrokerId, image: ClusterImage, directory_id: str) -> Transaction:
    """Makes the id the directory's, before the directory has it written down."""
    key = broker_key(broker_id)
    record = BrokerRecord(broker_id=broker_id, epoch=image.revision, listeners=(), host="", directory_id=directory_id)
    return Transaction(expected=(Expect(key, 0),), puts=(Put(key, records.encode(record)),))


def check_owner(broker_id: BrokerId, directory_id: str, image: ClusterImage) -> None:
    """Raises DUPLICATE_BROKER_REGISTRATION when the id belongs to another data directory."""
    known = image.brokers.get(broker_id)
    if known is not None and known.directory_id not in ("", directory_id):
        presence = "is running" if broker_id in image.sessions else "is not running"
        raise BrokerError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node.id {broker_id} is that of a broker with another data directory ({known.directory_id}), which "
            f"{presence}: choose another id, or none; if that directory is lost, `penstock broker drain {broker_id}` "
            f"and `unregister {broker_id}` free the id (`penstock up --without {broker_id}` starts the others)",
        )


def check_session(broker_id: BrokerId, image: ClusterImage, last_epoch: int | None) -> None:
    """Raises DUPLICATE_BROKER_REGISTRATION while there is a session of the same directory that may be somebody else's:
    any but the one that is known to be this process's own, or of one that is gone.
    """
    session = image.sessions.get(broker_id)
    if session is not None and session.epoch != last_epoch:
        raise BrokerError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {broker_id} is running, on a copy of this data directory or on its original: start only one of "
            "them, or this one with an empty directory and another id",
        )


def begin_session(
    registration: Registration, image: ClusterImage, state: SessionState, lease_id: LeaseId
) -> tuple[Transaction, int]:
    """What to commit, and the broker epoch: the store's revision, which is above that of every session before.

    A session of the same data directory is taken over, see `check_session`. An id belongs to one directory for good,
    because what the cluster believes that broker to hold is there and nowhere else.
    """
    broker_id = registration.broker_id
    check_owner(broker_id, registration.directory_id, image)
    check_release(image)
    epoch = image.revision
    record = BrokerRecord(
        broker_id=broker_id,
        epoch=epoch,
        listeners=registration.listeners,
        host=registration.host,
        rack=registration.rack,
        directory_id=registration.directory_id,
        internal=registration.internal,
        features=records.SUPPORTED_FEATURES,
    )
    session = SessionRecord(broker_id=broker_id, epoch=epoch, state=state, directory_id=registration.directory_id)
    keys = (broker_key(broker_id), session_key(broker_id))
    transaction = Transaction(
        # Features too: what this release does not know must not be finalized at this very moment.
        expected=tuple(Expect(key, image.mod_revisions.get(key, 0)) for key in (*keys, FEATURES_KEY)),
        puts=(Put(keys[0], records.encode(record)), Put(keys[1], records.encode(session), lease_id)),
    )
    return transaction, epoch


def change_session(
    image: ClusterImage, broker_id: BrokerId, epoch: int, state: SessionState, lease_id: LeaseId
) -> Transaction:
    """Raises STALE_BROKER_EPOCH when the session is over."""
    session = image.sessions.get(broker_id)
    if session is None or session.epoch != epoch:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"the session of broker {broker_id} is over")
    key = session_key(broker_id)
    changed = SessionRecord(broker_id=broker_id, epoch=epoch, state=state, directory_id=session.directory_id)
    return Transaction(
        expected=(Expect(key, image.mod_revisions[key]),), puts=(Put(key, records.encode(changed), lease_id),)
    )
