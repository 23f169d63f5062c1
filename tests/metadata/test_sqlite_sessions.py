"""Who is alive, seen by one that only looks on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.testkit import eventually

from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId
from penstock.metadata.records import session_key
from penstock.metadata.sqlite_database import SqliteDatabase
from penstock.metadata.sqlite_leases import SqliteLeases
from penstock.metadata.sqlite_sessions import living_brokers
from penstock.metadata.store import LeaseId, Put, Transaction

LONG_MS = 60_000
SHORT_MS = 50


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "metadata.db")
    yield database
    database.close()


def begin_session(database: SqliteDatabase, broker_id: int, ttl_ms: int) -> LeaseId:
    lease_id = SqliteLeases(database).grant(ttl_ms)
    database.commit(Transaction(puts=(Put(session_key(BrokerId(broker_id)), b"", lease_id),)))
    return lease_id


def test_given_sessions_then_those_whose_lease_lasts_are_alive(database: SqliteDatabase) -> None:
    begin_session(database, 1, LONG_MS)
    ended = begin_session(database, 2, LONG_MS)
    begin_session(database, 11, LONG_MS)

    SqliteLeases(database).revoke(ended)

    assert living_brokers(database.path) == {1, 11}


def test_given_a_broker_that_stands_still_with_all_locks_then_it_is_seen_that_its_time_is_up(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    begin_session(database, 1, LONG_MS)
    lease_id = begin_session(database, 2, SHORT_MS)
    writing = apsw.Connection(str(database.path))
    writing.execute("BEGIN IMMEDIATE")

    with (tmp_path / "metadata.db-leases" / str(lease_id)).open() as renewing:
        fcntl.flock(renewing, fcntl.LOCK_EX)

        eventually(lambda: living_brokers(database.path) == {1})


def test_given_no_file_then_nothing_is_said_about_brokers(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"metadata\.db cannot be read"):
        living_brokers(tmp_path / "metadata.db")
    assert list(tmp_path.iterdir()) == []
