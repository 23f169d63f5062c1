"""Brokers to compare with that do not speak Kafka's protocol, by the name of their column."""

from collections.abc import Mapping

from bench.peers.nats_jetstream import NatsJetStream
from bench.peers.peer import Peer, Throughput
from bench.peers.rabbitmq_streams import RabbitMqStreams

PEERS: Mapping[str, type[Peer]] = {"nats": NatsJetStream, "rabbitmq": RabbitMqStreams}

__all__ = ["PEERS", "Peer", "Throughput"]
