"""What the commands about transactions ask brokers for; a refusal ends the command with its reason.

A transaction hangs when it is open in a partition and its coordinator does not know that: nobody will ever end it, and
readers of committed records wait at its first offset for ever. To end one that does not hang would tear it apart, so
what hangs is told only when every coordinator could be asked.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from penstock.cli.client import fail
from penstock.cli.group_offsets import Selection
from penstock.cli.transaction_view import HangingSearch, ListedView, ProducerView, TransactionView
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.core.internal_topics import TRANSACTIONS_TOPIC
from penstock.protocol.messages.cluster import MetadataResponseTopic
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.cluster import Cluster, Node
from penstock.wire.errors import check, error_name

_PARTITIONS_PER_REQUEST = 500
_DURATION_SINCE, _PATTERN_SINCE = 1, 2

Leaders = dict[TopicPartition, Node]


class TransactionClient:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # Coordinators

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[ListedView]:
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=sorted(producer_ids),
            duration_filter=-1 if older_than_ms is None else older_than_ms,
            transactional_id_pattern=pattern,
        )
        needed = _PATTERN_SINCE if pattern is not None else 0 if older_than_ms is None else _DURATION_SINCE

        def ask(node: Node) -> list[ListedView]:
            answer = self._cluster.ask(node, request, ListTransactionsResponse, needed)
            if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                fail(f'--matching "{pattern}" is not a regular expression of RE2', 2)
            check(answer.error_code)
            return [
                ListedView(found.transactional_id, node.id, found.producer_id, found.transaction_state)
                for found in answer.transaction_states
            ]

        found = [
            view
            for node in self._cluster.nodes()
            for view in self._cluster.settled(f"broker {node}", partial(ask, node))
        ]
        return sorted(found, key=lambda view: view.transactional_id)

    def described(self, transactional_id: str) -> TransactionView | None:
        """None when no coordinator knows the id."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def ask() -> TransactionView | None:
            coordinator = self._cluster.coordinator_of(transactional_id)
            (found,) = self._cluster.ask(coordinator, request, DescribeTransactionsResponse).transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            check(found.error_code)
            return TransactionView(
                transactional_id=transactional_id,
                state=found.transaction_state,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                coordinator=coordinator,
                timeout_ms=found.transaction_timeout_ms,
                start_time_ms=found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
                partitions=sorted(
                    TopicPartition(topic.topic, partition) for topic in found.topics for partition in topic.partitions
                ),
            )

        return self._cluster.settled(f'transactional id "{transactional_id}"', ask)

    def abort(self, transaction: TransactionView) -> str:
        """Ends the transaction and fences its producer; returns the state that it ended in.

        As a second producer of the same id would: it is told to come again until the transaction has ended.
        """
        request = InitProducerIdRequest(
            transactional_id=transaction.transactional_id, transaction_timeout_ms=transaction.timeout_ms
        )
        ended = transaction.state

        def ask() -> None:
            nonlocal ended
            coordinator = self._cluster.coordinator_of(transaction.transactional_id)
            answer = self._cluster.ask(coordinator, request, InitProducerIdResponse)
            if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
                now = self.described(transaction.transactional_id)
                ended = now.state if now is not None else ended
            check(answer.error_code)

        self._cluster.settled(f'transactional id "{transaction.transactional_id}"', ask)
        return ended

    # Partitions

    def leaders(self, selections: Sequence[Selection]) -> Leaders:
        """Of the partitions chosen, all when nothing is. The command ends when one is not there, or has no leader."""
        nodes, topics = self._cluster.topics()
        chosen = selections or [Selection(topic, None) for topic in sorted(topics)]
        leaders: Leaders = {}
        problems: list[str] = []
        for topic, numbers in ((each.topic, each.partitions) for each in chosen):
            if topic not in topics:
                problems.append(f'no topic "{topic}"')
                continue
            if topics[topic].error_code:
                problems.append(f'topic "{topic}": {error_name(topics[topic].error_code)}')
                continue
            found = _leaders_of(topics[topic], nodes)
            for partition in found if numbers is None else [TopicPartition(topic, number) for number in numbers]:
                leader = found.get(partition)
                if leader is not None:
                    leaders[partition] = leader
                elif partition in found:
                    problems.append(f"partition {partition} has no leader")
                else:
                    problems.append(f"no partition {partition}")
        if problems:
            fail("; ".join(dict.fromkeys(problems)))
        return leaders

    def producers(self, leaders: Leaders) -> list[ProducerView]:
        """What each leader remembers, in the order of partitions."""
        found: list[ProducerView] = []
        by_node = sorted(leaders, key=lambda partition: (leaders[partition].id, partition))
        for node, group in groupby(by_node, key=leaders.__getitem__):
            partitions = list(group)
            for start in range(0, len(partitions), _PARTITIONS_PER_REQUEST):
                some = partitions[start : start + _PARTITIONS_PER_REQUEST]
                found += self._cluster.settled(f"broker {node}", partial(self._ask_producers, node, some))
        return sorted(found, key=lambda view: (view.partition, view.producer_id))

    def _ask_producers(self, node: Node, partitions: Sequence[TopicPartition]) -> list[ProducerView]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequestTopic(name=name, partition_indexes=[each.partition for each in some])
                for name, some in groupby(partitions, key=lambda partition: partition.topic)
            ]
        )
        found = []
        for topic in self._cluster.ask(node, request, DescribeProducersResponse).topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                check(row.error_code, f"{partition}: {row.error_message}" if row.error_message else None)
                found += [ProducerView.of(partition, producer) for producer in row.active_producers]
        return found

    # What hangs

    def hanging(
        self, selections: Sequence[Selection], producer_ids: Collection[int], older_than_ms: int
    ) -> HangingSearch:
        leaders = self.leaders(selections)
        open_now = [
            view
            for view in self.producers(leaders)
            if view.start_offset is not None and (not producer_ids or view.producer_id in producer_ids)
        ]
        suspects = list(self._unknown_to_coordinators(open_now))
        # One that ended while we asked was known to its coordinator until its markers were written.
        still = self.producers({view.partition: leaders[view.partition] for view in suspects})
        still_open = {(view.partition, view.producer_id, view.start_offset) for view in still}
        hanging = [view for view in suspects if (view.partition, view.producer_id, view.start_offset) in still_open]
        before_ms = time.time() * 1_000 - older_than_ms
        return HangingSearch(
            leaders=leaders,
            found=[view for view in hanging if view.last_timestamp <= before_ms],
            too_young=sum(view.last_timestamp > before_ms for view in hanging),
        )

    def _unknown_to_coordinators(self, open_now: Sequence[ProducerView]) -> Iterator[ProducerView]:
        if not open_now:
            return
        self._check_coordinators()
        listed = self.listed(producer_ids={view.producer_id for view in open_now})
        expected: dict[int, set[TopicPartition]] = {}
        for each in listed:
            description = self.described(each.transactional_id)
            if description is not None:
                expected.setdefault(each.producer_id, set()).update(description.partitions)
        for view in open_now:
            if view.partition not in expected.get(view.producer_id, ()):
                yield view

    def _check_coordinators(self) -> None:
        """A coordinator that is away would not list its transactions, and they would all seem to hang."""
        nodes, topics = self._cluster.topics()
        state = topics.get(TRANSACTIONS_TOPIC)
        away = [partition for partition, node in _leaders_of(state, nodes).items() if node is None] if state else []
        if away:
            fail(f"what hangs cannot be told: {', '.join(map(str, away))} has no leader, so a coordinator is missing")

    def end(self, view: ProducerView, node: Node) -> None:
        """Writes the marker that its coordinator will not write. Raises BrokerError when the partition refuses it."""
        marker = WritableTxnMarker(
            producer_id=view.producer_id,
            producer_epoch=view.producer_epoch,
            transaction_result=False,
            # Below any that a coordinator can have, when no marker of this producer was ever written here.
            coordinator_epoch=max(0, view.coordinator_epoch),
            topics=[WritableTxnMarkerTopic(name=view.partition.topic, partition_indexes=[view.partition.partition])],
        )
        answer = self._cluster.ask(node, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
        for result in answer.markers:
            for topic in result.topics:
                for partition in topic.partitions:
                    check(partition.error_code)


def _leaders_of(topic: MetadataResponseTopic, nodes: dict[int, Node]) -> dict[TopicPartition, Node | None]:
    return {
        TopicPartition(topic.name or "", each.partition_index): nodes.get(each.leader_id)
        for each in sorted(topic.partitions, key=lambda row: row.partition_index)
    }
