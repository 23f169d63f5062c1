"""What a broker asks of the controller for its replicas."""

from __future__ import annotations

import pytest

from penstock.controller.commands import ResignedReplica
from penstock.controller.proposals import resigned
from penstock.core.ids import BrokerId, TopicId
from penstock.replication.spoilt import Lost

TOPIC = TopicId(bytes(16))
LEADER = BrokerId(1)


@pytest.mark.parametrize(("replica", "meant"), [(None, LEADER), (BrokerId(0), BrokerId(0)), (BrokerId(2), BrokerId(2))])
def test_given_a_replica_that_is_given_up_then_it_is_that_one_also_if_it_is_broker_0(
    replica: BrokerId | None, meant: BrokerId
) -> None:
    """A leader that meant itself would set aside what it leads."""
    lost = Lost(TOPIC, 3, is_spoilt=True, replica=replica)

    assert resigned(lost, LEADER) == ResignedReplica(TOPIC, 3, meant, True)
