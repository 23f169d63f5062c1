"""What a row of the benchmark says: ratio, goal, and when the client was the limit."""

import pytest
from bench.side_by_side.judging import Samples, goals, judged
from bench.side_by_side.rows import AT_LEAST, AT_MOST, FSYNC, MACHINE, Goal, Row

pytestmark = pytest.mark.quick

FASTER = Row("produce", "mb_per_s", "MB/s", Goal(AT_LEAST, 1.3))
SMALLER = Row("memory", "mb", "MB", Goal(AT_MOST, 0.2), higher_is_better=False)
THROUGH_LIBRARY = Row("produce-java", "mb_per_s", "MB/s", Goal(AT_LEAST, 1.3), is_library_client=True)


def samples(figure: str = "mb_per_s", **values: list[float]) -> Samples:
    return Samples({system: [{figure: value} for value in found] for system, found in values.items()})


def test_given_repetitions_when_judged_then_medians_make_the_ratio_and_spreads_are_kept() -> None:
    row = judged(FASTER, samples(penstock=[100, 130, 900], kafka=[90, 100, 200]))

    assert (row["penstock"], row["kafka"], row["ratio"], row["met"]) == (130, 100, 1.3, True)
    assert row["spread"] == {"penstock": [100, 900], "kafka": [90, 200]}
    assert row["goal"] == {"direction": "at least", "ratio": 1.3, "of": "kafka"}


def test_given_a_ratio_just_below_the_goal_when_judged_then_it_is_missed() -> None:
    assert judged(FASTER, samples(penstock=[129], kafka=[100]))["met"] is False
    assert judged(SMALLER, samples("mb", penstock=[21], kafka=[100]))["met"] is False
    assert judged(SMALLER, samples("mb", penstock=[20], kafka=[100]))["met"] is True


def test_given_no_goal_when_judged_then_nothing_is_missed() -> None:
    row = judged(Row("disk", "mb_per_s", "MB"), samples(penstock=[5], kafka=[1]))

    assert (row["goal"], row["met"], row["ratio"]) == (None, True, 5)


def test_given_no_figure_of_ours_or_of_kafka_when_judged_then_the_goal_is_missed_and_the_reason_said() -> None:
    broken = samples(kafka=[100])
    broken.reasons["penstock"] = "it failed"

    row = judged(FASTER, broken)

    assert (row["penstock"], row["ratio"], row["met"], row["reasons"]["penstock"]) == (None, None, False, "it failed")
    assert judged(FASTER, samples(penstock=[100]))["met"] is False


def test_given_peers_without_a_figure_when_judged_then_each_has_a_reason() -> None:
    found = samples(penstock=[2], kafka=[1], nats=[7])
    found.reasons["rabbitmq"] = "not installed"

    row = judged(FASTER, found)

    assert (row["nats"], row["rabbitmq"], row["reasons"]) == (7, None, {"rabbitmq": "not installed"})


def test_given_a_limit_beside_the_ratio_when_it_is_reached_then_the_goal_is_missed() -> None:
    flushed = Row("ack", "p99", "ms", Goal(AT_MOST, 1.0, under=10), higher_is_better=False, durability=FSYNC)

    assert judged(flushed, samples("p99", penstock=[9.9], kafka=[20]))["met"] is True
    assert judged(flushed, samples("p99", penstock=[10], kafka=[20]))["met"] is False
    assert judged(flushed, samples("p99", penstock=[9], kafka=[8]))["met"] is False


def test_given_a_goal_of_the_machine_when_judged_then_kafka_does_not_matter() -> None:
    bulk = Row("bulk", "mb_per_s", "MB/s", Goal(AT_LEAST, 0.8, of=MACHINE))

    row = judged(bulk, samples(penstock=[800], kafka=[2_000], machine=[1_000]))

    assert (row["met"], row["machine"], row["ratio"]) == (True, 1_000, 0.4)


@pytest.mark.parametrize(("ours", "is_bound"), [(95, True), (94, False)])
def test_given_a_library_that_gets_nearly_as_much_from_us_as_from_the_stub_then_the_client_is_the_limit(
    ours: float, is_bound: bool
) -> None:
    row = judged(THROUGH_LIBRARY, samples(penstock=[ours], kafka=[90], stub=[100]))

    assert row["bound"] == ("client" if is_bound else None)
    assert row["goal"]["of"] == ("stub" if is_bound else "kafka")
    assert row["met"] is is_bound


def test_given_a_library_whose_core_is_busy_when_the_stub_gets_much_more_then_it_is_bound_and_the_goal_missed() -> None:
    busy = samples(penstock=[50], kafka=[40], stub=[100])
    busy.figures["penstock"] = [{"mb_per_s": 50, "mb_per_s.client_cpu_share": 0.97}]

    row = judged(THROUGH_LIBRARY, busy)

    assert (row["bound"], row["met"]) == ("client", False)


def test_given_a_raw_client_with_a_stub_when_judged_then_it_is_never_bound() -> None:
    assert judged(FASTER, samples(penstock=[100], kafka=[50], stub=[100]))["bound"] is None


def test_given_rows_when_goals_are_asked_for_then_rows_without_one_are_on_neither_side() -> None:
    found = [
        judged(FASTER, samples(penstock=[2], kafka=[1])),
        judged(FASTER, samples(penstock=[1], kafka=[1])),
        judged(Row("disk", "mb_per_s", "MB"), samples(penstock=[1], kafka=[1])),
    ]

    met, missed = goals(found)

    assert (met, missed) == ([found[0]], [found[1]])
