"""What the stub says to every request that a producer or a consumer sends: always yes, and always the same records.

It is the only broker and the coordinator of every group; every topic exists, has the partitions of the load, and
never ends. Versions are those at which topics still go by their names.
"""

from collections.abc import Mapping
from typing import Any

from bench.side_by_side.loads import Load
from penstock.protocol.codec import Request, Response
from penstock.protocol.messages import cluster, group_offsets, groups, offsets, producers, records

NODE_ID = 1
ENDLESS = 1 << 60
PIECE_BYTES = 1 << 20
# Both libraries take the highest; librdkafka wants to see the lowest as well before it believes in lz4 and batches.
VERSIONS: Mapping[int, tuple[int, int]] = {
    0: (0, 10),
    1: (0, 12),
    2: (0, 7),
    3: (0, 9),
    8: (0, 8),
    9: (0, 7),
    10: (0, 3),
    11: (0, 7),
    12: (0, 4),
    13: (0, 4),
    14: (0, 5),
    18: (0, 3),
    22: (0, 4),
}


class Answers:
    def __init__(self, port: int, load: Load) -> None:
        self._port = port
        self._load = load
        batch = load.batch()
        self._batch_bytes, self._records_count = len(batch.data), batch.records_count
        self._piece = bytearray(batch.data * max(1, PIECE_BYTES // len(batch.data)))

    def to(self, request: Request) -> Response:
        answer: Response = getattr(self, f"_{type(request).__name__}")(request)
        return answer

    def _ProduceRequest(self, request: records.ProduceRequest) -> Response:
        return records.ProduceResponse(
            responses=[
                records.TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        records.PartitionProduceResponse(index=each.index) for each in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _FetchRequest(self, request: records.FetchRequest) -> Response:
        return records.FetchResponse(
            responses=[
                records.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[self._fetched(each.partition, each.fetch_offset) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _fetched(self, partition: int, fetch_offset: int) -> records.PartitionData:
        """The batches with the offsets that are asked for; no checksum covers them."""
        piece = bytearray(self._piece)
        for position in range(0, len(piece), self._batch_bytes):
            piece[position : position + 8] = fetch_offset.to_bytes(8, "big")
            fetch_offset += self._records_count
        return records.PartitionData(
            partition_index=partition,
            high_watermark=ENDLESS,
            last_stable_offset=ENDLESS,
            log_start_offset=0,
            records=memoryview(piece),
        )

    def _ListOffsetsRequest(self, request: offsets.ListOffsetsRequest) -> Response:
        def partition(index: int) -> offsets.ListOffsetsPartitionResponse:
            return offsets.ListOffsetsPartitionResponse(partition_index=index, offset=0)

        return offsets.ListOffsetsResponse(
            topics=[
                offsets.ListOffsetsTopicResponse(
                    name=topic.name, partitions=[partition(each.partition_index) for each in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _MetadataRequest(self, request: cluster.MetadataRequest) -> Response:
        partitions = [
            cluster.MetadataResponsePartition(
                partition_index=index, leader_id=NODE_ID, leader_epoch=0, replica_nodes=[NODE_ID], isr_nodes=[NODE_ID]
            )
            for index in range(self._load.partitions_count)
        ]
        return cluster.MetadataResponse(
            brokers=[cluster.MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=self._port)],
            cluster_id="stub",
            controller_id=NODE_ID,
            topics=[
                cluster.MetadataResponseTopic(name=topic.name, partitions=partitions) for topic in request.topics or ()
            ],
        )

    def _OffsetCommitRequest(self, request: group_offsets.OffsetCommitRequest) -> Response:
        def topic(each: Any) -> group_offsets.OffsetCommitResponseTopic:
            partitions = [
                group_offsets.OffsetCommitResponsePartition(partition_index=partition.partition_index)
                for partition in each.partitions
            ]
            return group_offsets.OffsetCommitResponseTopic(name=each.name, partitions=partitions)

        return group_offsets.OffsetCommitResponse(topics=[topic(each) for each in request.topics])

    def _OffsetFetchRequest(self, request: group_offsets.OffsetFetchRequest) -> Response:
        def topic(each: group_offsets.OffsetFetchRequestTopic) -> group_offsets.OffsetFetchResponseTopic:
            partitions = [
                group_offsets.OffsetFetchResponsePartition(partition_index=index, committed_offset=-1)
                for index in each.partition_indexes
            ]
            return group_offsets.OffsetFetchResponseTopic(name=each.name, partitions=partitions)

        return group_offsets.OffsetFetchResponse(topics=[topic(each) for each in request.topics or ()])

    def _FindCoordinatorRequest(self, request: groups.FindCoordinatorRequest) -> Response:
        return groups.FindCoordinatorResponse(node_id=NODE_ID, host="127.0.0.1", port=self._port)

    def _JoinGroupRequest(self, request: groups.JoinGroupRequest) -> Response:
        """A group of one, who leads it."""
        chosen = request.protocols[0]
        return groups.JoinGroupResponse(
            generation_id=1,
            protocol_type=request.protocol_type,
            protocol_name=chosen.name,
            leader="member",
            member_id="member",
            members=[groups.JoinGroupResponseMember(member_id="member", metadata=chosen.metadata)],
        )

    def _SyncGroupRequest(self, request: groups.SyncGroupRequest) -> Response:
        return groups.SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=request.assignments[0].assignment,
        )

    def _HeartbeatRequest(self, request: groups.HeartbeatRequest) -> Response:
        return groups.HeartbeatResponse()

    def _LeaveGroupRequest(self, request: groups.LeaveGroupRequest) -> Response:
        return groups.LeaveGroupResponse()

    def _InitProducerIdRequest(self, request: producers.InitProducerIdRequest) -> Response:
        return producers.InitProducerIdResponse(producer_id=1, producer_epoch=0)

    def _ApiVersionsRequest(self, request: cluster.ApiVersionsRequest) -> Response:
        known = [
            cluster.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in VERSIONS.items()
        ]
        return cluster.ApiVersionsResponse(api_keys=known)
