"""Which brokers are alive, for one that only looks on: it writes nothing and waits for no lock.

A broker that stands still may hold the lock for writing the database, or that of its lease's file. Then nobody can end
its session, and its key stays; so what counts is until when its lease was renewed.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata.records import SESSIONS_PREFIX
from penstock.metadata.sqlite_leases import is_running
from penstock.metadata.store import LeaseId, prefix_end

# Only while another process opens or closes the file for the first or last time.
_BUSY_TIMEOUT_MS = 200


def living_brokers(path: Path) -> frozenset[BrokerId]:
    """Blocks. Raises BrokerError when the file cannot be read, which says nothing about the brokers."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
            sessions = connection.execute(
                "SELECT key, lease_id FROM entries WHERE key >= ? AND key < ?",
                (SESSIONS_PREFIX, prefix_end(SESSIONS_PREFIX)),
            ).fetchall()
        finally:
            connection.close()
    except apsw.Error as error:
        raise BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata store {path} cannot be read: {error}"
        ) from error
    return frozenset(
        BrokerId(int(str(key).removeprefix(SESSIONS_PREFIX)))
        for key, lease_id in sessions
        if isinstance(lease_id, int) and is_running(path, LeaseId(lease_id))
    )
