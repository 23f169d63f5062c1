"""An archive back to topics on Spark: all of it, and then the records of one customer since some time.

    .venv/bin/python examples/pipeline_replay.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as commands:

    penstock pipeline replay /archive/orders --to orders-again
    penstock pipeline replay /archive/orders --to orders-of-c1 --key c1 --since 2026-01-31T12:00Z --rate 1000
"""

# %% What the cells need
from __future__ import annotations

import argparse
import tempfile
import time
import uuid

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.replay import plan_replay, replay

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

run = uuid.uuid4().hex[:8]
orders, again, of_one = (f"{name}-{run}" for name in ("orders", "orders-again", "orders-of-c1"))
home = tempfile.mkdtemp(prefix="penstock-example-") + "/orders"
spark = session("replay")

# %% An archive, here as plain Parquet
with Client(bootstrap) as client:
    for topic in (orders, again, of_one):
        client.create_topic(topic, partitions=2)
    client.publish_many(orders, [(f"c{number % 3}", f"order {number}") for number in range(8)])
    time.sleep(0.01)
    noon_ms = time.time_ns() // 1_000_000
    client.publish_many(orders, [(f"c{number % 3}", f"order {number}") for number in range(8, 12)])
archive(spark, bootstrap=bootstrap, topics=[orders], to=home, format="parquet")

# %% Everything, to a topic with as many partitions: same partitions, order, timestamps and headers
print(replay(spark, archive=home, bootstrap=bootstrap, to=again))

# %% Asked for once more, it is done already: a replay is known by what it replays
print(replay(spark, archive=home, bootstrap=bootstrap, to=again))

# %% What would be replayed, before it is
plan = plan_replay(spark, archive=home, bootstrap=bootstrap, to=of_one, keys=["c1"], since=noon_ms, rate=1000)
for label, text in plan.lines():
    print(f"{label}: {text}")
print(plan.run())


# %% What has come out
def values_of(topic: str) -> list[str]:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = reader.load().selectExpr("CAST(value AS STRING) AS value").orderBy("value")
    return [row["value"] for row in rows.collect()]


print("again:", len(values_of(again)))
print("of c1:", values_of(of_one))
