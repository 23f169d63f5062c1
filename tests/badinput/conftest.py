"""The broker that gets the bad input: one real process per module, looked at before and after every test.

A module that needs settings of its own has them in `BROKER_SETTINGS`. `PENSTOCK_TEST_AGAINST=kafka` runs the tests
against Apache Kafka: where we mean to differ, a row says what Kafka answers or is marked `only_ours`.
"""

from collections.abc import Iterator

import pytest

from tests.badinput.unharmed import ANSWER_TIMEOUT_S, Vitals, unharmed
from tests.testkit import BrokerProcess, RawClient, broker_under_test


@pytest.fixture(scope="module")
def module_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = getattr(request.module, "BROKER_SETTINGS", {})
    with broker_under_test().start(tmp_path_factory.mktemp("bad-input") / "data", **settings) as broker:
        broker.until_loaded()
        yield broker


@pytest.fixture
def vitals(module_broker: BrokerProcess) -> Iterator[Vitals]:
    """Fails the test when the broker does not come out of it unharmed; the next test gets a living one in any case."""
    if not module_broker.is_running:
        module_broker.restart()
        module_broker.until_loaded()
    with unharmed(module_broker) as vitals:
        yield vitals


@pytest.fixture
def broker(vitals: Vitals) -> BrokerProcess:
    return vitals.broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    """The connection that misbehaves."""
    with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        yield client
