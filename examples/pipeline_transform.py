"""Topic to topic on Spark: orders become invoices, in order and exactly once; what cannot be read is set aside.

    .venv/bin/python examples/pipeline_transform.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as a command:

    penstock pipeline transform orders --to invoices --checkpoint /checkpoints/invoices --follow \\
        --schema 'customer STRING NOT NULL, cents BIGINT NOT NULL' --quarantine orders-bad \\
        --sql "SELECT json.customer AS key, to_json(struct(json.cents / 100 AS total)) AS value FROM input"
"""

# %% What the cells need
from __future__ import annotations

import argparse
import json
import tempfile
import uuid

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.transform import transform

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

run = uuid.uuid4().hex[:8]
orders, invoices, bad, loud = (f"{name}-{run}" for name in ("orders", "invoices", "orders-bad", "loud"))
checkpoints = tempfile.mkdtemp(prefix="penstock-example-")
spark = session("invoices")

# %% Some orders, one of which is no order
with Client(bootstrap) as client:
    for topic in (orders, invoices, bad, loud):
        client.create_topic(topic, partitions=2)
    placed = [(f"c{number % 3}", 100 * number) for number in range(1, 10)]
    client.publish_many(orders, [(who, json.dumps({"customer": who, "cents": cents})) for who, cents in placed])
    client.publish(orders, "c0", "not an order")

# %% SQL: the columns that it does not name (headers, partition, timestamp) stay as they are
ended = transform(
    spark,
    bootstrap=bootstrap,
    topic=orders,
    to=invoices,
    checkpoint=f"{checkpoints}/invoices",
    schema="customer STRING NOT NULL, cents BIGINT NOT NULL",
    quarantine=bad,
    sql="SELECT json.customer AS key, to_json(struct(json.cents / 100 AS total)) AS value FROM input",
)
print(ended)


# %% A function, where SQL is not enough: from DataFrame to DataFrame
def louder(records: DataFrame) -> DataFrame:
    return records.withColumn("value", F.upper("value")).where(F.col("key") != "c1")


transform(spark, bootstrap=bootstrap, topic=invoices, to=loud, checkpoint=f"{checkpoints}/loud", function=louder)


# %% What has come out
def records_of(topic: str) -> list[tuple[str, str]]:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = reader.load().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").orderBy("partition", "offset")
    return [(row[0], row[1]) for row in rows.collect()]


print("invoices:", records_of(invoices))
print("loud:", records_of(loud))
print("in quarantine:", records_of(bad))
