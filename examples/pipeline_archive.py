"""A topic to a table by day on Spark: orders as Iceberg, with their JSON as columns; what cannot be read is set aside.

    .venv/bin/python examples/pipeline_archive.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as a command:

    penstock pipeline archive orders --to /archive/orders --value json --schema 'customer STRING, cents BIGINT' --follow
"""

# %% What the cells need
from __future__ import annotations

import argparse
import json
import tempfile
import uuid

from pyiceberg.catalog import load_catalog

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.archive_reading import read_archive

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

orders = f"orders-{uuid.uuid4().hex[:8]}"
home = tempfile.mkdtemp(prefix="penstock-example-") + "/orders"
spark = session("archive")


# %% Some orders, one of which is no order
def place(first: int, count: int) -> None:
    placed = [(f"c{number % 3}", 100 * number) for number in range(first, first + count)]
    with Client(bootstrap) as client:
        client.publish_many(orders, [(who, json.dumps({"customer": who, "cents": cents})) for who, cents in placed])


with Client(bootstrap) as client:
    client.create_topic(orders, partitions=2)
    client.publish(orders, "c0", "not an order")
place(first=1, count=9)

# %% What the topic has now goes to the archive; `follow=True` would go on until it is stopped
fields = "customer STRING, cents BIGINT"
print(archive(spark, bootstrap=bootstrap, topics=[orders], to=home, value="json", schema=fields))

# %% Asked again, it goes on where it was: nothing is there twice, even without its checkpoint
place(first=10, count=5)
print(archive(spark, bootstrap=bootstrap, topics=[orders], to=home, value="json", schema=fields))

# %% Read it with Spark
records = read_archive(spark, home)
by_customer = records.groupBy("fields.customer").agg({"fields.cents": "sum"}).orderBy("customer")
print("cents by customer:", [tuple(row) for row in by_customer.where("customer IS NOT NULL").collect()])

# %% Or with anything that reads Iceberg
catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{home}/catalog.db")
table = catalog.load_table("penstock.records")
print("records by pyiceberg:", table.scan().to_arrow().num_rows)
bad = catalog.load_table("penstock.records_quarantine").scan().to_arrow().to_pylist()
print("in quarantine:", [(record["value"].decode(), record["reason"]) for record in bad])
