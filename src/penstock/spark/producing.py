"""The producer of one task: rows and markers for it, its errors in plain words."""

from __future__ import annotations

import logging
import random
from struct import Struct

from penstock.protocol.records.gathering import Blobs, Numbers, RowColumns
from penstock.spark.destination import Destination
from penstock.spark.markers import PARTITIONS
from penstock.spark.producer_errors import explained
from penstock.spark.rows import Rows
from penstock.wire.errors import WireError
from penstock.wire.producer_settings import ProducerSettings
from penstock.wire.producing import Producer

_log = logging.getLogger("penstock.spark.sink")

_ABORTED_WITHIN_S = 30.0
_SPAN = Struct("=ii")
_NUMBER = Struct("=q")
_NULL = b"\0"


class Outbox:
    """One producer, from its making to the last acknowledgement. Everything raises WireError, WriteFailed if final."""

    def __init__(
        self, destination: Destination, settings: ProducerSettings, transactional_id: str | None = None
    ) -> None:
        self._destination = destination
        # Tasks begin with different partitions, so that small ones do not all write to the same.
        self._producer = Producer(destination.cluster, settings, transactional_id, seed=random.getrandbits(31))

    def put(self, topic: str, rows: Rows) -> None:
        """Returns when all are gathered, in bounded memory."""
        with explained():
            self._producer.put(topic, self._destination.partitions_for(topic, rows), rows.columns())

    def put_marker(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        one = RowColumns(1, _one_blob(value), keys=_one_blob(key), partitions=Numbers(None, _NUMBER.pack(partition)))
        with explained():
            self._producer.put(topic, PARTITIONS, one)

    def flush(self) -> None:
        """Returns when everything is acknowledged."""
        with explained():
            self._producer.flush()

    def fence(self) -> None:
        """Earlier attempts can do nothing more, and what they left open is aborted."""
        with explained():
            self._producer.fence()

    def commit(self) -> None:
        """Whether it is committed after all when this fails can be asked of the marker."""
        with explained():
            self._producer.commit()

    def abort(self) -> None:
        """So that readers do not wait for its timeout. What cannot be aborted is left to that, or to who fences it."""
        try:
            self._producer.abort(_ABORTED_WITHIN_S)
        except WireError as error:
            _log.info("transaction not aborted", extra={"reason": str(error)})

    def close(self) -> None:
        self._producer.close()


def _one_blob(entry: bytes | None) -> Blobs:
    if entry is None:
        return Blobs(_NULL, _SPAN.pack(0, 0), b"")
    return Blobs(None, _SPAN.pack(0, len(entry)), entry)
