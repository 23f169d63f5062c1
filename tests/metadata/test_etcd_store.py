"""The store on a real cluster of etcd: members that die or fall silent, a quorum that is lost, history that is gone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.testkit.etcd import Certificates, EtcdCluster, EtcdMember

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata import etcd_client, records
from penstock.metadata.etcd_client import PATIENCE_S, Unsettled
from penstock.metadata.etcd_pb2 import TxnRequest, TxnResponse
from penstock.metadata.etcd_store import PAGE_KEYS, EtcdStore
from penstock.metadata.follower import Follower
from penstock.metadata.open_store import open_store
from penstock.metadata.records import BrokerConfigsRecord
from penstock.metadata.store import (
    MAX_TRANSACTION_OPERATIONS,
    Changes,
    Committed,
    Compacted,
    Expect,
    MetadataStore,
    Put,
    Transaction,
)
from penstock.runtime.tasks import spawn

pytestmark = pytest.mark.xdist_group("etcd")

DEADLINE_S = 20


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def harmed(etcd: EtcdCluster) -> Iterator[EtcdCluster]:
    with etcd.healed_afterwards():
        yield etcd


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(address, "")
    try:
        yield store
    finally:
        await store.close()


async def put(store: MetadataStore, key: str, value: bytes = b"") -> Committed:
    return await store.commit(Transaction(puts=(Put(key, value),)))


async def next_changes(watch: AsyncIterator[Changes]) -> Changes:
    return await asyncio.wait_for(anext(watch), DEADLINE_S)


async def test_given_a_member_that_is_killed_when_used_then_nobody_notices(harmed: EtcdCluster, prefix: str) -> None:
    async with opened(harmed.address(prefix)) as store:
        await put(store, "a", b"1")
        harmed.members[0].kill()

        assert [entry.value for entry in (await store.read("")).entries] == [b"1"]
        await put(store, "a", b"2")

        assert [entry.value for entry in (await store.read("")).entries] == [b"2"]
        assert store.trouble is None


async def test_given_a_member_that_is_paused_when_used_then_calls_and_watches_move_on_before_its_connection_is_given_up(
    harmed: EtcdCluster, prefix: str
) -> None:
    async with opened(harmed.address(prefix)) as store, opened(harmed.address(prefix, of=harmed.members[1:])) as other:
        start = await put(store, "a", b"1")
        async with aclosing(store.watch("", start.revision)) as watch:
            waiting = spawn(next_changes(watch), name="test")
            await put(store, "b")
            await waiting
            harmed.members[0].pause()

            await other.read("")  # there is a leader again, should it have been the paused one
            written = await put(other, "a", b"2")

            assert (await store.read("a")).entries[0].value == b"2"
            changes = await asyncio.wait_for(anext(watch), 5)  # a silent connection is given up after 12 s
            assert (changes.revision, [change.value for change in changes.changes]) == (written.revision, [b"2"])
            await put(store, "a", b"3")


async def test_given_a_killed_member_when_its_watch_goes_on_elsewhere_then_without_gap_or_duplicate(
    harmed: EtcdCluster, prefix: str
) -> None:
    count = 200
    leader, follower, third = harmed.leader, *harmed.followers
    async with (
        opened(harmed.address(prefix, of=[follower, leader, third])) as store,
        opened(harmed.address(prefix, of=[leader])) as writer,
    ):
        seen: list[bytes | None] = []
        start = (await store.read("")).revision

        async def write() -> None:
            for number in range(count):
                await put(writer, "a", b"%d" % number)
                if number == count // 2:
                    harmed_at.set()

        harmed_at = asyncio.Event()
        async with aclosing(store.watch("", start)) as watch:
            writing = spawn(write(), name="test")
            await harmed_at.wait()
            follower.kill()
            while len(seen) < count:
                seen += [change.value for change in (await next_changes(watch)).changes]
            await writing

    assert seen == [b"%d" % number for number in range(count)]


async def test_given_a_lost_quorum_when_it_is_back_then_errors_end_and_the_watch_has_missed_nothing(
    harmed: EtcdCluster, prefix: str
) -> None:
    async with opened(harmed.address(prefix)) as store:
        start = await put(store, "a", b"1")
        async with aclosing(store.watch("", start.revision)) as watch:
            waiting = spawn(next_changes(watch), name="test")
            for member in harmed.followers:
                member.kill()

            with pytest.raises(BrokerError, match="no answer from etcd") as unreachable:
                await store.read("")
            with pytest.raises(BrokerError, match="no answer from etcd"):
                await put(store, "a", b"2")
            assert unreachable.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            trouble = store.trouble
            assert trouble is not None
            assert all(member.endpoint in trouble for member in harmed.members)

            await asyncio.to_thread(harmed.start_missing)
            written = await put(store, "a", b"3")
            changes = await waiting

        assert store.trouble is None
        assert (changes.revision, [change.value for change in changes.changes]) == (written.revision, [b"3"])


async def test_given_a_commit_whose_answer_is_lost_when_reported_then_the_outcome_is_open_and_reading_tells_it(
    harmed: EtcdCluster, prefix: str
) -> None:
    async with opened(harmed.address(prefix, of=[harmed.leader])) as store:
        first = await put(store, "a", b"1")
        for member in harmed.followers:
            member.pause()

        with pytest.raises(BrokerError, match="did not say whether it committed") as unknown:
            await store.commit(Transaction((Expect("a", first.revision),), (Put("a", b"2"),)))

        for member in harmed.members:
            member.resume()
        await asyncio.to_thread(harmed.start_missing)
        (entry,) = (await store.read("")).entries
        again = await store.commit(Transaction((Expect("a", entry.mod_revision),), (Put("a", b"3"),)))
        assert unknown.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert entry.value in (b"1", b"2")
        assert (await store.read("")).entries[0].mod_revision == again.revision


async def test_given_a_commit_that_writes_what_it_compares_when_its_answer_is_lost_then_it_happens_once_and_is_told(
    harmed: EtcdCluster, prefix: str
) -> None:
    """The leader dies at any moment of it: before it has heard, or after it has committed."""
    async with opened(harmed.address(prefix)) as store:
        revision = (await put(store, "a", b"0")).revision
        for number in range(1, 4):
            leader = harmed.leader

            async def killed(leader: EtcdMember = leader) -> None:
                leader.kill()

            killing = spawn(killed(), name="kill")
            for attempt in range(50):
                value = b"%d-%d" % (number, attempt)
                transaction = Transaction((Expect("a", revision),), (Put("a", value), Put("b", value)))
                revision = (await asyncio.wait_for(store.commit(transaction), DEADLINE_S)).revision
            await killing
            await asyncio.to_thread(harmed.start_missing)

            entries = (await store.read("")).entries
            assert [(entry.value, entry.mod_revision) for entry in entries] == [(value, revision)] * 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_given_a_commit_that_deletes_what_it_compares_when_its_answer_is_lost_then_it_happens_once_and_is_told(
    etcd: EtcdCluster, prefix: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(etcd.address(prefix)) as store:
        assert isinstance(store, EtcdStore)
        fence, first, second = [(await put(store, key)).revision for key in ("fence", "a", "b")]
        await put(store, "c")
        commit = store._client.commit

        async def lost(request: TxnRequest) -> TxnResponse:
            monkeypatch.setattr(store._client, "commit", commit)
            if moment == "after":
                await commit(request)
                await put(store, "c")  # what others do meanwhile is not taken for it
            raise Unsettled(ErrorCode.KAFKA_STORAGE_ERROR, "lost")

        monkeypatch.setattr(store._client, "commit", lost)
        expected = (Expect("fence", fence), Expect("a", first), Expect("b", second))
        before = await store.read("")

        committed = await store.commit(Transaction(expected, deletes=("a", "b")))

        assert [entry.key for entry in (await store.read("")).entries] == ["c", "fence"]
        async with aclosing(store.watch("", before.revision)) as watch:
            changes = await next_changes(watch)
        revisions = {change.key: change.mod_revision for change in changes.changes if change.value is None}
        assert revisions == {"a": committed.revision, "b": committed.revision}


async def test_given_a_deletion_whose_answer_is_lost_when_somebody_else_has_changed_a_key_then_its_outcome_is_open(
    etcd: EtcdCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(etcd.address(prefix)) as store:
        assert isinstance(store, EtcdStore)
        first, second = [(await put(store, key)).revision for key in ("a", "b")]
        commit = store._client.commit

        async def lost(request: TxnRequest) -> TxnResponse:
            monkeypatch.setattr(store._client, "commit", commit)
            await store.commit(Transaction(deletes=("a",)))
            raise Unsettled(ErrorCode.KAFKA_STORAGE_ERROR, "lost")

        monkeypatch.setattr(store._client, "commit", lost)

        with pytest.raises(Unsettled):
            await store.commit(Transaction((Expect("a", first), Expect("b", second)), deletes=("a", "b")))


async def test_given_a_follower_that_is_cut_off_when_history_is_compacted_then_its_image_is_read_anew(
    harmed: EtcdCluster, prefix: str
) -> None:
    """Trap A10."""

    def configured(value: str) -> Transaction:
        record = BrokerConfigsRecord(configs={"x": value})
        return Transaction(puts=(Put(records.broker_configs_key(None), records.encode(record)),))

    leader, cut_off = harmed.leader, harmed.followers[0]
    async with (
        opened(harmed.address(prefix, of=[leader])) as writer,
        opened(harmed.address(prefix, of=[cut_off])) as store,
    ):
        follower = Follower(store)
        await follower.start()
        await asyncio.wait_for(follower.reached((await writer.commit(configured("0"))).revision), DEADLINE_S)
        cut_off.kill()

        for number in range(1, 10):
            committed = await writer.commit(configured(str(number)))
        harmed.compact(committed.revision)
        await asyncio.to_thread(harmed.start_missing)

        await asyncio.wait_for(follower.reached(committed.revision), DEADLINE_S)
        assert follower.image.broker_configs[None] == {"x": "9"}
        await follower.stop()


async def test_given_a_deletion_at_the_very_revision_of_compaction_when_resumed_before_it_then_it_is_not_lost(
    etcd: EtcdCluster, prefix: str
) -> None:
    async with opened(etcd.address(prefix)) as store:
        seen = await put(store, "a")
        deleted = await store.commit(Transaction(deletes=("a",)))
        etcd.compact(deleted.revision)
        await put(store, "b")

        with pytest.raises(Compacted):
            async with aclosing(store.watch("", seen.revision)) as watch:
                await next_changes(watch)


async def test_given_ten_thousand_keys_when_read_in_pages_then_all_are_there_and_of_one_revision(
    etcd: EtcdCluster, prefix: str
) -> None:
    keys = [f"key{number:05}" for number in range(10_000)]
    assert len(keys) > 3 * PAGE_KEYS
    async with opened(etcd.address(prefix)) as store, opened(etcd.address(prefix)) as other:
        for at in range(0, len(keys), MAX_TRANSACTION_OPERATIONS):
            batch = keys[at : at + MAX_TRANSACTION_OPERATIONS]
            await store.commit(Transaction(puts=tuple(Put(key, bytes(200)) for key in batch)))

        async def keep_writing() -> None:
            number = 0
            while True:  # the ends of the range change together
                await other.commit(Transaction(puts=(Put(keys[0], b"%d" % number), Put(keys[-1], b"%d" % number))))
                number += 1

        writing = spawn(keep_writing(), name="test")
        first_values: set[bytes] = set()
        while len(first_values) < 3:
            snapshot = await store.read("")
            first_values.add(snapshot.entries[0].value)
            assert [entry.key for entry in snapshot.entries] == keys
            assert snapshot.entries[0].value == snapshot.entries[-1].value
            assert snapshot.revision >= snapshot.entries[0].mod_revision
        writing.cancel()
        await asyncio.wait([writing])


async def test_given_others_on_the_same_etcd_when_nothing_is_written_then_no_revision_is_promised_that_never_comes(
    etcd: EtcdCluster, prefix: str
) -> None:
    async with opened(etcd.address(prefix)) as store:
        follower = Follower(store)
        await follower.start()
        written = await put(store, records.broker_configs_key(None), records.encode(BrokerConfigsRecord(configs={})))
        etcd.put(f"{prefix}x/other", b"1")

        compared = await store.commit(Transaction((Expect(records.broker_configs_key(None), written.revision),)))

        await asyncio.wait_for(follower.reached(compared.revision), DEADLINE_S)
        await follower.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member with TLS that wants a certificate, and a password."""
    directory = tmp_path_factory.mktemp("guarded-etcd")
    with EtcdCluster.start(directory, members=1, certificates=Certificates.make(directory)) as cluster:
        cluster.require_passwords("broker", "p@ss/word", "ours/")
        yield cluster


