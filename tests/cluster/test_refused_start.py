"""A start that is refused leaves a broker's directory as it was: the next one need not check what was stopped cleanly.

Were the clean-shutdown marker gone, all logs would be read; and after a reboot, where a broker may come up before its
etcd, each replica of a topic that acknowledges from the page cache would be taken for one that lost power.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.testkit import Broker, RawClient, lasting_port
from tests.testkit.asking import a_batch, create_usable_topic, produce
from tests.testkit.broker_process import BrokerDied

NOBODY = lasting_port()


@pytest.mark.parametrize(
    "refused",
    [
        {"penstock.metadata": f"etcd://127.0.0.1:{NOBODY}"},
        {"penstock.metadata": "sqlite:{directory}/other.db"},
        {"penstock.internal.port": "{port}"},
        {"node.id": "7"},
    ],
    ids=["metadata out of reach", "metadata of another cluster", "port in use", "another id"],
)
def test_given_a_clean_stop_when_a_start_is_refused_then_the_next_one_trusts_the_logs(
    tmp_path: Path, refused: dict[str, Any]
) -> None:
    with Broker.start(tmp_path / "other") as other:
        broker = Broker.start(tmp_path / "data")
        with RawClient(broker.address) as client:
            create_usable_topic(client, "orders")
            assert produce(client, "orders", a_batch(b"a")).error_code == 0
        broker.stop()
        values = {"directory": tmp_path, "port": other.address[1]}

        with pytest.raises(BrokerDied):
            Broker.start(tmp_path / "data", **{name: text.format(**values) for name, text in refused.items()})
        with Broker.start(tmp_path / "data") as again:
            assert "not clean" not in again.log_text()
