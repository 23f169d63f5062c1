"""What all suites share: which tests are quick, the broker that tests may share, and names that keep them apart."""

import re
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.testkit import BrokerProcess, broker_under_test
from tests.testkit.etcd import EtcdCluster

_TESTS = Path(__file__).parent

# A shell without job control lets its background jobs ignore Ctrl-C, and so would every process that they start. What
# is handled here is as usual there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine's other work than about the code.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

# Suites without processes, sockets to brokers or long searches: what `make check` runs.
_QUICK_FOLDERS = frozenset(
    {"protocol", "core", "machines", "metadata", "net", "replication", "runtime", "storage", "coordinators", "history"}
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(_TESTS).parts[0] in _QUICK_FOLDERS and not _needs_etcd(item):
            item.add_marker(pytest.mark.quick)


def _needs_etcd(item: pytest.Item) -> bool:
    """Its tests are in one group, so that only one worker starts a cluster."""
    return any(mark.args == ("etcd",) for mark in item.iter_markers("xdist_group"))


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members that all tests of a run share; who harms one heals it (`healed_afterwards`)."""
    with EtcdCluster.start(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests of a run share; tests stay apart by using topics of their own (fixture `topic_name`).

    `PENSTOCK_TEST_AGAINST=kafka pytest tests/compat` runs the same tests against Apache Kafka itself. A test that
    fails there demands something that Kafka does not do: then the test is wrong, not the broker.
    """
    with broker_under_test().start(tmp_path_factory.mktemp("shared-broker") / "data") as shared:
        yield shared


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, with enough of the test's own name to be found in a log."""
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name.removeprefix("test_given_"))
    return f"{readable[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    shared = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(shared, BrokerProcess):
        report.sections.append(("broker log", shared.log_tail()))
    return report
