from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.epochs import EpochEntry, LeaderEpochs

# Epoch 0 wrote 0 to 9, epoch 2 wrote 10 to 19, epoch 5 from 20 on; the log ends at 30.
EPOCHS = (EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(5, 20))
END = 30


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (0, (0, 10)),
        (1, (0, 10)),  # an epoch that wrote nothing here: the one before it
        (2, (2, 20)),
        (4, (2, 20)),
        (5, (5, 30)),
        (6, (-1, -1)),  # later than anything known
        (-1, (-1, -1)),
    ],
)
def test_given_epochs_when_asked_where_one_ends_then_the_next_larger_ones_start_is_told(
    asked: int, told: tuple[int, int]
) -> None:
    assert LeaderEpochs(EPOCHS).end_offset_for(asked, END) == told


def test_given_an_epoch_below_all_known_when_asked_then_it_ends_where_the_first_starts() -> None:
    assert LeaderEpochs(EPOCHS[1:]).end_offset_for(1, END) == (1, 10)


def test_given_no_epochs_when_asked_then_undefined() -> None:
    assert LeaderEpochs().end_offset_for(0, END) == (-1, -1)


def test_given_an_epoch_that_wrote_nothing_when_the_next_starts_at_the_same_offset_then_it_goes() -> None:
    epochs = LeaderEpochs(EPOCHS)
    epochs.assign(7, 20)

    assert epochs.entries == (*EPOCHS[:2], EpochEntry(7, 20))


def test_given_a_known_or_older_epoch_when_assigned_then_nothing_changes() -> None:
    epochs = LeaderEpochs(EPOCHS)

    assert not epochs.assign(5, 25)
    assert not epochs.assign(1, 25)
    assert epochs.entries == EPOCHS


def test_given_a_cut_end_when_epochs_start_at_or_after_it_then_they_go() -> None:
    epochs = LeaderEpochs(EPOCHS)

    assert epochs.cut_after(20)
    assert (epochs.entries, epochs.latest_epoch) == (EPOCHS[:2], 2)
    assert not epochs.cut_after(20)


def test_given_a_moved_start_when_it_lies_within_an_epoch_then_that_epoch_starts_there() -> None:
    epochs = LeaderEpochs(EPOCHS)

    assert epochs.cut_before(15)
    assert epochs.entries == (EpochEntry(2, 15), EpochEntry(5, 20))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=12),
    st.integers(-1, 40),
    st.integers(0, 70),
    st.integers(0, 70),
)
@settings(max_examples=200, deadline=None)
def test_given_any_history_when_asked_then_the_answer_is_that_of_a_list_of_every_record(
    steps: list[tuple[int, int]], asked: int, start: int, end: int
) -> None:
    """A log where every record knows its epoch, cut at both ends."""
    epochs = LeaderEpochs()
    written: list[int] = []
    epoch = 0
    for step, count in steps:
        epoch += step
        epochs.assign(epoch, len(written))
        written += [epoch] * count
    end = min(end, len(written))
    start = min(start, end)
    epochs.cut_after(end)
    epochs.cut_before(start)
    left = written[start:end]

    assert [epochs.epoch_for(offset) for offset in range(start, end)] == left
    if left:
        assert epochs.latest_epoch == left[-1]
        known = [each for each in left if each <= asked]
        later = [start + place for place, each in enumerate(left) if each > asked]
        if asked < 0 or asked > left[-1]:
            assert epochs.end_offset_for(asked, end) == (-1, -1)
        else:
            assert epochs.end_offset_for(asked, end) == (known[-1] if known else asked, later[0] if later else end)
