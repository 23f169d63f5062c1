"""Spark reads and writes topics: `format("penstock")`, without a jar.

    from penstock.spark import register, session

    spark = session("report")            # or register(spark) for a session that is there already
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", "localhost:9092")
    reader.option("subscribe", "orders").load().show()

Executors import this package as well: it has to be installed wherever they run. They meet brokers only on the wire.
"""

from penstock.spark.session import register, session

__all__ = ["register", "session"]
