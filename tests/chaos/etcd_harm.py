"""Members of etcd that are killed, paused, cut off: nobody is to notice one; two stop changes of metadata, no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.conftest import FULL
from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit.etcd import EtcdCluster, EtcdMember
from tests.testkit.hosts import Hosts

# Elections of etcd take one or two seconds, a session of a broker lasts for three.
_FOR_S = (1, 4, 8) if FULL else (1, 4)


class EtcdHarm:
    def __init__(self, harming: Harming, etcd: EtcdCluster, hosts: Hosts) -> None:
        """Hosts are named as the members are."""
        self._harming = harming
        self._etcd = etcd
        self._hosts = hosts

    @property
    def kinds(self) -> list[Kind]:
        return [self.harm_a_member, self.lose_the_quorum]

    def harm_a_member(self) -> None:
        luck = self._harming.luck
        member = luck.choice(self._etcd.members)
        with self._etcd.healed_afterwards(), luck.choice((self._killed, self._paused, self._cut_off))(member):
            let_pass(luck.choice(_FOR_S))
            self._harming.until_all_get_on("a member of etcd is away")

    def lose_the_quorum(self) -> None:
        """Whoever leads goes on: acks=all needs its in-sync replicas, not the metadata."""
        luck = self._harming.luck
        one, other = luck.sample(self._etcd.members, 2)
        self._harming.until_settled()
        way = luck.choice((self._killed, self._paused, self._cut_off))
        with self._etcd.healed_afterwards(), way(one), way(other):
            let_pass(luck.choice(_FOR_S))
            self._harming.until_all_get_on("etcd has no quorum")

    @contextmanager
    def _killed(self, member: EtcdMember) -> Iterator[None]:
        self._harming.say(f"  {member.name} killed")
        member.kill()
        yield

    @contextmanager
    def _paused(self, member: EtcdMember) -> Iterator[None]:
        self._harming.say(f"  {member.name} stands still")
        member.pause()
        yield
        member.resume()

    @contextmanager
    def _cut_off(self, member: EtcdMember) -> Iterator[None]:
        """From the other members and from all brokers."""
        self._harming.say(f"  {member.name} is cut off")
        self._hosts.cut_both_ways(member.name, *(name for name in self._hosts.names if name != member.name))
        try:
            yield
        finally:
            self._hosts.heal()
