"""What brokers ask of each other for the sake of transactions: markers, and whether a transaction is open.

A coordinator has leaders write the markers that end a transaction (WriteTxnMarkers). A leader asks the coordinator
about a transaction before it takes the first batch of it (AddPartitionsToTxn, KIP-890). Neither is decided here, nor
tried again: a lost answer is an error like others, and who asked looks anew for whom to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.core.errors import BrokerError, ErrorCode, MalformedRequest
from penstock.core.ids import BrokerId, TopicPartition
from penstock.metadata.image import ClusterImage
from penstock.net.channel import Channel, Channels, NoAnswer
from penstock.net.rounds import Rounds
from penstock.protocol.control import EndMarker
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.runtime.tasks import TaskGroup

ADD_PARTITIONS_VERSION = 5
MARKERS_VERSION = 2
ANSWERED_WITHIN_S = 1.0
"""What takes longer, a commit that a replica holds up, say, is answered without: it must not hold up all the rest."""
# Below the session timeout: who asks a broker that has died asks the next one as soon as there is one.
TIMEOUT_MS = 2_000


@dataclass(frozen=True, slots=True)
class WantedMarker:
    topic_partition: TopicPartition
    marker: EndMarker
    transaction_version: int
    is_wanted: Callable[[], bool]
    """Asked when it is about to be sent: it may have waited for long."""


class TransactionPeers:
    def __init__(
        self,
        image: Callable[[], ClusterImage],
        *,
        marking: Channels,
        verifying: Channels,
        tasks: TaskGroup,
    ) -> None:
        """Channels of their own, each: what waits for commits must not hold up anything else."""

        def address_of(broker_id: BrokerId) -> tuple[str, int] | None:
            return image().internal_address(broker_id)

        self._markers: Rounds[WantedMarker, None] = Rounds(
            "markers-to", _write_markers, address_of=address_of, channels=marking, tasks=tasks
        )
        self._additions: Rounds[AddPartitionsToTxnTransaction, AddPartitionsToTxnResult] = Rounds(
            "verify-at", _add_partitions, address_of=address_of, channels=verifying, tasks=tasks
        )
        # Of each broker, the latest connection on which it sent markers.
        self._connections: dict[BrokerId, int] = {}

    # Asking

    def write_marker(self, leader: BrokerId, wanted: WantedMarker, done: Callable[[BrokerError | None], None]) -> None:
        """Calls `done` once: with None when the marker is committed, or with what went wrong."""
        self._markers.ask(leader, wanted, done)

    def add_partitions(
        self,
        coordinator: BrokerId,
        transaction: AddPartitionsToTxnTransaction,
        done: Callable[[AddPartitionsToTxnResult | BrokerError], None],
    ) -> None:
        self._additions.ask(coordinator, transaction, done)

    # Being asked

    def is_superseded(self, broker_id: BrokerId, connection_id: int) -> bool:
        """Whether the broker has sent markers on a later connection: then it has given up what was on this one.

        A marker from there may belong to a transaction that is complete by now. If its producer keeps its epoch, it
        would end the next one.
        """
        latest = self._connections.get(broker_id, connection_id)
        self._connections[broker_id] = max(latest, connection_id)
        return connection_id < latest


# Markers


async def _write_markers(channel: Channel, asked: Sequence[WantedMarker]) -> Sequence[BrokerError | None]:
    wanted = [each for each in asked if each.is_wanted()]
    outcomes: dict[WantedMarker, BrokerError | None] = {}
    if wanted:
        request = WriteTxnMarkersRequest(markers=[_marker(group) for group in _by_transaction(wanted)])
        body = await channel.request(request, MARKERS_VERSION, timeout_ms=TIMEOUT_MS)
        try:
            outcomes = _outcomes(wanted, WriteTxnMarkersResponse.decode(body, MARKERS_VERSION))
        except (MalformedRequest, KeyError, ValueError) as error:
            raise NoAnswer(
                ErrorCode.NETWORK_EXCEPTION, f"{channel}: not the answer to what was asked: {error}"
            ) from None
    not_wanted = BrokerError(ErrorCode.NOT_COORDINATOR, "the transaction is another coordinator's by now")
    return [outcomes.get(each, not_wanted) for each in asked]


def _by_transaction(wanted: Sequence[WantedMarker]) -> Iterator[list[WantedMarker]]:
    """They come as their transactions end, so those of one stand together."""
    for _, group in groupby(wanted, key=lambda each: (each.marker, each.transaction_version)):
        yield list(group)


def _marker(group: Sequence[WantedMarker]) -> WritableTxnMarker:
    marker = group[0].marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.is_commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=[each.topic_partition.partition for each in some])
            for name, some in groupby(group, key=lambda each: each.topic_partition.topic)
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=group[0].transaction_version,
    )


def _outcomes(
    wanted: Sequence[WantedMarker], response: WriteTxnMarkersResponse
) -> dict[WantedMarker, BrokerError | None]:
    """Raises KeyError or ValueError when something that was asked is not answered."""
    outcomes: dict[WantedMarker, BrokerError | None] = {}
    for group, result in zip(_by_transaction(wanted), response.markers, strict=True):
        codes = {
            TopicPartition(topic.name, row.partition_index): row.error_code
            for topic in result.topics
            for row in topic.partitions
        }
        for each in group:
            code = ErrorCode(codes[each.topic_partition])
            outcomes[each] = (
                None if code is ErrorCode.NONE else BrokerError(code, f"{each.topic_partition}: {code.name}")
            )
    return outcomes


# Verification


async def _add_partitions(
    channel: Channel, asked: Sequence[AddPartitionsToTxnTransaction]
) -> Sequence[AddPartitionsToTxnResult]:
    request = AddPartitionsToTxnRequest(transactions=list(asked))
    body = await channel.request(request, ADD_PARTITIONS_VERSION, timeout_ms=TIMEOUT_MS)
    try:
        response = AddPartitionsToTxnResponse.decode(body, ADD_PARTITIONS_VERSION)
    except MalformedRequest as error:
        raise NoAnswer(ErrorCode.NETWORK_EXCEPTION, f"{channel}: {error}") from None
    if response.error_code or len(response.results_by_transaction) != len(asked):
        raise NoAnswer(ErrorCode.NETWORK_EXCEPTION, f"{channel}: not the answer to what was asked")
    return response.results_by_transaction
