"""Windows on Spark: what a log says of each minute, by service and level: how many lines, and how slow the slowest.

    .venv/bin/python examples/pipeline_aggregate.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as a command:

    penstock pipeline aggregate logs --to /tables/minutes --follow --window 1m --watermark 30s --time ts \\
        --schema 'ts TIMESTAMP, service STRING, level STRING, duration_ms DOUBLE' \\
        --group-by service --group-by level --aggregate count --aggregate 'p99(duration_ms) AS p99'
"""

# %% What the cells need
from __future__ import annotations

import argparse
import json
import random
import tempfile
import uuid
from datetime import UTC, datetime, timedelta

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.aggregate import aggregate, read_table

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

logs = f"logs-{uuid.uuid4().hex[:8]}"
table = tempfile.mkdtemp(prefix="penstock-example-") + "/minutes"
spark = session("minutes")
luck = random.Random(7)

# %% Three minutes of a log, in which lines come late, and the begin of a fourth
begin = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def line(second: int) -> str:
    service, level = luck.choice(("web", "db")), luck.choice(("info", "info", "info", "error"))
    happened = begin + timedelta(seconds=max(0, second - luck.randrange(20)))
    fields = {"ts": happened.isoformat(), "service": service, "level": level}
    return json.dumps(fields | {"duration_ms": round(luck.expovariate(1 / 40), 3)})


with Client(bootstrap) as client:
    client.create_topic(logs, partitions=2)
    client.publish_many(logs, [(None, line(second)) for second in range(240)])

# %% A window is written when the watermark has passed its end; the last ones are still open, and in the checkpoint
ended = aggregate(
    spark,
    bootstrap=bootstrap,
    topics=[logs],
    to=table,
    schema="ts TIMESTAMP, service STRING, level STRING, duration_ms DOUBLE",
    time="ts",
    window="1m",
    watermark="30s",
    group_by=["service", "level"],
    aggregates=["count", "p99(duration_ms) AS p99"],
)
print(ended)

# %% The table
minutes = read_table(spark, table).orderBy("window_start", "service", "level")
for row in minutes.collect():
    print(
        f"{row['window_start']:%H:%M} {row['service']:4} {row['level']:6} {row['count']:4} lines, p99 {row['p99']} ms"
    )
