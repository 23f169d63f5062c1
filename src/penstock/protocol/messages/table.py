"""All messages by their API keys, for whoever has to understand any of them: a broker does, a client does not."""

from __future__ import annotations

from typing import Final

from penstock.protocol.codec import Request, Response
from penstock.protocol.messages import (
    authentication,
    cluster,
    configs,
    consumer_groups,
    elections,
    features,
    group_offsets,
    groups,
    offsets,
    producers,
    reassignments,
    records,
    topics,
    transactions,
)

MESSAGES: Final[tuple[tuple[type[Request], type[Response]], ...]] = (
    (records.ProduceRequest, records.ProduceResponse),
    (records.FetchRequest, records.FetchResponse),
    (offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    (cluster.MetadataRequest, cluster.MetadataResponse),
    (group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse),
    (group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
    (groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
    (groups.JoinGroupRequest, groups.JoinGroupResponse),
    (groups.HeartbeatRequest, groups.HeartbeatResponse),
    (groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    (groups.SyncGroupRequest, groups.SyncGroupResponse),
    (groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    (groups.ListGroupsRequest, groups.ListGroupsResponse),
    (authentication.SaslHandshakeRequest, authentication.SaslHandshakeResponse),
    (cluster.ApiVersionsRequest, cluster.ApiVersionsResponse),
    (topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    (topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    (offsets.DeleteRecordsRequest, offsets.DeleteRecordsResponse),
    (producers.InitProducerIdRequest, producers.InitProducerIdResponse),
    (offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse),
    (transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    (transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    (transactions.EndTxnRequest, transactions.EndTxnResponse),
    (transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
    (transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    (configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    (configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    (cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse),
    (authentication.SaslAuthenticateRequest, authentication.SaslAuthenticateResponse),
    (topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    (groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    (elections.ElectLeadersRequest, elections.ElectLeadersResponse),
    (configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
    (reassignments.AlterPartitionReassignmentsRequest, reassignments.AlterPartitionReassignmentsResponse),
    (reassignments.ListPartitionReassignmentsRequest, reassignments.ListPartitionReassignmentsResponse),
    (group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse),
    (features.UpdateFeaturesRequest, features.UpdateFeaturesResponse),
    (cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
    (transactions.DescribeProducersRequest, transactions.DescribeProducersResponse),
    (cluster.UnregisterBrokerRequest, cluster.UnregisterBrokerResponse),
    (transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse),
    (transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
    (consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse),
    (consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse),
    (topics.DescribeTopicPartitionsRequest, topics.DescribeTopicPartitionsResponse),
)

REQUESTS: Final[dict[int, type[Request]]] = {request.API_KEY: request for request, _ in MESSAGES}
RESPONSES: Final[dict[int, type[Response]]] = {response.API_KEY: response for _, response in MESSAGES}
FLEXIBLE_SINCE: Final[dict[int, int]] = {key: request.FLEXIBLE_SINCE for key, request in REQUESTS.items()}
"""The first flexible version by API key, as `frames` wants it."""
