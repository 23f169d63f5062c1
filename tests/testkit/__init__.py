"""What every suite that runs a real broker shares: processes, conditions to wait for, raw sockets.

Nothing here but `asking` imports the broker's own packages, so the kit cannot err in the same way as what it tests.
"""

from tests.testkit.broker import Broker
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.cluster import Cluster
from tests.testkit.kafka_broker import KafkaBroker
from tests.testkit.raw_client import RawClient
from tests.testkit.stored_batches import StoredBatch, stored_batches
from tests.testkit.under_test import broker_under_test
from tests.testkit.waiting import eventually, free_port, lasting_port

__all__ = [
    "Broker",
    "BrokerProcess",
    "Cluster",
    "KafkaBroker",
    "RawClient",
    "StoredBatch",
    "broker_under_test",
    "eventually",
    "free_port",
    "lasting_port",
    "stored_batches",
]
