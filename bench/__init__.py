"""The benchmark suite: what a broker does on this machine, next to what the machine itself can do.

Run `python -m bench --help`. Nothing here imports the broker's own packages, so that the same client measures Penstock,
Apache Kafka and a stub, and a mistake in our codec cannot make our figures better.
"""
