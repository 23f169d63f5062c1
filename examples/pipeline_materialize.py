"""A changelog as a table on Spark: the latest row of each key, as a database's changes come through Debezium.

    .venv/bin/python examples/pipeline_materialize.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as a command:

    penstock pipeline materialize users --to /tables/users --envelope debezium --follow \\
        --schema 'id BIGINT NOT NULL, name STRING, city STRING'
"""

# %% What the cells need
from __future__ import annotations

import argparse
import json
import tempfile
import uuid

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.materialize import materialize, read_table

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

users = f"users-{uuid.uuid4().hex[:8]}"
table = tempfile.mkdtemp(prefix="penstock-example-") + "/users"
spark = session("users")


# %% What happens in the database
def change(op: str, id: int, ts_ms: int, **row: str) -> tuple[str, str]:
    after = None if op == "d" else {"id": id, **row}
    return json.dumps({"id": id}), json.dumps({"op": op, "after": after, "source": {"ts_ms": ts_ms}})


with Client(bootstrap) as client:
    client.create_topic(users, partitions=2, config={"cleanup.policy": "compact"})
    client.publish_many(
        users,
        [
            change("c", 1, 1_000, name="ada", city="london"),
            change("c", 2, 2_000, name="bob", city="paris"),
            change("u", 1, 3_000, name="ada", city="turin"),
            change("c", 3, 4_000, name="eve", city="berlin"),
            change("d", 2, 5_000),
        ],
    )


# %% The table, and what a later run makes of it
def show() -> None:
    for row in read_table(spark, table).orderBy("id").collect():
        print(row["id"], row["name"], row["city"])


def keep_up() -> None:
    schema = "id BIGINT NOT NULL, name STRING, city STRING"
    print(materialize(spark, bootstrap=bootstrap, topic=users, to=table, envelope="debezium", schema=schema))
    show()


keep_up()

# %% Only what is new is applied, whenever it runs
with Client(bootstrap) as client:
    client.publish_many(users, [change("u", 3, 6_000, name="eve", city="oslo"), change("d", 1, 7_000)])
keep_up()
