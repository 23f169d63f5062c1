"""What every metadata store must do, run over each implementation."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from tests.simulation.store import SimulatedStore, StoreLink, StoreServer
from tests.testkit.etcd import EtcdCluster

from penstock.metadata.open_store import open_store as open_store_at
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import (
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS,
    Change,
    Changes,
    Committed,
    Compacted,
    Conflict,
    Entry,
    Expect,
    LeaseExpired,
    LeaseId,
    MetadataStore,
    Put,
    Transaction,
)
from penstock.runtime.tasks import spawn

DEADLINE_S = 10


class OpenStore(ABC):
    """Opens further connections to one and the same store, as other brokers would."""

    def __init__(self) -> None:
        self.opened: list[MetadataStore] = []

    async def __call__(self) -> MetadataStore:
        self.opened.append(await self.open())
        return self.opened[-1]

    @abstractmethod
    async def open(self) -> MetadataStore: ...

    @abstractmethod
    async def forget_history(self) -> None:
        """What lies more than a hundred changes back cannot be watched any more."""


class OpenSqlite(OpenStore):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / "metadata.db"

    async def open(self) -> MetadataStore:
        return await SqliteStore.open(self._path, history_changes=100)

    async def forget_history(self) -> None:
        """It does so by itself."""


class OpenEtcd(OpenStore):
    """Each test has a prefix of its own; revisions and history are those of all tests together."""

    def __init__(self, etcd: EtcdCluster) -> None:
        super().__init__()
        self._etcd = etcd
        self._address = etcd.address(f"contract-{uuid.uuid4().hex}")

    async def open(self) -> MetadataStore:
        return await open_store_at(self._address, "")

    async def forget_history(self) -> None:
        self._etcd.compact(await now(self.opened[0]) - 100)


class OpenSimulated(OpenStore):
    """The one that simulations run on: what it allows itself, a broker must not be tested with."""

    def __init__(self) -> None:
        super().__init__()
        self._server = StoreServer(history_changes=100)

    async def open(self) -> MetadataStore:
        return SimulatedStore(self._server, StoreLink())

    async def forget_history(self) -> None:
        """It does so by itself."""


@pytest.fixture(params=["sqlite", pytest.param("etcd", marks=pytest.mark.xdist_group("etcd")), "simulated"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    open_store: OpenStore
    if request.param == "etcd":
        open_store = OpenEtcd(request.getfixturevalue("etcd"))
    elif request.param == "sqlite":
        open_store = OpenSqlite(tmp_path)
    else:
        open_store = OpenSimulated()
    yield open_store
    for store in open_store.opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> MetadataStore:
    return await open_store()


async def now(store: MetadataStore) -> int:
    return (await store.read("")).revision


def puts(**values: bytes) -> Transaction:
    return Transaction(puts=tuple(Put(key, value) for key, value in values.items()))


async def next_changes(watch: AsyncIterator[Changes]) -> Changes:
    return await asyncio.wait_for(anext(watch), DEADLINE_S)


async def collect(store: MetadataStore, prefix: str, after_revision: int, count: int) -> list[Change]:
    collected: list[Change] = []
    async with aclosing(store.watch(prefix, after_revision)) as watch:
        while len(collected) < count:
            collected += (await next_changes(watch)).changes
    return collected


async def attach_to_a_short_lease(store: MetadataStore, key: str) -> tuple[LeaseId, Committed]:
    """As short as this machine allows: a slow one may need longer than the lease lasts."""
    for ttl_ms in (50, 500, 5_000):
        lease = await store.grant_lease(ttl_ms)
        with suppress(LeaseExpired):
            return lease, await store.commit(Transaction(puts=(Put(key, b"1", lease),)))
    raise AssertionError("leases end at once")


async def test_given_an_empty_store_when_read_then_a_watch_from_there_sees_what_comes_first(
    store: MetadataStore,
) -> None:
    snapshot = await store.read("")
    await store.commit(puts(a=b"1"))

    assert snapshot.entries == ()
    assert [change.key for change in await collect(store, "", snapshot.revision, count=1)] == ["a"]


async def test_given_a_commit_when_read_then_values_carry_the_revision_that_wrote_them(store: MetadataStore) -> None:
    first = await store.commit(puts(a=b"1", b=b"1"))
    second = await store.commit(puts(b=b"2"))

    snapshot = await store.read("")

    assert second.revision > first.revision
    assert snapshot.revision == second.revision
    assert snapshot.entries == (Entry("a", b"1", first.revision), Entry("b", b"2", second.revision))


async def test_given_keys_when_a_prefix_is_read_then_only_its_keys_come_sorted(store: MetadataStore) -> None:
    keys = ["topics/b", "topics/a", "topics", "topicsx", "topics0", "brokers/1", "topics/a.b", "topics/~"]
    await store.commit(Transaction(puts=tuple(Put(key, b"") for key in keys)))

    snapshot = await store.read("topics/")

    assert [entry.key for entry in snapshot.entries] == ["topics/a", "topics/a.b", "topics/b", "topics/~"]


async def test_given_a_stale_expectation_when_committed_then_conflict_and_nothing_is_written(
    store: MetadataStore,
) -> None:
    committed = await store.commit(puts(a=b"1"))
    await store.commit(puts(a=b"2"))
    before = await store.read("")

    with pytest.raises(Conflict) as conflict:
        await store.commit(
            Transaction(
                (Expect("a", committed.revision), Expect("b", 0)), (Put("a", b"3"), Put("b", b"3")), deletes=("c",)
            )
        )

    assert conflict.value.keys == ("a",)
    assert await store.read("") == before


async def test_given_expected_absence_when_the_key_exists_then_conflict(store: MetadataStore) -> None:
    await store.commit(puts(a=b"1"))

    with pytest.raises(Conflict):
        await store.commit(Transaction((Expect("a", 0),), (Put("a", b"2"),)))


async def test_given_the_right_revisions_when_committed_then_all_of_it_happens(store: MetadataStore) -> None:
    first = await store.commit(puts(a=b"1", b=b"1"))

    second = await store.commit(
        Transaction((Expect("a", first.revision), Expect("c", 0)), (Put("c", b"2"),), deletes=("a",))
    )

    assert (await store.read("")).entries == (Entry("b", b"1", first.revision), Entry("c", b"2", second.revision))


async def test_given_a_deleted_key_when_expected_absent_then_it_can_be_made_anew(store: MetadataStore) -> None:
    await store.commit(puts(a=b"1"))
    await store.commit(Transaction(deletes=("a",)))

    again = await store.commit(Transaction((Expect("a", 0),), (Put("a", b"2"),)))

    assert (await store.read("")).entries == (Entry("a", b"2", again.revision),)


async def test_given_nothing_to_write_when_committed_then_the_revision_stays(store: MetadataStore) -> None:
    first = await store.commit(puts(a=b"1"))

    compared = await store.commit(Transaction((Expect("a", first.revision),)))
    deleted_nothing = await store.commit(Transaction(deletes=("missing",)))

    assert compared == deleted_nothing == first


async def test_given_two_connections_when_one_commits_then_the_other_reads_and_conflicts(
    open_store: OpenStore,
) -> None:
    mine, theirs = await open_store(), await open_store()
    committed = await theirs.commit(puts(a=b"theirs"))

    assert (await mine.read("")).entries == (Entry("a", b"theirs", committed.revision),)
    with pytest.raises(Conflict):
        await mine.commit(Transaction((Expect("a", 0),), (Put("a", b"mine"),)))


async def test_given_many_writers_when_each_counts_up_by_compare_and_set_then_no_count_is_lost(
    open_store: OpenStore,
) -> None:
    stores = [await open_store() for _ in range(3)]

    async def count_up(store: MetadataStore) -> None:
        for _ in range(10):
            while True:
                entries = (await store.read("counter")).entries
                value, revision = (int(entries[0].value), entries[0].mod_revision) if entries else (0, 0)
                try:
                    await store.commit(
                        Transaction((Expect("counter", revision),), (Put("counter", b"%d" % (value + 1)),))
                    )
                    break
                except Conflict:
                    continue

    await asyncio.wait_for(asyncio.gather(*map(count_up, stores)), 60)

    assert (await stores[0].read("counter")).entries[0].value == b"30"


async def test_given_a_closed_store_when_opened_again_then_everything_is_there(open_store: OpenStore) -> None:
    first = await open_store()
    committed = await first.commit(puts(a=b"1"))
    await first.close()

    second = await open_store()

    snapshot = await second.read("")
    assert snapshot.revision == committed.revision
    assert snapshot.entries == (Entry("a", b"1", committed.revision),)


async def test_given_a_watch_when_committed_then_every_change_comes_in_order(store: MetadataStore) -> None:
    async with aclosing(store.watch("", await now(store))) as watch:
        waiting = spawn(next_changes(watch), name="test")
        await asyncio.sleep(0)
        await store.read("")  # by now the watch has looked, found nothing, and waits
        first = await store.commit(puts(a=b"1"))
        one = await waiting
        second = await store.commit(Transaction(puts=(Put("b", b"2"),), deletes=("a",)))
        two = await next_changes(watch)

    assert one == Changes(first.revision, (Change("a", b"1", first.revision),))
    assert two.revision == second.revision
    assert set(two.changes) == {Change("a", None, second.revision), Change("b", b"2", second.revision)}


async def test_given_history_when_a_watch_resumes_then_nothing_is_left_out_or_repeated(store: MetadataStore) -> None:
    revisions = [(await store.commit(puts(a=b"%d" % number))).revision for number in range(5)]

    changes = await collect(store, "", after_revision=revisions[1], count=3)

    assert [(change.value, change.mod_revision) for change in changes] == [
        (b"%d" % number, revisions[number]) for number in (2, 3, 4)
    ]


async def test_given_a_prefix_when_watched_then_other_keys_are_silent(store: MetadataStore) -> None:
    start = await now(store)
    await store.commit(puts(other=b"1"))
    await store.commit(Transaction(puts=(Put("topics/a", b"1"),)))
    await store.commit(puts(other=b"2"))
    last = await store.commit(Transaction(puts=(Put("topics/b", b"1"),)))

    changes = await collect(store, "topics/", after_revision=start, count=2)

    assert [change.key for change in changes] == ["topics/a", "topics/b"]
    assert changes[-1].mod_revision == last.revision


async def test_given_a_watch_when_another_connection_commits_then_it_is_seen(open_store: OpenStore) -> None:
    mine, theirs = await open_store(), await open_store()

    async with aclosing(mine.watch("", await now(mine))) as watch:
        waiting = spawn(next_changes(watch), name="test")
        await asyncio.sleep(0)
        committed = await theirs.commit(puts(a=b"1"))

        assert (await waiting).revision == committed.revision


async def test_given_history_is_gone_when_a_watch_resumes_then_it_says_compacted(
    open_store: OpenStore, store: MetadataStore
) -> None:
    first = await store.commit(puts(a=b"first"))
    for number in range(300):
        await store.commit(puts(a=b"%d" % number))
    await open_store.forget_history()

    with pytest.raises(Compacted):
        await collect(store, "", after_revision=first.revision, count=1)

    latest = (await store.read("")).revision
    assert (await collect(store, "", after_revision=latest - 1, count=1))[0].value == b"299"


async def test_given_a_watch_when_the_store_closes_then_the_watch_ends(store: MetadataStore) -> None:
    async def follow() -> None:
        async for _ in store.watch("", start):
            pass

    start = await now(store)
    following = spawn(follow(), name="test")
    await store.read("")
    await store.close()

    await asyncio.wait_for(following, DEADLINE_S)


async def test_given_a_kept_lease_when_time_passes_then_its_keys_stay_until_it_is_revoked(
    store: MetadataStore,
) -> None:
    lease = await store.grant_lease(60_000)
    await store.commit(Transaction(puts=(Put("leased", b"1", lease), Put("free", b"1"))))
    await store.keep_alive(lease)
    assert len((await store.read("")).entries) == 2

    await store.revoke_lease(lease)

    assert [entry.key for entry in (await store.read("")).entries] == ["free"]
    await store.revoke_lease(lease)
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    with pytest.raises(LeaseExpired):
        await store.commit(Transaction(puts=(Put("late", b"1", lease),)))


async def test_given_a_silent_holder_when_its_lease_runs_out_then_others_see_its_keys_go(
    open_store: OpenStore,
) -> None:
    holder, other = await open_store(), await open_store()
    lease, committed = await attach_to_a_short_lease(holder, "leased")

    changes = await collect(other, "", after_revision=committed.revision, count=1)

    assert changes[0].key == "leased"
    assert changes[0].value is None
    with pytest.raises(LeaseExpired):
        await holder.keep_alive(lease)


async def test_given_an_overwritten_key_when_its_former_lease_ends_then_the_key_stays(store: MetadataStore) -> None:
    lease = await store.grant_lease(60_000)
    await store.commit(Transaction(puts=(Put("key", b"1", lease),)))
    await store.commit(Transaction(puts=(Put("key", b"2"),)))

    await store.revoke_lease(lease)

    assert [entry.value for entry in (await store.read("")).entries] == [b"2"]


def test_given_limits_when_a_transaction_exceeds_them_then_it_cannot_be_made() -> None:
    many = tuple(Put(f"key{number}", b"") for number in range(MAX_TRANSACTION_OPERATIONS + 1))

    with pytest.raises(ValueError, match="operations"):
        Transaction(puts=many)
    with pytest.raises(ValueError, match="operations"):
        Transaction(expected=tuple(Expect(put.key, 0) for put in many))
    with pytest.raises(ValueError, match="bytes"):
        Transaction(puts=(Put("key", bytes(MAX_TRANSACTION_BYTES)),))
    with pytest.raises(ValueError, match="at most once"):
        Transaction(puts=(Put("key", b""),), deletes=("key",))
    with pytest.raises(ValueError, match="ASCII"):
        Transaction(puts=(Put("kéy", b""),))
    assert Transaction(puts=many[:-1]).size_bytes < MAX_TRANSACTION_BYTES


async def test_given_a_transaction_of_the_largest_size_when_committed_then_it_happens(store: MetadataStore) -> None:
    count = MAX_TRANSACTION_OPERATIONS
    value = bytes(MAX_TRANSACTION_BYTES // count - 20)
    largest = Transaction(
        tuple(Expect(f"key{number}", 0) for number in range(count)),
        tuple(Put(f"key{number}", value) for number in range(count)),
    )

    await store.commit(largest)

    assert len((await store.read("")).entries) == count
