"""The metadata store on etcd, for brokers on several machines.

Keys live under a prefix, so that several clusters, and others, can share one etcd; revisions are etcd's, and rise with
everybody's writes. What must stay true:

- Every read is linearizable, and all its pages are of one revision.
- Nobody is told of a revision that a watch of this prefix never reaches: waiting for it would have no end.
- A commit whose answer was lost is sent again only if the first, should it still come, would then be refused: it writes
  a key that it compares. What is found instead tells whether the first had come (`_settled`).
- A watch is opened at the revision that was seen last, not at the one after it. etcd before 3.4.34 and 3.5.16 forgets a
  deletion at the very revision it is compacted to; like this such a watch is told that its history is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metadata_address import EtcdAddress
from penstock.metadata import etcd_pb2 as pb
from penstock.metadata.etcd_client import (
    LEASE_GRANT,
    LEASE_REVOKE,
    PATIENCE_S,
    RANGE,
    EtcdClient,
    EtcdRefused,
    Unsettled,
)
from penstock.metadata.store import (
    Change,
    Changes,
    Committed,
    Compacted,
    Conflict,
    Entry,
    Expect,
    LeaseExpired,
    LeaseId,
    Snapshot,
    Transaction,
    prefix_end,
)

PAGE_KEYS = 1_000
MAX_READ_ATTEMPTS = 5

_LEASE_NOT_FOUND = "requested lease not found"
_COMPACTED = "required revision has been compacted"


class EtcdStore:
    """Keeps the contract of MetadataStore. Made by `open`."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix}/"
        self._last_write = 0

    @classmethod
    async def open(cls, address: EtcdAddress) -> EtcdStore:
        """Raises BrokerError when no member answers, or when etcd does not let us in."""
        client = EtcdClient(address)
        store = cls(client, address.prefix)
        try:
            await client.ask(RANGE, store._range("", limit=1))
        except BaseException:
            await client.close()
            raise
        return store

    @property
    def trouble(self) -> str | None:
        return self._client.trouble

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._client.close()

    async def commit(self, transaction: Transaction) -> Committed:
        try:
            response = await self._client.commit(self._request_of(transaction))
        except EtcdRefused as refused:
            raise _as_lease_expired(refused) from None
        except Unsettled as unsettled:
            if not _happens_once(transaction):
                raise
            return await self._settled(transaction, unsettled)
        if not response.succeeded:
            raise Conflict(_changed_keys(transaction, response.responses))
        return await self._committed(transaction, response)

    async def _committed(self, transaction: Transaction, response: pb.TxnResponse) -> Committed:
        revision = response.header.revision
        if transaction.puts or any(each.response_delete_range.deleted for each in response.responses):
            self._last_write = max(self._last_write, revision)
            return Committed(revision)
        return Committed(await self._last_change(revision))

    async def _settled(self, transaction: Transaction, unsettled: Unsettled) -> Committed:
        """Ask again, as etcd elects a leader, and find out what the first attempt has come to."""
        loop = asyncio.get_running_loop()
        give_up_at_s = loop.time() + PATIENCE_S
        while True:
            try:
                response = await self._client.commit(self._request_of(transaction))
                break
            except Unsettled as again:
                if loop.time() >= give_up_at_s:
                    raise again from None
            except BrokerError:
                raise unsettled from None
        if response.succeeded:
            return await self._committed(transaction, response)
        changed = _changed_keys(transaction, response.responses)
        written = {put.key: put.value for put in transaction.puts}
        touched = {*written, *transaction.deletes}
        if not any(key in touched for key in changed):
            raise Conflict(changed)  # what it compares and writes is as it was
        if not all(key in touched for key in changed):
            raise unsettled
        if not written:
            return await self._deleted(transaction, response.header.revision, unsettled)
        found = [(await self._client.ask(RANGE, pb.RangeRequest(key=self._key(key)))).kvs for key in written]
        revisions = {kvs[0].mod_revision if kvs else 0 for kvs in found}
        is_ours = len(revisions) == 1 and [kvs[0].value for kvs in found if kvs] == [*written.values()]
        if not is_ours:
            raise unsettled  # somebody else has written since, or instead
        self._last_write = max(self._last_write, *revisions)
        return Committed(*revisions)

    async def _deleted(self, transaction: Transaction, now: int, unsettled: Unsettled) -> Committed:
        """A deletion is not told by what is there, but by the revision in which all its keys went."""
        gone = [expect for expect in transaction.expected if expect.key in transaction.deletes and expect.mod_revision]
        present, absent = max(expect.mod_revision for expect in gone), now
        try:
            while absent - present > 1:
                middle = (present + absent) // 2
                if await self._are_as_expected(gone, middle):
                    present = middle
                else:
                    absent = middle
            if not await self._are_absent(gone, absent) or not await self._are_as_expected(gone, present):
                raise unsettled  # somebody else has deleted or written one of them
        except EtcdRefused:
            raise unsettled from None  # history is compacted
        self._last_write = max(self._last_write, absent)
        return Committed(absent)

    async def _are_as_expected(self, keys: Sequence[Expect], revision: int) -> bool:
        return [expect.mod_revision for expect in keys] == await self._mod_revisions(keys, revision)

    async def _are_absent(self, keys: Sequence[Expect], revision: int) -> bool:
        return not any(await self._mod_revisions(keys, revision))

    async def _mod_revisions(self, keys: Sequence[Expect], revision: int) -> list[int]:
        """As they were then; 0 of a key that was not there."""
        found = [
            (await self._client.ask(RANGE, pb.RangeRequest(key=self._key(each.key), revision=revision))).kvs
            for each in keys
        ]
        return [kvs[0].mod_revision if kvs else 0 for kvs in found]

    async def read(self, prefix: str) -> Snapshot:
        for _ in range(MAX_READ_ATTEMPTS):
            try:
                return await self._read_pages(prefix)
            except EtcdRefused as refused:
                if _COMPACTED not in refused.message:
                    raise
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "etcd is compacted faster than it can be read")

    async def _read_pages(self, prefix: str) -> Snapshot:
        request = self._range(prefix, limit=PAGE_KEYS)
        entries: list[Entry] = []
        while True:
            page = await self._client.ask(RANGE, request)
            entries += [Entry(self._our_key(kv.key), kv.value, kv.mod_revision) for kv in page.kvs]
            if not request.revision:
                request.revision = page.header.revision
            if not page.more:
                return Snapshot(request.revision, tuple(entries))
            request.key = page.kvs[-1].key + b"\0"

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
        seen = after_revision
        within = self._range(prefix)
        while not self._client.is_closed:
            # Progress is told when nothing happens, so that what others write does not let this watch fall behind. No
            # fragments are asked for: without them, etcd never splits a revision.
            create = pb.WatchCreateRequest(
                key=within.key, range_end=within.range_end, start_revision=max(seen, 1), progress_notify=True
            )
            async with aclosing(self._client.watch(create)) as responses:
                async for response in responses:
                    if response.compact_revision:
                        raise Compacted(f"changes after revision {seen} are no longer kept")
                    changes = self._changes_after(seen, response.events)
                    if changes:
                        seen = changes[-1].mod_revision
                        yield Changes(seen, changes)
                    elif not response.events:
                        seen = max(seen, response.header.revision)

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        # Asked twice, one of the two leases is nobody's and runs out.
        granted = await self._client.ask(LEASE_GRANT, pb.LeaseGrantRequest(ttl_s=max(1, -(-ttl_ms // 1000))))
        return LeaseId(granted.id)

    async def keep_alive(self, lease_id: LeaseId) -> None:
        renewed = await self._client.keep_alive(pb.LeaseKeepAliveRequest(id=lease_id))
        if renewed.ttl_s <= 0:
            raise LeaseExpired(f"lease {lease_id} has ended")

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        try:
            await self._client.ask(LEASE_REVOKE, pb.LeaseRevokeRequest(id=lease_id))
        except EtcdRefused as refused:
            if _LEASE_NOT_FOUND not in refused.message:
                raise

    def _request_of(self, transaction: Transaction) -> pb.TxnRequest:
        expected = [(self._key(expect.key), expect.mod_revision) for expect in transaction.expected]
        puts = [
            pb.PutRequest(key=self._key(put.key), value=put.value, lease=put.lease_id or 0) for put in transaction.puts
        ]
        deletes = [pb.DeleteRangeRequest(key=self._key(key)) for key in transaction.deletes]
        return pb.TxnRequest(
            compare=[
                pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=mod_revision)
                for key, mod_revision in expected
            ],
            success=[pb.RequestOp(request_put=put) for put in puts]
            + [pb.RequestOp(request_delete_range=delete) for delete in deletes],
            failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=True)) for key, _ in expected],
        )

    async def _last_change(self, revision: int) -> int:
        """The last revision at which something of ours was written, as far as is known: deletions leave no trace."""
        newest = self._range("", limit=1)
        newest.revision = revision
        newest.keys_only = True
        newest.sort_order, newest.sort_target = pb.RangeRequest.DESCEND, pb.RangeRequest.MOD
        try:
            kvs = (await self._client.ask(RANGE, newest)).kvs
        except EtcdRefused as refused:
            if _COMPACTED not in refused.message:
                raise
            return self._last_write
        return max(self._last_write, kvs[0].mod_revision if kvs else 0)

    def _changes_after(self, seen: int, events: Sequence[pb.Event]) -> tuple[Change, ...]:
        return tuple(
            Change(
                self._our_key(event.kv.key),
                None if event.type == pb.Event.DELETE else event.kv.value,
                event.kv.mod_revision,
            )
            for event in events
            if event.kv.mod_revision > seen
        )

    def _range(self, prefix: str, *, limit: int = 0) -> pb.RangeRequest:
        start = self._prefix + prefix
        end = prefix_end(start)
        assert end is not None
        return pb.RangeRequest(key=start.encode(), range_end=end.encode(), limit=limit)

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _our_key(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode()


def _happens_once(transaction: Transaction) -> bool:
    """Whether it writes a key that it compares, or deletes one: then it cannot happen again after it has happened."""
    compared = {expect.key: expect.mod_revision for expect in transaction.expected}
    return any(put.key in compared for put in transaction.puts) or any(compared.get(key) for key in transaction.deletes)


def _as_lease_expired(refused: EtcdRefused) -> Exception:
    if _LEASE_NOT_FOUND in refused.message:
        return LeaseExpired("a lease of the transaction has ended")
    return refused


def _changed_keys(transaction: Transaction, found: Sequence[pb.ResponseOp]) -> tuple[str, ...]:
    changed = []
    for expect, each in zip(transaction.expected, found, strict=True):
        kvs = each.response_range.kvs
        if (kvs[0].mod_revision if kvs else 0) != expect.mod_revision:
            changed.append(expect.key)
    return tuple(changed)
