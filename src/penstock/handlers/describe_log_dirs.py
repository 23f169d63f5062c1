"""DescribeLogDirs: how much of this broker's disk each partition takes.

v2: flexible    v3: error code for the whole answer    v4: size and free space of the volume (KIP-827)

Partitions that are not here are left out, as in Kafka. A broker has one data directory.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from penstock.core.errors import ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext, broker: Broker
) -> DescribeLogDirsResponse:
    result = await broker.files.run(_directory, broker.config.data_dir)
    result.topics = _topics(request, broker)
    return DescribeLogDirsResponse(results=[result])


def _directory(data_dir: str) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=str(Path(data_dir).absolute()))
    try:
        volume = shutil.disk_usage(data_dir)
        result.total_bytes, result.usable_bytes = volume.total, volume.free
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result


def _topics(request: DescribeLogDirsRequest, broker: Broker) -> list[DescribeLogDirsTopic]:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    rows: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for partition in broker.partitions.all():
        name, index = partition.topic_partition
        if wanted is None or (name, index) in wanted:
            # The lag is that of a copy still being made, which no partition here is.
            rows[name].append(DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size_bytes))
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in rows.items()]
