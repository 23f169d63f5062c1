"""Between what consumers of the classic protocol tell each other, where topics go by name, and our assignments by id.

Only for such members in a consumer group, and for taking them into one or letting them out of it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.coordinators.group.assignors import Assignment
from penstock.coordinators.group.state import TopicFacts
from penstock.core.ids import TopicId
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartitions,
    encode_assignment,
)


def write_assignment(assignment: Assignment, topics: Mapping[str, TopicFacts], version: int) -> bytes:
    """A topic that is gone has no name, and is left out."""
    names = {facts.topic_id: name for name, facts in topics.items() if facts.topic_id in assignment}
    partitions = [
        TopicPartitions(topic=name, partitions=sorted(assignment[topic_id])) for topic_id, name in names.items()
    ]
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=partitions), version)


def with_ids(named: list[TopicPartitions], topics: Mapping[str, TopicFacts]) -> dict[TopicId, frozenset[int]]:
    found: dict[TopicId, frozenset[int]] = {}
    for each in named:
        if each.topic in topics and each.partitions:
            topic_id = topics[each.topic].topic_id
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(each.partitions)
    return found
