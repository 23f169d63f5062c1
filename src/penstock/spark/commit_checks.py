"""What the driver makes sure of once all tasks of a batch have committed: that no others had, when it was begun.

A task knows its rows by its own number, and compares them when it is done again. It cannot know how many tasks there
are. When a batch is done again with fewer of them, those that there are now have rows which others have written before,
and nobody looks for what those have left. Here it is looked for, since the driver knows how many tasks there were. The
rows are in the topics by then, and twice: what is left is to say so, each time, before the query goes on.

That reads the whole topic of markers. A stream does a batch again only as the first of a run, so that one is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing

from penstock.spark.destination import Destination
from penstock.spark.marker_scan import markers_of
from penstock.spark.markers import Marker, MarkerKey
from penstock.spark.producing import Outbox
from penstock.spark.sink_errors import WriteFailed
from penstock.spark.sink_options import SinkOptions


def check_tasks(options: SinkOptions, writer: str, batch_id: int, tasks: Collection[int]) -> None:
    """`tasks` are those with rows, all of which have committed. Raises WriteFailed, WireError."""
    with closing(Destination(options.client)) as destination:
        others = _others(options, destination, writer, batch_id, tasks)
        if not others:
            return
        for key in others:  # what is still open of them is committed or aborted after that, for good
            with closing(Outbox(destination, options.producer, key.transactional_id)) as outbox:
                outbox.fence()
        others = _others(options, destination, writer, batch_id, tasks)
    if others:
        raise WriteFailed(_told(options, batch_id, others, tasks))


def _others(
    options: SinkOptions, destination: Destination, writer: str, batch_id: int, tasks: Collection[int]
) -> Mapping[MarkerKey, Marker]:
    found = markers_of(destination.cluster, options.marker_topic, writer)
    return {key: each for key, each in found.items() if each.batch_id >= batch_id and key.task not in tasks}


def _told(options: SinkOptions, batch_id: int, others: Mapping[MarkerKey, Marker], tasks: Collection[int]) -> str:
    rows = sum(marker.rows for marker in others.values())
    setting, anew = (
        ("spark.sql.adaptive.streaming.stateless.enabled=false", "begin with a new checkpoint behind this batch")
        if options.write_id is None
        else ("spark.sql.adaptive.enabled=false", "write what comes next under another writeId")
    )
    return (
        f"batch {batch_id} was written before, by other tasks: {rows} rows of {_numbers(key.task for key in others)} "
        f"are there besides those of {_numbers(tasks)}, so rows of it are in the topics twice. The query was split "
        f"into tasks in another way then. See to it that it is always split in the same way: {setting} where it has a "
        "shuffle, the same number in repartition, the same spark.sql.shuffle.partitions and minPartitions. What is "
        f"there twice cannot be taken back: {anew}"
    )


def _numbers(tasks: Iterable[int]) -> str:
    numbers = sorted(tasks)
    if not numbers:
        return "no task"
    listed = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"task{'s' * (len(numbers) > 1)} {listed}"
