"""Where a follower's log stops agreeing with its leader's, and what it cuts off (KIP-101, KIP-279, KIP-595).

Two logs agree up to the end of the last leader epoch that both know. The leader says which of its epochs comes closest
to the one that the follower asks with, and where that ended; the follower cuts to where both have it, and asks again.
Every round makes the follower's log shorter, so it ends, with a log that is a beginning of the leader's.

What must stay true: only what the leader has not is cut. The high watermark of a follower says nothing about that, it
may lag behind what is committed (trap A1).
"""

from __future__ import annotations

from penstock.storage.epochs import UNDEFINED_EPOCH, LeaderEpochs

# The end of an epoch is written as the pair (epoch, end offset).
EpochEnd = tuple[int, int]


def diverging_epoch(
    epochs: LeaderEpochs, log_end_offset: int, *, last_fetched_epoch: int, fetch_offset: int
) -> EpochEnd | None:
    """The leader's side. None: its log agrees with one that ends at `fetch_offset`, with a batch of
    `last_fetched_epoch` (-1: with none). Otherwise the largest epoch up to that one that it has, and its end.

    To be asked for an offset that is not below the log's start; above its end it is the answer.
    """
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    epoch, end_offset = _end_of(epochs, last_fetched_epoch, log_end_offset)
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None


def truncation_offset(epochs: LeaderEpochs, log_end_offset: int, diverging: EpochEnd) -> int:
    """The follower's side: where its log is to end before it asks again. Always below where it ends now."""
    epoch, leader_end_offset = diverging
    _, own_end_offset = _end_of(epochs, epoch, log_end_offset)
    return min(own_end_offset, leader_end_offset, log_end_offset)


def _end_of(epochs: LeaderEpochs, epoch: int, log_end_offset: int) -> EpochEnd:
    """Of the largest epoch up to this one; of one later than all, that is the latest, which ends with the log."""
    if not epochs.entries:
        return epoch, log_end_offset
    return epochs.end_offset_for(min(epoch, epochs.latest_epoch), log_end_offset)