async def test_given_tls_and_a_password_when_a_member_forgets_the_token_then_another_is_fetched(
    guarded: EtcdCluster,
) -> None:
    async with opened(guarded.address("ours", credentials="broker:p%40ss%2Fword@")) as store:
        start = await put(store, "a", b"1")
        async with aclosing(store.watch("", start.revision)) as watch:
            waiting = spawn(next_changes(watch), name="test")
            guarded.members[0].kill()
            await asyncio.to_thread(guarded.start_missing)

            written = await put(store, "a", b"2")

            assert (await waiting).revision == written.revision
        lease = await store.grant_lease(60_000)
        await store.keep_alive(lease)
        await store.revoke_lease(lease)


@pytest.mark.parametrize(
    ("prefix", "credentials", "refusal"),
    [
        ("ours", "broker:wrong@", "authentication failed, invalid user ID or password"),
        ("ours", "", "permission denied"),  # etcd takes the name in the certificate for the user
        ("theirs", "broker:p%40ss%2Fword@", "permission denied"),
    ],
)
async def test_given_someone_without_the_right_when_opened_then_refused_at_once_in_etcds_words(
    guarded: EtcdCluster, prefix: str, credentials: str, refusal: str
) -> None:
    with pytest.raises(BrokerError, match=refusal) as refused:
        async with asyncio.timeout(PATIENCE_S):
            await open_store(guarded.address(prefix, credentials=credentials), "")

    assert "word" not in str(refused.value).removesuffix("password")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_client, "PATIENCE_S", 1)


