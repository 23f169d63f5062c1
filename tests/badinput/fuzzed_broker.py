"""The other end of a fuzzer: a real broker that must answer a frame in a readable way, close, or wait legally."""

import struct
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import MalformedRequest
from penstock.protocol.messages.cluster import ApiVersionsRequest, MetadataRequest, MetadataResponse
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.records import FetchRequest, ProduceRequest
from penstock.protocol.messages.table import REQUESTS, RESPONSES
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.badinput.hostile import TOPICS
from tests.badinput.unharmed import (
    ANSWER_TIMEOUT_S,
    BYSTANDER_TOPIC,
    LogWatch,
    ensure_bystander_topic,
    produce_and_fetch,
)
from tests.testkit import BrokerProcess, RawClient
from tests.testkit.asking import create_usable_topic

# A fetch may wait for data for as long as it likes, a produce with acks=0 has no answer: silence is legal there.
_MAY_BE_SILENT = frozenset({FetchRequest.API_KEY, ProduceRequest.API_KEY})
_SILENCE_S = 0.03
_API_KEY_AND_VERSION = struct.Struct(">hh")

# What they know of groups and transactions is kept, so that much comes together.
COORDINATORS = {"__consumer_offsets": 0, "__transaction_state": 1}

# Topics of any name may come to be, but none of many partitions.
FUZZED_SETTINGS: dict[str, Any] = {
    "penstock.max.topic.partitions": 4,
    "auto.create.topics.enable": True,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


@dataclass
class Tally:
    """What became of the cases: a fuzzer of which nothing is answered, or everything, tests nothing."""

    answered: int = 0
    closed: int = 0
    silent: int = 0


class FuzzedBroker:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.tally = Tally()
        self._bystander = RawClient(broker.address, timeout=ANSWER_TIMEOUT_S)
        ensure_bystander_topic(self._bystander)
        self._log = LogWatch(broker)
        self._client: RawClient | None = None
        self.topic_ids: list[bytes] = []
        self.tidy_up()

    def send(self, payload: bytes) -> bytes | None:
        """Sends one frame and sees what comes of it. Returns the answer, None for silence or a closed connection."""
        if self._client is None:
            self._client = RawClient(self.broker.address, timeout=ANSWER_TIMEOUT_S)
        may_be_silent = len(payload) < 2 or int.from_bytes(payload[:2], "big") in _MAY_BE_SILENT
        self._client.socket.settimeout(_SILENCE_S if may_be_silent else ANSWER_TIMEOUT_S)
        answer = self._exchange(self._client, payload, may_be_silent=may_be_silent)
        assert self.broker.is_running, "the broker is gone"
        assert not (signs := self._log.signs_of_a_bug()), signs
        if answer is not None:
            assert_readable(payload, answer)
        return answer

    def _exchange(self, client: RawClient, payload: bytes, *, may_be_silent: bool) -> bytes | None:
        try:
            client.send_frame(payload)
            answer = client.receive_frame()
        except TimeoutError:
            assert may_be_silent, f"neither answered nor closed within {ANSWER_TIMEOUT_S} s"
            self._hang_up()
            self.tally.silent += 1
            return None
        except (BrokenPipeError, ConnectionResetError):
            answer = None
        if answer is None:
            self._hang_up()
            self.tally.closed += 1
        else:
            self.tally.answered += 1
        return answer

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def tidy_up(self) -> None:
        """Others are served; topics that the fuzzer made by chance go, those that it deleted come back."""
        produce_and_fetch(self._bystander)
        known = self._bystander.exchange(MetadataRequest(topics=None), 12, MetadataResponse).topics
        surplus = [topic.name or "" for topic in known if topic.name not in (*TOPICS, *COORDINATORS, BYSTANDER_TOPIC)]
        if surplus:
            deletion = DeleteTopicsRequest(topic_names=surplus, timeout_ms=5_000)
            self._bystander.exchange(deletion, 4, DeleteTopicsResponse)
        for name in TOPICS:
            create_usable_topic(self._bystander, name, exists_ok=True)
        for key_type in COORDINATORS.values():
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
            self._bystander.exchange(request, 4, FindCoordinatorResponse)
        known = self._bystander.exchange(MetadataRequest(topics=None), 12, MetadataResponse).topics
        self.topic_ids = sorted(topic.topic_id for topic in known if topic.name in TOPICS)

    def close(self) -> None:
        self._hang_up()
        self._bystander.close()


def assert_readable(payload: bytes, answer: bytes) -> None:
    """Whoever sent `payload` can read `answer` by the layout of what was asked."""
    api_key, version = _API_KEY_AND_VERSION.unpack_from(payload)
    assert answer[:4] == payload[4:8], "the answer is to another request"
    request = REQUESTS[api_key]
    is_known = request.MIN_VERSION <= version <= request.MAX_VERSION
    is_api_versions = api_key == ApiVersionsRequest.API_KEY
    assert is_known or is_api_versions, f"an answer to version {version}"
    body = answer[4:] if is_api_versions or version < request.FLEXIBLE_SINCE else answer[5:]
    try:
        RESPONSES[api_key].decode(body, version if is_known else 0)
    except MalformedRequest as unreadable:
        raise AssertionError(f"the answer to {request.NAME} v{version} cannot be read: {unreadable}") from unreadable
