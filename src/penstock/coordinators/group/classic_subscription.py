"""The topics in a member's metadata, which is otherwise between the members and their leader."""

from __future__ import annotations

from penstock.protocol.messages.consumer_protocol import BadConsumerProtocol, subscribed_topics


def subscription_topics(metadata: bytes) -> frozenset[str] | None:
    """None when it is not a consumer's metadata."""
    try:
        return frozenset(subscribed_topics(metadata))
    except BadConsumerProtocol:
        return None
