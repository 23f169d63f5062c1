"""Penstock beside Apache Kafka and other brokers, on one machine and in one run: `python -m bench.side_by_side`.

A scenario is measured in turns, one repetition on one system after the other, so that an hour in which the machine is
slow is slow for all. What a figure must be compared with Kafka's is said in `table`, before it is measured.
"""
