"""What the commands about brokers ask the cluster for, and have it do; a refusal ends the command with its reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Self

from penstock import __version__
from penstock.cli.client import connected, fail
from penstock.cli.cluster_view import BrokerView, ClusterView, FeatureView, PartitionView
from penstock.controller.commands import AlterOperation, ElectionType, ResourceType
from penstock.core.config import DRAINING_KEY, ConfigSource
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.protocol.codec import Request
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from penstock.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from penstock.protocol.messages.elections import ElectionPartitions, ElectLeadersRequest, ElectLeadersResponse
from penstock.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from penstock.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.cluster import Cluster, Node
from penstock.wire.connection import Answer
from penstock.wire.errors import NoAnswer, check, error_name, reason

_FEATURES_SINCE = 3
_KNOWN_WITHIN_S = 5.0
_AGAIN_AFTER_S = 0.05
_SET_FOR_ONE = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
HOST_KEY = "penstock.host"
# Nothing is wrong when a partition is led as wanted already, or cannot be yet.
_FINE_FOR_ELECTIONS = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)

Targets = Mapping[TopicPartition, Sequence[BrokerId] | None]
Resource = tuple[ResourceType, str]
Configs = Mapping[str, str]
# What to set of a resource; None goes back to the default.
Settings = Mapping[Resource, Mapping[str, str | None]]


class ClusterClient:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @classmethod
    def of(cls, bootstrap: str, timeout_s: float) -> Self:
        return cls(connected(bootstrap, timeout_s))

    # Looking

    def view(self) -> ClusterView:
        described = self._described()
        brokers = sorted(described.brokers, key=lambda each: each.broker_id)
        nodes, topics = self._cluster.topics()
        ongoing = self.ongoing()
        partitions = []
        for name, topic in sorted(topics.items()):
            if topic.error_code:
                fail(f'topic "{name}": {error_name(topic.error_code)}')
            for row in sorted(topic.partitions, key=lambda each: each.partition_index):
                where = TopicPartition(name, row.partition_index)
                moving = ongoing.get(where, OngoingPartitionReassignment())
                leaving = tuple(map(BrokerId, moving.removing_replicas))
                partitions.append(
                    PartitionView(
                        partition=where,
                        leader=row.leader_id if row.leader_id in nodes else None,
                        replicas=tuple(BrokerId(each) for each in row.replica_nodes if each not in leaving),
                        isr=tuple(row.isr_nodes),
                        adding=tuple(map(BrokerId, moving.adding_replicas)),
                        leaving=leaving,
                    )
                )
        controller = described.controller_id if described.controller_id >= 0 else None
        return ClusterView(described.cluster_id, controller, [self._broker(each) for each in brokers], partitions)

    def _described(self) -> DescribeClusterResponse:
        """With the brokers that are away."""
        request = DescribeClusterRequest(include_fenced_brokers=True)
        described = self._cluster.ask_any(request, DescribeClusterResponse)
        self._check("the cluster", described.error_code, described.error_message)
        return described

    def _broker(self, row: DescribeClusterBroker) -> BrokerView:
        node = Node(row.broker_id, row.host, row.port)
        answers = not row.is_fenced
        try:
            configs = self._configs(row.broker_id, None if row.is_fenced else node)
        except NoAnswer:  # it has died, and its session has not ended yet
            answers, configs = False, {}
        return BrokerView(
            id=BrokerId(row.broker_id),
            address=f"{row.host}:{row.port}",
            rack=row.rack,
            is_alive=not row.is_fenced,
            answers=answers,
            is_draining=configs.get(DRAINING_KEY) == "true",
            machine=configs.get(HOST_KEY) or row.host,
        )

    def _configs(self, broker_id: int, node: Node | None, *keys: str) -> dict[str, str]:
        """What there is beyond Kafka's protocol; nothing of a broker of another kind. Raises NoAnswer."""
        resource = DescribeConfigsResource(
            resource_type=ResourceType.BROKER,
            resource_name=str(broker_id),
            configuration_keys=list(keys or (DRAINING_KEY, HOST_KEY)),
        )
        request = DescribeConfigsRequest(resources=[resource])
        (found,) = self._ask(node, request, DescribeConfigsResponse).results
        return {row.name: row.value for row in found.configs if row.value is not None}

    def ongoing(self) -> dict[TopicPartition, OngoingPartitionReassignment]:
        answer = self._cluster.ask_any(ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse)
        self._check("reassignments", answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions
        }

    def sizes(self) -> dict[TopicPartition, int]:
        """Of the largest replica of each partition."""
        sizes: Counter[TopicPartition] = Counter()
        for node in self._cluster.nodes():
            answer = self._cluster.ask(node, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            for directory in answer.results:
                for topic in directory.topics:
                    for row in topic.partitions:
                        where = TopicPartition(topic.name, row.partition_index)
                        sizes[where] = max(sizes[where], row.partition_size)
        return dict(sizes)

    def changed(self, keys: Mapping[ResourceType, Sequence[str]]) -> dict[Resource, Configs]:
        """Brokers and topics for which some of these keys were set while brokers ran, with those."""
        found: dict[Resource, Configs] = {}
        for node, kind, names in self._resources():
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys[kind]))
                    for name in names
                ]
            )
            for result in self._ask(node, request, DescribeConfigsResponse).results:
                found[kind, result.resource_name] = {
                    row.name: row.value or "" for row in result.configs if row.config_source in _SET_FOR_ONE
                }
        return {resource: configs for resource, configs in found.items() if configs}

    def _resources(self) -> Iterator[tuple[Node | None, ResourceType, list[str]]]:
        """With the broker to ask about them, which of a broker that is there is itself."""
        nodes, topics = self._cluster.topics()
        for row in self._described().brokers:
            yield nodes.get(row.broker_id), ResourceType.BROKER, [str(row.broker_id)]
        yield None, ResourceType.TOPIC, sorted(topics)

    def features(self) -> list[FeatureView]:
        """What is finalized, and what every broker that is there knows."""
        answers = [self._versions_of(node) for node in self._cluster.nodes()]
        finalized = {each.name: each.max_version_level for each in answers[0].finalized_features}
        common = [{each.name: each.max_version for each in answer.supported_features} for answer in answers]
        return [
            FeatureView(name, level, min(known.get(name, level) for known in common))
            for name, level in sorted(finalized.items())
        ]

    def _versions_of(self, node: Node) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="penstock", client_software_version=__version__)
        return self._cluster.ask(node, request, ApiVersionsResponse, _FEATURES_SINCE)

    def is_silent(self, broker_id: int) -> bool:
        """Whether a broker has a session, and does not answer."""
        rows = [each for each in self._described().brokers if each.broker_id == broker_id and not each.is_fenced]
        return any(not self._broker(row).answers for row in rows)

    def session_timeout_s(self) -> float:
        """As most brokers have it; who is gone cannot be asked."""
        key = "broker.session.timeout.ms"
        for node in self._cluster.nodes():
            with suppress(NoAnswer):
                return int(self._configs(node.id, node, key)[key]) / 1_000
        return fail("no broker answers")

    # Changing

    def finalize(self, levels: Mapping[str, int]) -> None:
        updates = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels.items()]
        answer = self._cluster.ask_any(UpdateFeaturesRequest(feature_updates=updates), UpdateFeaturesResponse)
        self._check("not upgraded", answer.error_code, answer.error_message)

    def reassign(self, targets: Targets) -> None:
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(
                            partition_index=each.partition,
                            replicas=None if (replicas := targets[each]) is None else list(replicas),
                        )
                        for each in partitions
                    ],
                )
                for name, partitions in _by_topic(targets)
            ]
        )
        answer = self._cluster.ask_any(request, AlterPartitionReassignmentsResponse)
        self._check("reassignments", answer.error_code, answer.error_message)
        for topic in answer.responses:
            for row in topic.partitions:
                self._check(f"{topic.name}-{row.partition_index}", row.error_code, row.error_message)

    def let_preferred_lead(self, partitions: Iterable[TopicPartition]) -> None:
        request = ElectLeadersRequest(
            election_type=ElectionType.PREFERRED,
            topic_partitions=[
                ElectionPartitions(topic=name, partitions=[each.partition for each in some])
                for name, some in _by_topic(partitions)
            ],
        )
        answer = self._cluster.ask_any(request, ElectLeadersResponse)
        self._check("elections", answer.error_code)
        for topic in answer.replica_election_results:
            for row in topic.partition_result:
                if row.error_code not in _FINE_FOR_ELECTIONS:
                    self._check(f"{topic.topic}-{row.partition_id}", row.error_code, row.error_message)

    def configure(self, settings: Settings) -> None:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        IncrementallyAlterableConfig(
                            name=key,
                            config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET,
                            value=value,
                        )
                        for key, value in values.items()
                    ],
                )
                for (kind, name), values in settings.items()
            ]
        )
        for row in self._cluster.ask_any(request, IncrementalAlterConfigsResponse).responses:
            what = "broker" if row.resource_type == ResourceType.BROKER else "topic"
            self._check(f"{what} {row.resource_name}", row.error_code, row.error_message)

    def set_draining(self, broker_id: int, draining: bool) -> None:
        """Returns when the broker knows: it is the one that the next command asks."""
        self.configure({(ResourceType.BROKER, str(broker_id)): {DRAINING_KEY: "true" if draining else None}})
        node = next((each for each in self._cluster.nodes() if each.id == broker_id), None)
        deadline = time.monotonic() + _KNOWN_WITHIN_S
        with suppress(NoAnswer):
            while (self._configs(broker_id, node).get(DRAINING_KEY) == "true") is not draining:
                if time.monotonic() >= deadline:
                    return
                time.sleep(_AGAIN_AFTER_S)

    def unregister(self, broker_id: int) -> None:
        answer = self._cluster.ask_any(UnregisterBrokerRequest(broker_id=broker_id), UnregisterBrokerResponse)
        self._check(f"broker {broker_id}", answer.error_code, answer.error_message)

    def _ask(self, node: Node | None, request: Request, response: type[Answer]) -> Answer:
        """Of that broker, or of any. Raises NoAnswer."""
        if node is None:
            return self._cluster.ask_any(request, response)
        return self._cluster.ask(node, request, response)

    def _check(self, what: str, code: int, message: str | None = None) -> None:
        try:
            check(code, message)
        except BrokerError as refused:
            fail(f"{what}: {reason(refused)}")


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(name, list(some)) for name, some in groupby(sorted(partitions), key=lambda each: each.topic)]
