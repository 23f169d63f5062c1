"""Consumer groups: many at once, many commits, and one large group that rebalances while others want to be served.

Members are raw connections of one client process that speak with Penstock's own message classes; commits are
pre-encoded, for there the rate matters.
"""

import asyncio
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, wire
from bench.machine import in_own_process
from bench.measuring import measure
from bench.replay import Exchange, replay, success
from bench.report import Row
from penstock.protocol.codec import Request, Response
from penstock.protocol.messages.cluster import ApiVersionsRequest
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from penstock.protocol.messages.table import RESPONSES

TOPIC = "bench-groups"
PARTITIONS_COUNT = 1_000
GROUPS_COUNT, MEMBERS_COUNT = 100, 10
LARGE_GROUP_MEMBERS = 200
COMMITTERS, COMMITS_EACH, COMMITS_UNANSWERED = GROUPS_COUNT * MEMBERS_COUNT, 40, 1
SESSION_MS, REBALANCE_MS = 30_000, 60_000
METADATA_BYTES, ASSIGNMENT_BYTES = 100, 100
VERSIONS = {8: 9, 10: 4, 11: 9, 12: 4, 14: 5, 18: 3}
MEMBER_ID_REQUIRED = 79
# Loading, not available, and one that does not know yet that it is the coordinator.
COORDINATOR_COMES = (14, 15, 16)
CLIENT_ID = b"bench-groups"


