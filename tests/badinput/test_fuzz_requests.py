"""A grammar fuzzer over every API and version: what comes out of it is answered or refused, and the broker lives on."""

from collections.abc import Iterator

import pytest

from tests.badinput.fuzzed_broker import FUZZED_SETTINGS, FuzzedBroker
from tests.badinput.fuzzing import cases, fuzz_timeout, spoilt, told_apart
from tests.badinput.hostile import EVERY_REQUEST, Vocabulary
from tests.badinput.rows import not_for_kafka
from tests.badinput.unharmed import MIB, Vitals
from tests.badinput.wire import whole_request
from tests.testkit import BrokerProcess

pytestmark = [pytest.mark.xdist_group("badinput-fuzz-requests"), not_for_kafka]

BROKER_SETTINGS = FUZZED_SETTINGS
USUAL_CASES = 2_500
TIDY_UP_EVERY = 250


@pytest.fixture
def target(broker: BrokerProcess) -> Iterator[FuzzedBroker]:
    target = FuzzedBroker(broker)
    yield target
    target.close()


@fuzz_timeout
def test_given_hostile_requests_of_every_api_and_version_when_sent_then_the_broker_answers_or_closes_and_lives(
    target: FuzzedBroker, vitals: Vitals
) -> None:
    vitals.growth_bytes = 64 * MIB
    vitals.cpu_limit_s = float("inf")

    for case, random in cases(USUAL_CASES):
        kind, version = EVERY_REQUEST[case % len(EVERY_REQUEST)]
        frame = whole_request(Vocabulary(random, target.topic_ids).request(kind, version), version)
        if random.random() < 0.6:
            frame = spoilt(frame, random)
        with told_apart(case, f"{kind.NAME} v{version}", frame):
            target.send(frame)
        if case % TIDY_UP_EVERY == 0:
            target.tidy_up()
    target.tidy_up()

    print(target.tally)
    assert min(target.tally.answered, target.tally.closed) > 0
