"""Histories: what clients did and saw, written down as it happened, and the checker that looks for broken promises.

    events.py      what can happen, as lines of JSON
    recording.py   a process writes its own file
    reading.py     the files of all processes as one history: writes, transactions, what each reader read
    findings.py    the anomalies, with our definitions, and how they are reported
    checker.py     looks for them in what was written and read
    groups.py      looks for them in what groups committed, and in copies of one topic to another

Nothing here knows a client library or a broker: histories may come from any process, on a single node or a cluster.
"""
