"""What the members of a group subscribe to: regular expressions, and the hash that tells when topics have changed.

Regular expressions are matched within a heartbeat and not, as in Kafka, aside. They match internal topics too: Kafka
leaves it to the client not to ask for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from penstock.coordinators.group.assignors import MemberSpec
from penstock.coordinators.group.consumer_state import ConsumerGroup, Member, ResolvedRegex, topics_of
from penstock.coordinators.group.state import TopicFacts
from penstock.coordinators.regex import Pattern, compile_regex
from penstock.core.errors import BrokerError
from penstock.core.ids import TopicId

Topics = Mapping[str, TopicFacts]
Regexes = Mapping[str, ResolvedRegex]

# The version of the metadata in which an expression was resolved. We have none; to Kafka's coordinator, should it read
# our records, 0 says that they are to be resolved again.
_NO_VERSION = 0


def compiled(regex: str) -> Pattern:
    return compile_regex(regex, "SubscribedTopicRegex")


def resolve(regex: str, topics: Topics, wall_ms: int) -> ResolvedRegex:
    return ResolvedRegex(_matching(regex, topics), _NO_VERSION, wall_ms)


def resolve_again(
    regex: str, before: ResolvedRegex, changed: Iterable[str], topics: Topics, wall_ms: int
) -> ResolvedRegex:
    """Looks at the changed topics only."""
    changed = frozenset(changed)
    found = _matching(regex, changed & topics.keys())
    return ResolvedRegex(before.topics - changed | found, _NO_VERSION, wall_ms)


def _matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    try:
        pattern = compiled(regex)
    except BrokerError:  # from a record of another RE2: it was checked when its member came with it
        return frozenset()
    return frozenset(name for name in names if pattern.Match(name))


def all_topics(members: Iterable[Member], regexes: Regexes) -> frozenset[str]:
    names: set[str] = set()
    for topics in {member.subscribed_topic_names for member in members}:
        names |= topics
    for resolved in regexes.values():
        names |= resolved.topics
    return frozenset(names)


def topic_ids_of(member: Member, regexes: Regexes, topics: Topics) -> frozenset[TopicId]:
    return frozenset(topics[name].topic_id for name in topics_of(member, regexes) if name in topics)


def specs(
    members: Mapping[str, Member], group: ConsumerGroup, regexes: Regexes, topics: Topics
) -> dict[str, MemberSpec]:
    """What an assignor gets to see. Most members subscribe to the same, which is looked up once."""
    known: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}
    result = {}
    for member_id, member in members.items():
        key = member.subscribed_topic_names, member.subscribed_topic_regex
        topic_ids = known.get(key)
        if topic_ids is None:
            topic_ids = known[key] = topic_ids_of(member, regexes, topics)
        target = group.targets.get(member_id) or group.target_of(member)
        result[member_id] = MemberSpec(topic_ids, target, member.instance_id)
    return result


def metadata_hash(group: ConsumerGroup, names: Iterable[str], topics: Topics) -> int:
    """Changes when one of these topics comes, goes, or is laid out anew; 0 when there is none.

    Kafka's is another function (XXH3). The two are never compared, but by a coordinator that reads the other's records:
    it assigns once more than it had to.
    """
    hashes = [_topic_hash(group, name, topics[name]) for name in sorted(names) if name in topics]
    if not hashes:
        return 0
    return _hash(b"".join(each.to_bytes(8, "little", signed=True) for each in hashes))


def _topic_hash(group: ConsumerGroup, name: str, facts: TopicFacts) -> int:
    cached = group.topic_hashes.get(name)
    if cached is not None and cached[0] is facts:
        return cached[1]
    racks = tuple(tuple(sorted(each)) for each in facts.racks)
    value = _hash(repr((name, facts.topic_id, facts.partitions_count, racks)).encode(errors="surrogatepass"))
    group.topic_hashes[name] = facts, value
    return value


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
