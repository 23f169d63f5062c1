"""Networks between brokers, and between brokers and their metadata, that drop what is sent: both ways or one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit.hosts import Hosts

# Sessions last for three seconds.
_FOR_S = (0.5, 4, 8)


class NetworkHarm:
    """Hosts have the names of what runs on them: `broker-1`, `etcd0`."""

    def __init__(self, harming: Harming, hosts: Hosts) -> None:
        self._harming = harming
        self._luck = harming.luck
        self._hosts = hosts
        self._brokers = [name for name in hosts.names if name.startswith("broker")]
        self._metadata = [name for name in hosts.names if name not in self._brokers]

    @property
    def kinds(self) -> list[Kind]:
        return [self.cut_a_broker_off, self.cut_a_broker_off_one_way, self.cut_from_the_metadata, self.cut_two_apart]

    def cut_a_broker_off(self) -> None:
        """From all, with or without the clients: others must lead what it led, and it must not commit anything."""
        broker = self._one()
        with self._healed(f"{broker} is cut off"):
            self._hosts.cut_both_ways(broker, *self._all_but(broker))
            if self._luck.random() < 0.5:
                self._hosts.cut_from_clients(broker)
            let_pass(self._luck.choice(_FOR_S))
            self._harming.until_all_get_on("a broker is cut off")
            self._harming.check_invariants()

    def cut_a_broker_off_one_way(self) -> None:
        """It hears everything and nobody hears it, or the other way round."""
        broker = self._one()
        if self._luck.random() < 0.5:
            with self._healed(f"nobody hears {broker}"):
                self._hosts.cut(broker, *self._all_but(broker))
                let_pass(self._luck.choice(_FOR_S))
                self._harming.until_all_get_on("nobody hears a broker")
        else:
            with self._healed(f"{broker} hears nobody"):
                for other in self._all_but(broker):
                    self._hosts.cut(other, broker)
                let_pass(self._luck.choice(_FOR_S))
                self._harming.until_all_get_on("a broker hears nobody")

    def cut_from_the_metadata(self) -> None:
        """The other brokers, and clients, reach it as before."""
        broker = self._one()
        with self._healed(f"{broker} is cut from the metadata"):
            self._cut(broker, self._metadata)
            let_pass(self._luck.choice(_FOR_S))
            self._harming.until_all_get_on("a broker is cut from the metadata")
            self._harming.check_invariants()

    def cut_two_apart(self) -> None:
        """Both have their sessions. Where the leader cannot reach enough replicas, its producers have to wait."""
        one, other = self._luck.sample(self._brokers, 2)
        with self._healed(f"{one} and {other} are cut apart"):
            self._cut(one, [other])
            let_pass(self._luck.choice(_FOR_S))
            self._harming.check_invariants()

    def _cut(self, broker: str, others: Sequence[str]) -> None:
        way = self._luck.randrange(3)
        if way == 0:
            self._hosts.cut_both_ways(broker, *others)
        elif way == 1:
            self._hosts.cut(broker, *others)
        else:
            for other in others:
                self._hosts.cut(other, broker)

    @contextmanager
    def _healed(self, what: str) -> Iterator[None]:
        self._harming.say(f"  {what}")
        try:
            yield
        finally:
            self._hosts.heal()
            self._harming.say("  the network is whole")

    def _one(self) -> str:
        return self._luck.choice(self._brokers)

    def _all_but(self, name: str) -> list[str]:
        return [each for each in self._hosts.names if each != name]
