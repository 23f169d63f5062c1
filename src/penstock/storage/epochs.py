"""Which leader wrote which part of the log: leader epochs and the offsets they start at.

Followers and consumers find out with it where their log stops agreeing with the leader's (KIP-101, KIP-279, KIP-320).
What must stay true: epochs and start offsets both rise, and the entries are a tuple that is replaced as a whole, so
that undoing an append is putting the previous tuple back.
"""

from __future__ import annotations

from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    __slots__ = ("entries", "latest_epoch")

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self.entries: tuple[EpochEntry, ...] = ()
        # Kept beside the entries because every append compares it.
        self.latest_epoch = UNDEFINED_EPOCH
        self.restore(entries)

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        self.entries = entries
        self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """The leader of `epoch` writes from `start_offset` on. True if that was news.

        Earlier entries that contradict it (an epoch that wrote nothing below this offset) go.
        """
        if epoch <= self.latest_epoch:
            return False
        kept = tuple(entry for entry in self.entries if entry.start_offset < start_offset)
        self.restore((*kept, EpochEntry(epoch, start_offset)))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """The largest known epoch that is at most `epoch`, and the offset after its last; undefined where none is."""
        if epoch == UNDEFINED_EPOCH or not self.entries or epoch > self.latest_epoch:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest_epoch:
            return EpochEntry(epoch, log_end_offset)
        later = next(entry for entry in self.entries if entry.epoch > epoch)
        floor = max((entry.epoch for entry in self.entries if entry.epoch <= epoch), default=epoch)
        return EpochEntry(floor, later.start_offset)

    def epoch_for(self, offset: int) -> int:
        """The epoch of the leader that wrote `offset`."""
        return max((entry.epoch for entry in self.entries if entry.start_offset <= offset), default=UNDEFINED_EPOCH)

    def cut_after(self, log_end_offset: int) -> bool:
        """The log now ends here. True if that changed anything."""
        return self._keep(tuple(entry for entry in self.entries if entry.start_offset < log_end_offset))

    def cut_before(self, log_start_offset: int) -> bool:
        """The log now starts here; the epoch of the first offset starts with it. True if that changed anything."""
        passed = [entry for entry in self.entries if entry.start_offset <= log_start_offset]
        if not passed:
            return False
        later = self.entries[len(passed) :]
        return self._keep((EpochEntry(passed[-1].epoch, log_start_offset), *later))

    def _keep(self, entries: tuple[EpochEntry, ...]) -> bool:
        changed = entries != self.entries
        if changed:
            self.restore(entries)
        return changed
