"""Files of partitions that are not on this broker any more: of deleted topics, and of those that others have now.

They are renamed as soon as nobody uses them, so that their names are free again; they are removed in the background.
A partition may come back before that, so who opens a log asks whether another has to go first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.ids import TopicId, TopicPartition
from penstock.replication.partition import Partition
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.log_dirs import DataDirectory

log = logging.getLogger(__name__)

RETRY_S = 1.0
POLL_S = 0.01


class Doomed(NamedTuple):
    topic_id: TopicId
    topic_partition: TopicPartition
    # To other brokers; else its topic was deleted.
    is_leaving: bool = False


class Departures:
    def __init__(
        self, data: DataDirectory, checkpointing: asyncio.Lock, *, flusher: Flusher, files: Files, tasks: TaskGroup
    ) -> None:
        """No checkpoint is written while `checkpointing` is held: it would speak of a name that is another's."""
        self._data = data
        self._checkpointing = checkpointing
        self._flusher = flusher
        self._files = files
        self._tasks = tasks
        self._due: list[Doomed] = []
        self._retired: list[Partition] = []
        # How many times each has left whose files have yet to go.
        self._leaving: Counter[tuple[TopicId, int]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._due)

    def retired(self, partition: Partition) -> None:
        """Nobody finds it any more; what was under way in it may be still."""
        self._retired.append(partition)

    def leaves(self, topic_id: TopicId, index: int) -> None:
        self._leaving[topic_id, index] += 1

    def is_leaving(self, topic_id: TopicId, index: int) -> bool:
        return self._leaving[topic_id, index] > 0

    def due(self, doomed: Iterable[Doomed]) -> None:
        """In the order of the images that say so."""
        self._due += doomed

    async def carry_out(self) -> None:
        """OSError: tried again with the next call."""
        if not self._due:
            return
        # Flushes and compaction write by name, and the name may soon be another log's.
        retired, self._retired = self._retired, []
        for each in retired:
            while each.is_shortening:  # noqa: ASYNC110 - no news of that
                await asyncio.sleep(POLL_S)
            await until_at_rest(each.log, self._flusher)
        gone = list(self._due)
        paths = await self._rename([each.topic_partition for each in gone])
        del self._due[: len(gone)]
        self._leaving -= Counter((each.topic_id, each.topic_partition.partition) for each in gone if each.is_leaving)
        self.remove(paths)

    async def now(self, topic_partition: TopicPartition) -> None:
        """One that nobody uses, and whose name is wanted."""
        self.remove(await self._rename([topic_partition]))

    async def _rename(self, gone: list[TopicPartition]) -> list[str]:
        async with self._checkpointing:
            return await self._files.run(self._data.set_deleted, gone)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._tasks.spawn(self._remove(path), name="remove-deleted")

    async def _remove(self, path: str) -> None:
        """Tried for as long as it takes: nobody else would before the next start."""
        is_said = False
        while True:
            try:
                await self._files.run(self._data.remove, path)
                return
            except OSError as error:
                if not is_said:
                    log.error("a deleted partition's files are still there, trying again", extra={"error": error})
                is_said = True
            await asyncio.sleep(RETRY_S)


async def until_at_rest(each: Log, flusher: Flusher) -> None:
    """Until nothing is under way in its files."""
    while flusher.is_busy(each) or each.cleaning.is_busy or each.readers:  # noqa: ASYNC110 - no news of that
        await asyncio.sleep(POLL_S)
