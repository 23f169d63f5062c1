"""`penstock topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.client import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientConfig,
    Timeout,
    admin_client,
    answer,
    fail,
    pairs,
    reason,
)
from penstock.cli.group_view import NOTHING
from penstock.cli.options import AsJson
from penstock.cli.terminal import print_columns, print_json
from penstock.core.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicDescription

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]
Configs = Annotated[list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic key to set.")]

BROKER_DEFAULT = -1
_AGAIN_AFTER_S = 0.2
_ATTEMPTS = 5

# librdkafka prints topic ids in plain base64, Kafka in the URL-safe one.
_URL_SAFE = str.maketrans("+/", "-_")


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="The broker's default when not given.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", help="The broker's default when not given.")
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no error.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic."""
    admin = admin_client(bootstrap, client_config)
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    new = NewTopic(
        topic,
        BROKER_DEFAULT if partitions is None else partitions,
        BROKER_DEFAULT if replication_factor is None else replication_factor,
        config=pairs("--config", config),
    )
    try:
        admin.create_topics([new], request_timeout=timeout)[topic].result()
    except KafkaException as refused:
        if not (if_not_exists and refused.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
            fail(f'topic "{topic}": {reason(refused.args[0])}')
        print(f"{topic} exists already")
    else:
        print(f"created {topic}")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List topics with their partitions and replicas."""
    admin = admin_client(bootstrap, client_config)
    names = [name for name in _topic_names(admin, timeout) if internal or not name.startswith("__")]
    rows = [_summary(description) for description in _describe(admin, names, timeout)]
    if json:
        print_json(rows)
    else:
        print_columns(("TOPIC", "PARTITIONS", "REPLICAS"), [tuple(row.values()) for row in rows])


@app.command()
def describe(
    topics: Topics,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a topic's partitions, replicas, offsets and the keys that were set for it."""
    described = _descriptions(lambda: admin_client(bootstrap, client_config), topics, timeout)
    if json:
        print_json(described)
        return
    for number, document in enumerate(described):
        if number:
            print()
        _print_description(document)


@app.command()
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="New number of partitions; only upwards.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="A topic key to put back to its default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add partitions, set keys, put keys back."""
    if partitions is None and not config and not delete_config:
        fail("nothing to alter: give --partitions, --config or --delete-config", 2)
    admin = admin_client(bootstrap, client_config)
    if partitions is not None:
        _add_partitions(admin, topic, partitions, timeout)
    if config or delete_config:
        _alter_configs(admin, topic, pairs("--config", config), delete_config or [], timeout)
    print(f"altered {topic}")


@app.command()
def delete(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also topics that hold the broker's own state, such as groups' offsets.")
    ] = False,
) -> None:
    """Delete topics and everything in them."""
    for topic in topics:
        if topic in INTERNAL_TOPICS and not internal:
            fail(f'topic "{topic}" holds the broker\'s own state: with --internal it is deleted all the same', 2)
    admin = admin_client(bootstrap, client_config)
    from confluent_kafka import KafkaException

    failures = []
    for topic, future in admin.delete_topics(topics, request_timeout=timeout).items():
        try:
            future.result()
            print(f"deleted {topic}")
        except KafkaException as refused:
            failures.append(f'topic "{topic}": {reason(refused.args[0])}')
    if failures:
        fail("; ".join(failures))


def _topic_names(admin: AdminClient, timeout: float) -> list[str]:
    from confluent_kafka import KafkaException

    try:
        return sorted(admin.list_topics(timeout=timeout).topics)
    except KafkaException as refused:
        fail(reason(refused.args[0]))


def _describe(admin: AdminClient, names: list[str], timeout: float) -> list[TopicDescription]:
    from confluent_kafka import TopicCollection

    if not names:
        return []
    futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout)
    return [answer(f'topic "{name}"', futures[name]) for name in names]


def _summary(topic: TopicDescription) -> dict[str, object]:
    replicas = len(topic.partitions[0].replicas) if topic.partitions else 0
    return {"topic": topic.name, "partitions": len(topic.partitions), "replicas": replicas}


def _descriptions(admin: Callable[[], AdminClient], names: list[str], timeout: float) -> list[dict[str, Any]]:
    """Looks again while leaders change, with another client: one that was told of a controller that is dead, or of such
    a leader, waits for it as long as it may.
    """
    from confluent_kafka import KafkaError, KafkaException

    passing = (
        *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE),
        *(KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT),
    )
    deadline = time.monotonic() + timeout
    while True:
        client = admin()
        try:
            return [_description(client, found, timeout / _ATTEMPTS) for found in _found(client, names, timeout)]
        except KafkaException as refused:
            if refused.args[0].code() not in passing or time.monotonic() >= deadline:
                fail(reason(refused.args[0]))
        time.sleep(_AGAIN_AFTER_S)


def _found(admin: AdminClient, names: list[str], timeout: float) -> list[TopicDescription]:
    """Raises KafkaException while leaders change; a topic that is not there ends the command."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout / _ATTEMPTS)
    found = []
    for name in names:
        try:
            found.append(futures[name].result())
        except KafkaException as refused:
            if refused.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
                fail(f'topic "{name}": {reason(refused.args[0])}')
            raise
    return found


def _description(admin: AdminClient, topic: TopicDescription, timeout: float) -> dict[str, Any]:
    """Raises KafkaException when a leader does not say its offsets."""
    from confluent_kafka.admin import OffsetSpec

    first = _offsets(admin, topic, OffsetSpec.earliest(), timeout)  # type: ignore[no-untyped-call]
    end = _offsets(admin, topic, OffsetSpec.latest(), timeout)  # type: ignore[no-untyped-call]
    partitions = [
        {
            "partition": partition.id,
            "leader": partition.leader.id if partition.leader else None,
            "replicas": [node.id for node in partition.replicas],
            "isr": [node.id for node in partition.isr],
            "log_start_offset": first.get(partition.id),
            "end_offset": end.get(partition.id),
        }
        for partition in topic.partitions
    ]
    configs = _overrides(admin, topic.name, timeout)
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id).translate(_URL_SAFE),
        "configs": configs,
        "partitions": partitions,
    }


