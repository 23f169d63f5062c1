"""Whether a topic, its archive and what was replayed of it have the same records: a page, JSON, and a yes or no.

    .venv/bin/python examples/pipeline_audit.py [--bootstrap-server HOST:PORT]

The cells below run one by one in a notebook too. The same as a command, which exits with 1 on a difference:

    penstock pipeline audit /archive/orders --replayed orders-again --report audit.html --json audit.json
"""

# %% What the cells need
from __future__ import annotations

import argparse
import tempfile
import uuid
from pathlib import Path

from penstock.sdk import Client
from penstock.spark import session
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.audit_report import page
from penstock.spark.pipelines.replay import replay

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT")
bootstrap = parser.parse_args().bootstrap_server

run = uuid.uuid4().hex[:8]
orders, again = f"orders-{run}", f"orders-again-{run}"
home = Path(tempfile.mkdtemp(prefix="penstock-example-"))
spark = session("audit")

# %% A topic, an archive of it, and a replay of that
with Client(bootstrap) as client:
    for topic in (orders, again):
        client.create_topic(topic, partitions=2)
    client.publish_many(orders, [(f"c{number % 5}", f"order {number}") for number in range(1_000)])
archive(spark, bootstrap=bootstrap, topics=[orders], to=str(home / "archive"), format="parquet")
replay(spark, archive=str(home / "archive"), bootstrap=bootstrap, to=again)

# %% All three have the same records
print(audit(spark, archive=str(home / "archive"), bootstrap=bootstrap, replayed_to=again))

# %% Somebody writes to the topic that was replayed to: now they do not
with Client(bootstrap) as client:
    client.publish(again, "c0", "an order that nobody placed")
result = audit(spark, archive=str(home / "archive"), bootstrap=bootstrap, replayed_to=again)
print(result)

# %% The same as a page with plots
report = home / "audit.html"
report.write_text(page(result))
print("report:", report)
