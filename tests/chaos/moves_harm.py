"""Partitions that move while brokers are killed (trap A13); brokers that are drained, and given work again.

A move is asked for, new replicas join, they take over and the old ones remove their files. Within each of these steps
somebody is killed by chance, and comes back. Then the move has to end, and nobody else may hold files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from penstock.controller.commands import AlterOperation, ResourceType
from penstock.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from penstock.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.chaos.cluster_clients import PARTITIONS
from tests.chaos.conftest import rounds
from tests.chaos.harming import GETS_ON_WITHIN_S, Harming, Kind, let_pass
from tests.chaos.invariants import Stored
from tests.cli.conftest import QuickTools, Tools
from tests.testkit import Broker, RawClient, eventually

REPLICAS = 3
# When somebody is killed, in this order.
ASKED_FOR, JOINING, TAKEN_OVER = STEPS = ("it was asked for", "new replicas join", "new replicas have taken over")
_RATE, _THROTTLED = "follower.replication.throttled.rate", "follower.replication.throttled.replicas"

Where = tuple[str, int]
Replicas = Mapping[Where, Sequence[int]]


class MovesHarm:
    def __init__(self, harming: Harming, topics: Sequence[str], stored: Stored) -> None:
        self._harming = harming
        self._cluster = harming.cluster
        self._luck = harming.luck
        self._topics = topics
        self._stored = stored

    @property
    def kinds(self) -> list[Kind]:
        return [self.move_everything, self.one_replica_and_three_again, self.drain_and_give_work_again]

    def move_everything(self) -> None:
        """To brokers that have nothing of it, as far as there are so many."""
        self._move({where: self._elsewhere(replicas) for where, replicas in self._replicas().items()})

    def _elsewhere(self, replicas: Sequence[int]) -> list[int]:
        others = [number for number in self._cluster.ids if number not in replicas]
        target = others[:REPLICAS] + self._luck.sample(replicas, REPLICAS - len(others[:REPLICAS]))
        return self._luck.sample(target, REPLICAS)

    def one_replica_and_three_again(self) -> None:
        """While the only one is away nothing can be written; it holds everything when it is back."""
        ids = self._cluster.ids
        alone = {where: [self._luck.choice(ids)] for where in self._replicas()}
        self._move(alone)
        self._harming.until_all_get_on("there is one replica")
        self._kill(self._luck.choice([number for (number,) in alone.values()]), "which has the only replica", alone)
        self._move({where: self._luck.sample(ids, REPLICAS) for where in alone})

    def drain_and_give_work_again(self) -> None:
        self._harming.until_settled()
        before = self._replicas()
        drained = self._luck.choice(sorted({number for replicas in before.values() for number in replicas}))
        others = [number for number in self._cluster.ids if number != drained]
        self._harming.say(f"  broker {drained} is drained")
        with ThreadPoolExecutor(1) as pool:
            command = pool.submit(self._operate, Tools, "broker", "drain", drained, "--yes")
            eventually(lambda: self._leaves(drained, before), GETS_ON_WITHIN_S, "nothing is drained")
            if self._luck.random() < 0.5:
                self._kill(self._luck.choice(others), "meanwhile", {})
            command.result()
        assert not self._held_by(drained)
        self._until_nobody_else_has_files()
        self._harming.until_all_get_on("a broker is drained")
        self._harming.check_invariants()
        if self._luck.random() < 0.5:
            self._kill(drained, "which has nothing", {})
        self._harming.say(f"  broker {drained} is given work again")
        self._operate(QuickTools, "broker", "drain", drained, "--cancel")
        self._operate(QuickTools, "cluster", "rebalance", "--yes")
        assert self._held_by(drained)
        self._until_nobody_else_has_files()

    def _operate(self, tools: type[Tools], *command: object) -> None:
        """Given again where brokers are killed: what has begun goes on, what has not is found by the next."""

        def is_done() -> bool:
            try:
                bootstrap = self._cluster.bootstrap
            except FileNotFoundError:
                return False  # one of them is just being started
            finished = tools(bootstrap).run(*command)
            assert finished.returncode == 0, finished.stderr.decode()
            return True

        eventually(is_done, GETS_ON_WITHIN_S, f"{command} fails")

    # A move

    def _move(self, target: Replicas) -> None:
        self._harming.until_settled()
        before = self._replicas()
        steps = self._luck.sample(STEPS, rounds(short=1, full=len(STEPS)))
        added = {where: sorted(set(target[where]) - set(before[where])) for where in target}
        for (topic, partition), replicas in target.items():
            self._harming.say(f"  {topic}-{partition} moves from {before[topic, partition]} to {replicas}")
        with self._perhaps_held_back(added) if JOINING in steps else self._at_full_speed():
            self._ask_for(target)
            if ASKED_FOR in steps:
                self._kill_somebody(ASKED_FOR, before, target)
            if JOINING in steps and any(added.values()):
                eventually(lambda: self._have_begun(added), GETS_ON_WITHIN_S, "no replica joins")
                self._kill_somebody(JOINING, before, target)
        if TAKEN_OVER in steps:
            eventually(lambda: self._have_moved(target) > 0, GETS_ON_WITHIN_S, "no move ends")
            self._kill_somebody(TAKEN_OVER, before, target)
        eventually(lambda: self._all_have_moved(target), GETS_ON_WITHIN_S, "not all moves end")
        self._until_nobody_else_has_files()
        self._harming.say("  all have moved")

    def _ask_for(self, target: Replicas) -> None:
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(partition_index=partition, replicas=list(replicas))
                        for (topic, partition), replicas in target.items()
                        if topic == name
                    ],
                )
                for name in self._topics
            ],
            allow_replication_factor_change=True,
            timeout_ms=30_000,
        )

        def is_taken() -> bool:
            with RawClient(self._harming.anyone().address) as client:
                answer = client.exchange(request, 1, AlterPartitionReassignmentsResponse)
            rows = [row for topic in answer.responses for row in topic.partitions]
            assert answer.error_code == 0 and not any(row.error_code for row in rows), answer
            return len(rows) == len(target)

        eventually(is_taken, GETS_ON_WITHIN_S)

    @contextmanager
    def _at_full_speed(self) -> Iterator[None]:
        yield

    @contextmanager
    def _perhaps_held_back(self, added: Replicas) -> Iterator[None]:
        """New replicas get nothing meanwhile, or as much as they can: what was written is copied in no time."""
        if self._luck.random() < 0.5:
            yield
            return
        self._harming.say("  new replicas are held back")
        named = {
            topic: ",".join(f"{where[1]}:{number}" for where in added if where[0] == topic for number in added[where])
            for topic in self._topics
        }
        self._configure(
            {
                (ResourceType.BROKER, ""): {_RATE: "0"},
                **{(ResourceType.TOPIC, topic): {_THROTTLED: replicas or None} for topic, replicas in named.items()},
            }
        )
        yield
        self._configure(
            {
                **{(ResourceType.TOPIC, topic): {_THROTTLED: None} for topic in self._topics},
                (ResourceType.BROKER, ""): {_RATE: None},
            }
        )

    def _configure(self, settings: Mapping[tuple[ResourceType, str], Mapping[str, str | None]]) -> None:
        resources = []
        for (kind, name), values in settings.items():
            changes = [
                IncrementallyAlterableConfig(
                    name=key,
                    config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET,
                    value=value,
                )
                for key, value in values.items()
            ]
            resources.append(IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=changes))

        def is_set() -> bool:
            with RawClient(self._harming.anyone().address) as client:
                request = IncrementalAlterConfigsRequest(resources=resources)
                rows = client.exchange(request, 1, IncrementalAlterConfigsResponse).responses
            assert not any(row.error_code for row in rows), rows
            return True

        eventually(is_set, GETS_ON_WITHIN_S)

    # Who is killed

    def _kill_somebody(self, step: str, before: Replicas, target: Replicas) -> None:
        where = self._luck.choice(list(target))
        leader = self._records()[where]["leader"]
        roles: dict[str, Collection[int]] = {
            "leads": [leader] if leader is not None else [],
            "joins": set(target[where]) - set(before[where]),
            "goes": set(before[where]) - set(target[where]),
            "decides": self._harming.ids(self._harming.controller()),
        }
        role = self._luck.choice([role for role, who in roles.items() if who])
        self._kill(self._luck.choice(sorted(roles[role])), f"when {step}: {role}", target)

    def _kill(self, number: int, what: str, target: Replicas) -> None:
        """It comes back at once, or when the others have gone on without it, if they can."""
        alone = [each for each in (*target.values(), *self._in_sync()) if set(each) == {number}]
        broker: Broker = self._cluster[number]
        self._harming.say(f"  {broker.name} killed {what}")
        broker.kill()
        if alone:
            let_pass(self._luck.choice((0, 1.5)))  # within its session, or behind it
        elif self._luck.random() < 0.5:
            self._harming.until_all_get_on("a broker is away")
        self._harming.check_invariants()
        self._harming.say(f"  {broker.name} comes back")
        broker.restart(same_port=True)

    # What the metadata and the files say

    def _records(self) -> dict[Where, Mapping[str, Any]]:
        stored = self._stored()
        return {
            (topic, partition): stored[f"partitions/{stored[f'topics/{topic}']['topic_id']}/{partition}"]
            for topic in self._topics
            for partition in range(PARTITIONS)
        }

    def _replicas(self) -> dict[Where, Sequence[int]]:
        return {where: record["replicas"] for where, record in self._records().items()}

    def _in_sync(self) -> list[Sequence[int]]:
        return [record["isr"] for record in self._records().values()]

    def _held_by(self, number: int) -> list[str]:
        """Of any topic, also those of the cluster's own."""
        records = self._stored().items()
        return [key for key, record in records if key.startswith("partitions/") and number in record["replicas"]]

    def _leaves(self, number: int, before: Replicas) -> bool:
        held = [record for where, record in self._records().items() if number in before[where]]
        return any(number in record["removing"] or number not in record["replicas"] for record in held)

    def _have_begun(self, added: Replicas) -> bool:
        return any(
            (self._cluster[number].data / f"{topic}-{partition}").exists()
            for (topic, partition), numbers in added.items()
            for number in numbers
        )

    def _have_moved(self, target: Replicas) -> int:
        records = self._records()
        return sum(records[where]["replicas"] == list(replicas) for where, replicas in target.items())

    def _all_have_moved(self, target: Replicas) -> bool:
        records = self._records()
        for where, replicas in target.items():
            record = records[where]
            assert record["replicas"] == list(replicas) and sorted(record["isr"]) == sorted(replicas), (where, record)
            assert not record["adding"] and not record["removing"], (where, record)
        return True

    def _until_nobody_else_has_files(self) -> None:
        eventually(self._nobody_else_has_files, GETS_ON_WITHIN_S, "files were left behind")

    def _nobody_else_has_files(self) -> bool:
        for (topic, partition), replicas in self._replicas().items():
            name = f"{topic}-{partition}"
            for number in self._cluster.ids:
                found = [each.name for each in self._cluster[number].data.glob(f"{name}*")]
                assert number in replicas or not found, f"{found} on broker {number}, {name} is on {replicas}"
                assert found == [name] or not found, f"{found} on broker {number}"
        return True
