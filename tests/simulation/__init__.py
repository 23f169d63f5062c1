"""A cluster in one process and one thread: real brokers' parts over a seeded network, clock, disk and metadata store.

What is real: partitions, in-sync sets, followers, fetchers, the replica manager, the controller, forwarding, sessions,
coordinators, the request pipeline, connections and channels with their frames, and logs on files. What is not:

    loop.py     time passes when nobody has anything to do; a process can be stopped, killed, or be slow at its disk
    network.py  connections between hosts: late, cut in one direction or both, reset; in order within each
    disk.py     what was not flushed is lost by a power cut, or a part of it, or not
    store.py    the metadata store, under the contract's own tests; calls to it are late, or lost on either way

A run depends on its seed alone: `python -m tests.simulation --seed 7` repeats it and tells what happened.
"""
