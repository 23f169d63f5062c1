"""A cluster for tests of the controller: a metadata store in a dictionary, with the image that follows it."""

from __future__ import annotations

import hashlib
from typing import Self, TypeVar

from penstock.controller.commands import (
    AlterConfigs,
    AlterOperation,
    ChangeConfigs,
    Command,
    ConfigChange,
    ConfigResource,
    CreatedTopic,
    CreateTopics,
    NewTopic,
    ResourceType,
)
from penstock.controller.machine import handle
from penstock.controller.registration import Registration, begin_session, change_session
from penstock.core.config import Assignment, BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.metadata.image import EMPTY_IMAGE, ClusterImage, PartitionImage, TopicImage
from penstock.metadata.records import (
    FEATURES_KEY,
    SUPPORTED_FEATURES,
    FeaturesRecord,
    SessionState,
    VersionedRecord,
    encode,
    session_key,
)
from penstock.metadata.store import Change, Changes, Conflict, Entry, LeaseId, Put, Transaction

Reply = TypeVar("Reply")

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


class ACluster:
    """A metadata store in a dictionary, with the image that follows it: what the machine decides, happens."""

    def __init__(self, *brokers: BrokerId, **settings: str) -> None:
        self.content: dict[str, Entry] = {}
        self.image: ClusterImage = EMPTY_IMAGE
        self.transactions = 0
        self.stop_after: int | None = None
        self.config = BrokerConfig([Assignment(name.replace("_", "."), v, "test") for name, v in settings.items()])
        self._commands = 0
        for broker_id in brokers:
            self.broker_starts(broker_id)

    def ask(self, command: Command[Reply]) -> Reply:
        self._commands += 1
        seed = hashlib.blake2b(b"%d" % self._commands, digest_size=16).digest()
        decision = handle(command, self.image, self.config, seed)
        for transaction in decision.transactions:
            self._commit(transaction)
        return decision.reply

    def broker_starts(
        self, broker_id: BrokerId, state: SessionState = SessionState.SERVING, rack: str | None = None
    ) -> int:
        """A new session, also of a broker that has one. Returns its epoch."""
        registration = Registration(broker_id, (), host=f"machine-{broker_id}", rack=rack)
        transaction, epoch = begin_session(registration, self.image, state, LeaseId(broker_id))
        self._commit(transaction)
        return epoch

    def broker_becomes(self, broker_id: BrokerId, state: SessionState) -> None:
        epoch = self.image.sessions[broker_id].epoch
        self._commit(change_session(self.image, broker_id, epoch, state, LeaseId(broker_id)))

    def broker_dies(self, broker_id: BrokerId) -> None:
        """Its lease has run out."""
        self._commit(Transaction(deletes=(session_key(broker_id),)))

    def with_features(self, **levels: int) -> Self:
        """As if it had been initialized: the newest ones, and these."""
        newest = {name: highest for name, (_, highest) in SUPPORTED_FEATURES.items()}
        self.write(
            FEATURES_KEY, FeaturesRecord(levels=newest | {each.replace("_", "."): n for each, n in levels.items()})
        )
        return self

    def write(self, key: str, record: VersionedRecord) -> None:
        """Whatever stands there."""
        self._commit(Transaction(puts=(Put(key, encode(record)),)))

    def _commit(self, transaction: Transaction) -> None:
        if self.stop_after is not None and self.transactions >= self.stop_after:
            raise InterruptedError
        self.transactions += 1
        for expect in transaction.expected:
            entry = self.content.get(expect.key)
            if (entry.mod_revision if entry else 0) != expect.mod_revision:
                raise Conflict((expect.key,))
        revision = self.image.revision + 1
        changes = [Change(put.key, put.value, revision) for put in transaction.puts]
        changes += [Change(key, None, revision) for key in transaction.deletes]
        for change in changes:
            if change.value is None:
                del self.content[change.key]
            else:
                self.content[change.key] = Entry(change.key, change.value, revision)
        self.image, _ = self.image.apply(Changes(revision, tuple(changes)))

    def create(self, name: str, partition_count: int = 1, replication_factor: int = 1, **more: object) -> TopicImage:
        topic = NewTopic(name, partition_count, replication_factor, **more)  # type: ignore[arg-type]
        (result,) = self.ask(CreateTopics((topic,)))
        assert isinstance(result.outcome, CreatedTopic), result.outcome
        return self.image.topics[name]

    def refuses(self, *topics: NewTopic) -> ErrorCode:
        """Asks for topics, checks that nothing was written, and returns the code of the last."""
        before = self.image
        results = self.ask(CreateTopics(topics))
        error = results[-1].outcome
        assert isinstance(error, BrokerError)
        assert error.message != error.code.name
        assert self.image.topics == before.topics
        return error.code

    def partition(self, name: str, partition: int = 0) -> PartitionImage:
        state = self.image.partition(TopicPartition(name, partition))
        assert state is not None
        return state

    def alter_topic(self, name: str, *changes: tuple[str, AlterOperation, str | None]) -> BrokerError | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        command = AlterConfigs((ChangeConfigs(resource, tuple(ConfigChange(*change) for change in changes)),))
        (result,) = self.ask(command)
        return result.error
