"""The clients under test, each connected to the shared broker, and the topics they are tested on."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.compat.clients.aiokafka_client import AiokafkaAdminClient, AiokafkaClient
from tests.compat.clients.confluent import ConfluentAdminClient, ConfluentClient
from tests.compat.clients.interface import AdminClient, Client
from tests.compat.clients.java import JavaAdminClient, JavaClient
from tests.compat.clients.kafka_python import KafkaPythonAdminClient, KafkaPythonClient
from tests.compat.clients.kcat import KcatClient
from tests.compat.members import PARTITIONS, Group, group_settings
from tests.compat.topics import CreateTopic, eventually_known
from tests.testkit import BrokerProcess, broker_under_test
from tests.testkit.java import JavaDriver, require_jars

_PYTHON_CLIENTS: tuple[type[Client], ...] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)
_PYTHON_ADMIN_CLIENTS: tuple[type[AdminClient], ...] = (
    ConfluentAdminClient,
    KafkaPythonAdminClient,
    AiokafkaAdminClient,
)

CLIENT_NAMES = [*(kind.name for kind in _PYTHON_CLIENTS), KcatClient.name, JavaClient.name]
ADMIN_CLIENT_NAMES = [*(kind.name for kind in _PYTHON_ADMIN_CLIENTS), JavaAdminClient.name]


@pytest.fixture(scope="session")
def java_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    require_jars()
    with JavaDriver(tmp_path_factory.mktemp("java") / "driver.log") as driver:
        yield driver


@pytest.fixture
def client_named(request: pytest.FixtureRequest, broker: BrokerProcess) -> Callable[[str], Client]:
    """Makes the client of that name, or skips the test with the reason why this machine has no such client."""

    def make(name: str) -> Client:
        if name == JavaClient.name:
            return JavaClient(broker.bootstrap, request.getfixturevalue("java_driver"))
        if name == KcatClient.name:
            if shutil.which("kcat") is None:
                pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
            return KcatClient(broker.bootstrap)
        return next(kind for kind in _PYTHON_CLIENTS if kind.name == name)(broker.bootstrap)

    return make


@pytest.fixture(params=CLIENT_NAMES)
def client(request: pytest.FixtureRequest, client_named: Callable[[str], Client]) -> Client:
    """Each client in turn."""
    return client_named(request.param)


@pytest.fixture(params=ADMIN_CLIENT_NAMES)
def admin(request: pytest.FixtureRequest, broker: BrokerProcess) -> AdminClient:
    """Each client that can administer topics, in turn."""
    if request.param == JavaAdminClient.name:
        return JavaAdminClient(broker.bootstrap, request.getfixturevalue("java_driver"))
    return next(kind for kind in _PYTHON_ADMIN_CLIENTS if kind.name == request.param)(broker.bootstrap)


@pytest.fixture
def create_topic(broker: BrokerProcess, topic_name: str) -> CreateTopic:
    """Creates the test's own topic, and returns its name when every partition can be used."""
    admin = ConfluentAdminClient(broker.bootstrap)

    def create(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        # Tests write records of fixed times, long ago; retention must not take those while a test looks at them.
        admin.create_topic(topic_name, partitions=partitions, configs={"retention.ms": "-1", **(configs or {})})
        eventually_known(lambda: len(admin.partition_leaders(topic_name)) == partitions)
        return topic_name

    return create


@pytest.fixture
def writer(broker: BrokerProcess) -> Client:
    """Whoever fills a topic in a test that is about reading it."""
    return ConfluentClient(broker.bootstrap)


@pytest.fixture
def topic(create_topic: CreateTopic) -> str:
    """A topic of one partition."""
    return create_topic()


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own for groups: a second is its whole patience with their members."""
    with broker_under_test().start(tmp_path_factory.mktemp("group-broker") / "data", **group_settings()) as shared:
        yield shared


@pytest.fixture
def new_group(group_broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Callable[[], Group]:
    """Makes a group without members on a topic of its own."""
    numbers = itertools.count(1)

    def make() -> Group:
        name = f"{topic_name}-{next(numbers)}"
        admin = ConfluentAdminClient(group_broker.bootstrap)
        admin.create_topic(name, partitions=PARTITIONS)
        eventually_known(lambda: len(admin.partition_leaders(name)) == PARTITIONS)
        return Group(group_broker, f"group-of-{name}", [name], tmp_path)

    return make