def _offsets(admin: AdminClient, topic: TopicDescription, spec: Any, timeout: float) -> dict[int, int]:
    """Of the partitions that somebody leads."""
    from confluent_kafka import TopicPartition

    asked = {TopicPartition(topic.name, partition.id): spec for partition in topic.partitions if partition.leader}
    futures = admin.list_offsets(asked, request_timeout=timeout) if asked else {}
    return {partition.partition: future.result().offset for partition, future in futures.items()}


def _overrides(admin: AdminClient, topic: str, timeout: float) -> dict[str, str]:
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=timeout).values()
    entries = answer(f'topic "{topic}"', future).values()
    set_here = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        entry.name: entry.value for entry in sorted(entries, key=lambda entry: entry.name) if entry.source == set_here
    }


def _print_description(document: dict[str, Any]) -> None:
    print(f"{document['topic']}  id {document['topic_id']}")
    for name, value in document["configs"].items():
        print(f"  {name}={value}")
    rows = [
        (
            partition["partition"],
            "none" if partition["leader"] is None else partition["leader"],
            ",".join(map(str, partition["replicas"])),
            ",".join(map(str, partition["isr"])),
            *(NOTHING if partition[key] is None else partition[key] for key in ("log_start_offset", "end_offset")),
        )
        for partition in document["partitions"]
    ]
    print_columns(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"), rows)


def _add_partitions(admin: AdminClient, topic: str, partitions: int, timeout: float) -> None:
    from confluent_kafka.admin import NewPartitions

    futures = admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=timeout)
    answer(f'topic "{topic}"', futures[topic])


def _alter_configs(admin: AdminClient, topic: str, put: dict[str, str], drop: list[str], timeout: float) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in put.items()] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in drop
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource], request_timeout=timeout).values()
    answer(f'topic "{topic}"', future)
