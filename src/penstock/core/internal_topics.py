"""Topics that hold the broker's own state: read by anybody, written by coordinators only."""

from __future__ import annotations

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
