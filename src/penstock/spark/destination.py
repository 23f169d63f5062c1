"""The cluster as a task needs it besides its producer: where markers are, and which topics there are.

What passes is waited for: brokers may be restarted while a task runs.
"""

from __future__ import annotations

import pyarrow.compute as pc

from penstock.spark.rows import Rows
from penstock.spark.sink_errors import BadRow
from penstock.wire.cluster import Cluster
from penstock.wire.patience import PASSING, Patience
from penstock.wire.settings import ClientSettings


class Destination:
    """Connects when it is first asked. Everything raises WireError."""

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        self._cluster: Cluster | None = None
        self._partitions: dict[str, int] = {}

    @property
    def cluster(self) -> Cluster:
        patience = Patience(self._client)
        while self._cluster is None:
            try:
                self._cluster = Cluster(self._client)
            except PASSING as error:
                patience.after("reaching the cluster", error)
        return self._cluster

    def partitions_for(self, topic: str, rows: Rows) -> int:
        """How many the topic has, which has those that rows ask for."""
        if topic not in self._partitions:
            self._partitions[topic] = self._looked_up(topic)
        highest = None if rows.partitions is None else pc.max(rows.partitions).as_py()
        if highest is None or highest < self._partitions[topic]:
            return self._partitions[topic]
        self._partitions[topic] = self._looked_up(topic)  # it may have grown
        if highest >= self._partitions[topic]:
            raise BadRow(
                f'a row asks for partition {highest} of topic "{topic}", which has {self._partitions[topic]}: they '
                "begin at 0"
            )
        return self._partitions[topic]

    def _looked_up(self, topic: str) -> int:
        patience = Patience(self._client)
        while True:
            try:
                return len(self.cluster.look_up([topic])[topic].leaders)
            except PASSING as error:
                patience.after(f'looking topic "{topic}" up', error)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