def groups_rows(broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    brokers.create_topic(broker, TOPIC, PARTITIONS_COUNT, brokers.NO_FLUSH)
    stable_s = in_own_process(many_groups, broker.address)
    commits = commits_rows(broker, system, repeat)
    lag_ms, idle_lag_ms, rebalanced_s = in_own_process(large_group, broker.address)
    brokers.delete_topic(broker, TOPIC)
    return [
        Row("groups-100x10", system, {"stable_s": stable_s}),
        commits,
        Row("group-200", system, {"loop_lag_ms": lag_ms, "idle_lag_ms": idle_lag_ms, "stable_s": rebalanced_s}),
    ]


# The three scenarios


def many_groups(address: tuple[str, int]) -> float:
    """From the first answer to a JoinGroup, which ends the initial delay, until every member has its assignment."""
    return asyncio.run(_many_groups(address))


async def _many_groups(address: tuple[str, int]) -> float:
    await _find_coordinator(address, "bench-0")
    members = [
        Member(f"bench-{group}", await Connection.open(address))
        for group in range(GROUPS_COUNT)
        for _ in range(MEMBERS_COUNT)
    ]
    await asyncio.gather(*(member.ask_for_id() for member in members))
    await asyncio.gather(*(member.join_and_sync() for member in members))
    began = min(member.joined_at for member in members)
    ended = max(member.synced_at for member in members)
    for member in members:
        member.connection.close()
    return ended - began


def commits_rows(broker: BrokerProcess, system: str, repeat: int) -> Row:
    """Pre-encoded commits of one partition each, on a connection for each member, every one answered from the disk."""
    asyncio.run(_find_coordinator(broker.address, "bench-commits-00"))
    exchanges = [
        _commit_exchange(broker.address, f"bench-commits-{number % GROUPS_COUNT:02}", number)
        for number in range(COMMITTERS)
    ]
    runs = [measure(broker, replay, broker.address, exchanges, COMMITS_EACH) for _ in range(repeat)]
    rates = [COMMITTERS * COMMITS_EACH / run.elapsed_s for run in runs]
    figures = {
        "commits_per_s": statistics.median(rates),
        "cpu_us_each": statistics.median(run.broker_cpu_s for run in runs) / COMMITTERS / COMMITS_EACH * 1e6,
        "client_cpu_share": statistics.median(run.client_cpu_s / run.elapsed_s for run in runs),
    }
    return Row("group-commits", system, figures, (min(rates), max(rates)))


def _commit_exchange(address: tuple[str, int], group: str, index: int) -> Exchange:
    partition = OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    request = _frame(OffsetCommitRequest(group_id=group, topics=[topic]))
    with socket.create_connection(address) as connection:
        response = wire.exchange(connection, request)
    error_position = len(response) - (1 + 1 + 1 + 2)  # before the tags of partition, topic and response
    no_errors = success(response, (error_position,))
    assert wire.int16_at(response, error_position) == 0, response
    return Exchange(request, len(request), len(response), no_errors, COMMITS_UNANSWERED)


def large_group(address: tuple[str, int]) -> tuple[float, float, float]:
    """What another client waits at most for a trivial answer while the group rebalances, and while nothing happens."""
    with Probe(address) as probe:
        time.sleep(2)
    idle_ms = probe.longest_ms
    members, join = asyncio.run(large_group_once(address))
    del members
    return join[0], idle_ms, join[1]


async def large_group_once(
    address: tuple[str, int], group: str = "bench-large"
) -> tuple[list["Member"], tuple[float, float]]:
    """The members, the longest that another client waited, and the seconds until all had their assignment again."""
    await _find_coordinator(address, group)
    members = [Member(group, await Connection.open(address)) for _ in range(LARGE_GROUP_MEMBERS)]
    await asyncio.gather(*(member.ask_for_id() for member in members))
    await asyncio.gather(*(member.join_and_sync() for member in members))
    leader = next(member for member in members if member.leads)
    others = [member for member in members if member is not leader]
    started = time.perf_counter()
    with Probe(address) as probe:
        again = asyncio.gather(leader.join_and_sync(), *(member.notice_and_rejoin() for member in others))
        await again
    elapsed_s = time.perf_counter() - started
    for member in members:
        member.connection.close()
    return members, (probe.longest_ms, elapsed_s)


async def _find_coordinator(address: tuple[str, int], group: str) -> None:
    """Has the internal topic created, and waits until its partition serves."""
    connection = await Connection.open(address)
    while True:
        found = await connection.ask(FindCoordinatorRequest(coordinator_keys=[group]))
        heard = await connection.ask(HeartbeatRequest(group_id=group, member_id="nobody"))
        if not {found.coordinators[0].error_code, heard.error_code} & set(COORDINATOR_COMES):
            break
        await asyncio.sleep(0.05)
    connection.close()


# Clients


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "Connection":
        return cls(*await asyncio.open_connection(*address, limit=1 << 22))

    async def ask(self, request: Request) -> Any:
        self.writer.write(_frame(request))
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return _decoded(request, await self.reader.readexactly(size))

    def close(self) -> None:
        self.writer.close()


def _frame(request: Request) -> bytes:
    version = VERSIONS[request.API_KEY]
    is_flexible = version >= request.FLEXIBLE_SINCE
    header = struct.pack(">hhih", request.API_KEY, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\x00" * is_flexible
    body = request.encode(version)
    return struct.pack(">i", len(header) + len(body)) + header + body


def _decoded(request: Request, frame: bytes) -> Response:
    version = VERSIONS[request.API_KEY]
    header_size = 4 + (version >= request.FLEXIBLE_SINCE and request.API_KEY != ApiVersionsRequest.API_KEY)
    return RESPONSES[request.API_KEY].decode(frame[header_size:], version)


class Member:
    def __init__(self, group: str, connection: Connection) -> None:
        self.group = group
        self.connection = connection
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.joined_at = self.synced_at = 0.0

    async def ask_for_id(self) -> None:
        response = await self.connection.ask(self._join_request())
        assert response.error_code == MEMBER_ID_REQUIRED, response
        self.member_id = response.member_id

    async def join_and_sync(self) -> None:
        joined = await self.connection.ask(self._join_request())
        self.joined_at = time.perf_counter()
        assert joined.error_code == 0, joined
        self.generation, self.leads = joined.generation_id, joined.leader == self.member_id
        plan = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=bytes(ASSIGNMENT_BYTES))
            for each in joined.members
        ]
        synced = await self.connection.ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=plan,
            )
        )
        self.synced_at = time.perf_counter()
        assert synced.error_code == 0, synced

    async def notice_and_rejoin(self) -> None:
        while (await self._heartbeat()) == 0:  # noqa: ASYNC110 - members learn of it by asking
            await asyncio.sleep(0.02)
        await self.join_and_sync()

    async def _heartbeat(self) -> int:
        response = await self.connection.ask(
            HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        )
        return int(response.error_code)

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(METADATA_BYTES))],
        )


class Probe:
    """Asks for the API versions every millisecond: the longest wait shows how long the broker's loop was busy."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._waits_ms: list[float] = []

    @property
    def longest_ms(self) -> float:
        return max(self._waits_ms)

    def _run(self) -> None:
        request = _frame(ApiVersionsRequest(client_software_name="bench", client_software_version="1"))
        while not self._stop.wait(0.001):
            started = time.perf_counter()
            self._socket.sendall(request)
            size = int.from_bytes(self._socket.recv(4, socket.MSG_WAITALL), "big")
            self._socket.recv(size, socket.MSG_WAITALL)
            self._waits_ms.append((time.perf_counter() - started) * 1_000)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
