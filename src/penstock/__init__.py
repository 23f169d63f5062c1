"""Penstock: a distributed message queue that speaks the Kafka protocol."""

__version__ = "0.1.0"
