"""What the driver makes sure of before it lets a write begin: settings that can be, topics that are there.

It is asked for every batch of a stream, so it has to be quick, and it must not end a stream whose brokers are just
being restarted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from penstock.spark.marker_topic import ensure_marker_topic
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.wire.cluster import Cluster
from penstock.wire.patience import PASSING, Patience
from penstock.wire.settings import Address

# A broker is back within that; who has mistyped its address can wait that long for the answer.
_RESTARTED_WITHIN_S = 15.0
# Spark asks the same process again for the next batch: these are known to be right.
_answered: set[tuple[Address, ...]] = set()


def check_cluster(options: SinkOptions, kind: Kind) -> None:
    """Raises BadOption, WireError. A stream waits for what passes: a broker that has just come back may not know its
    topics yet. Who has mistyped one hears so a few seconds later.
    """
    client = options.client
    if client.bootstrap not in _answered:
        client = replace(client, api_timeout_s=min(_RESTARTED_WITHIN_S, client.api_timeout_s))
    patience = Patience(client)
    while True:
        try:
            with closing(Cluster(client)) as cluster:
                if options.topic is not None:
                    cluster.look_up([options.topic])
                if options.exactly_once:
                    ensure_marker_topic(cluster, options)
        except PASSING as error:
            if kind is Kind.BATCH:
                raise
            patience.after("reaching the cluster", error)
        else:
            _answered.add(client.bootstrap)
            return