@pytest.mark.usefixtures("impatient")
async def test_given_no_certificate_where_one_is_wanted_when_opened_then_no_answer(guarded: EtcdCluster) -> None:
    assert guarded.certificates is not None
    endpoint = guarded.members[0].endpoint

    with pytest.raises(BrokerError, match=f"no answer from etcd .*{endpoint}"):
        await open_store(f"etcds://{endpoint}/ours?ca={guarded.certificates.ca}", "")


async def test_given_a_password_that_etcd_does_not_ask_for_when_opened_then_it_works(
    etcd: EtcdCluster, prefix: str
) -> None:
    async with opened(etcd.address(prefix, credentials="broker:secret@")) as store:
        await put(store, "a")


@pytest.mark.usefixtures("impatient")
async def test_given_nobody_at_the_address_when_opened_then_told_who_was_asked_and_what_came_back() -> None:
    with pytest.raises(BrokerError, match=r"127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused"):
        await open_store("etcd://127.0.0.1:1,127.0.0.1:2/penstock", "")


async def test_given_a_file_of_tls_that_is_missing_when_opened_then_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"cannot read .*nothing\.pem, the ca of the metadata address: No such file"):
        await open_store(f"etcds://127.0.0.1:1/x?ca={tmp_path / 'nothing.pem'}", "")
