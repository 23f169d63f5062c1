"""How tools reach a broker: most through confluent-kafka, with any broker of the Kafka protocol, others by `wire`.

confluent-kafka is imported when a tool needs it, never before: a broker runs without it, and says how to get it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from penstock.wire.cluster import Cluster
from penstock.wire.connection import reach
from penstock.wire.errors import BadSettings
from penstock.wire.settings import Address, ClientSettings, addresses

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient, TopicMetadata

Settings = dict[str, str | int | float | bool]
Client = TypeVar("Client")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_CONNECT_TIMEOUT_S = 3
_CLIENT_ID = "penstock-cli"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="PENSTOCK_BOOTSTRAP",
        help="A broker of the cluster; several with commas.",
    ),
]
ClientConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--client-config",
        "-X",
        metavar="KEY=VALUE",
        help="A setting of librdkafka, for TLS and logins; may be repeated.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the broker.")]

DEFAULT_TIMEOUT_S = 30.0


def fail(message: str, exit_code: int = 1) -> NoReturn:
    print(f"penstock: {message}", file=sys.stderr)
    raise typer.Exit(exit_code)


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """`KEY=VALUE` of a repeated option."""
    parted = [text.partition("=") for text in texts or ()]
    for name, separator, _ in parted:
        if not separator or not name:
            fail(f'{option} takes KEY=VALUE, not "{name}"', 2)
    return {name: value for name, _, value in parted}


def admin_client(bootstrap: str, settings: list[str] | None) -> AdminClient:
    _require_confluent_kafka()
    from confluent_kafka.admin import AdminClient

    return _made(AdminClient, client_settings(bootstrap, settings, {}))


def producer(bootstrap: str, settings: list[str] | None, own: Settings) -> Producer:
    _require_confluent_kafka()
    from confluent_kafka import Producer

    return _made(Producer, client_settings(bootstrap, settings, own))


def consumer(bootstrap: str, settings: list[str] | None, own: Settings) -> Consumer:
    """A consumer that is assigned its partitions: it joins no group and commits nothing."""
    _require_confluent_kafka()
    from confluent_kafka import Consumer

    group: Settings = {"group.id": _CLIENT_ID, "enable.auto.commit": False, "enable.auto.offset.store": False}
    return _made(Consumer, client_settings(bootstrap, settings, group | own))


def _made(client: Callable[[Settings], Client], settings: Settings) -> Client:
    """librdkafka looks at its settings when a client is made."""
    from confluent_kafka import KafkaException

    try:
        return client(settings)
    except KafkaException as refused:
        fail(f"-X: {refused.args[0].str()}", 2)


def _require_confluent_kafka() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        fail("this command needs confluent-kafka: pip install confluent-kafka")


def client_settings(bootstrap: str, settings: list[str] | None, own: Settings) -> Settings:
    _check_reachable(bootstrap)
    # librdkafka's log would tell of every attempt to connect; what failed is said once, by `fail`.
    quiet: Settings = {"log_level": 0}
    return {"bootstrap.servers": bootstrap, "client.id": _CLIENT_ID} | quiet | own | pairs("-X", settings)


def _check_reachable(bootstrap: str) -> None:
    """Nothing listening is the most common mistake, and librdkafka would try for the whole timeout."""
    channel, _ = reach(_addresses(bootstrap), _CONNECT_TIMEOUT_S)
    channel.close()


def connected(bootstrap: str, timeout: float) -> Cluster:
    """For requests that librdkafka does not know: without TLS and logins, for which there are no options yet."""
    settings = ClientSettings(
        bootstrap=_addresses(bootstrap),
        client_id=_CLIENT_ID,
        request_timeout_s=timeout,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
    )
    return Cluster(settings)


def _addresses(bootstrap: str) -> tuple[Address, ...]:
    try:
        return addresses(bootstrap)
    except BadSettings as error:
        fail(f"--bootstrap-server {error.problem}", 2)


def answer(what: str, future: Future[Any]) -> Any:
    """What the broker answered, or the end of the command with the reason."""
    from confluent_kafka import KafkaException

    try:
        return future.result()
    except KafkaException as refused:
        fail(f"{what}: {reason(refused.args[0])}")


def topic_metadata(client: AdminClient | Consumer, topic: str, timeout: float) -> TopicMetadata:
    """The topic as the broker knows it, without creating it; the command ends here when there is none."""
    from confluent_kafka import KafkaException

    try:
        topics = client.list_topics(timeout=timeout).topics
    except KafkaException as error:
        fail(reason(error.args[0]))
    if topic not in topics:
        fail(f'no topic "{topic}"')
    found = topics[topic]
    if found.error is not None:
        fail(f'topic "{topic}": {reason(found.error)}')
    return found


def reason(error: KafkaError) -> str:
    """librdkafka's words for an error, and its name, which is what one searches for."""
    return f"{error.str()} ({error.name()})"
