"""A member of a group in a process of its own, which can be killed, stopped and held between processing and committing.

It says what it does as JSON lines on standard output, each written at once, with the time of the clock that all
processes of a machine share; `members.py` reads them. Standard input takes "hold" (process one more batch, then wait
before the commit), "go" and "leave". The Java member (java/GroupMember.java) does the same in the same words.

At least once, as a careful application does it: poll, process, commit what was processed, all in one thread. With
"count" a process has several members, each with a thread and a name.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.compat.clients.group_consumers import GroupConsumer, Options, Partition, Record, Refusal, consumer_of

POLL_S = 0.1


class Control:
    """What the test wants, read from standard input by a thread; the member stops when its input ends."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.free = threading.Event()
        self.free.set()
        self.leaving = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            match line.strip():
                case "hold":
                    self.free.clear()
                    self.held.set()
                case "go":
                    self.held.clear()
                    self.free.set()
                case "leave":
                    break
        self.free.set()
        self.leaving.set()


class Member:
    def __init__(self, consumer: GroupConsumer, name: str) -> None:
        self.consumer = consumer
        self.name = name
        self.owned: set[Partition] = set()

    # Ownership, as the client's callbacks tell it

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.owned |= set(partitions)
        self.say_what_is_owned("assigned")

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.owned -= set(partitions)
        self.say_what_is_owned("revoked")

    def lost(self, partitions: Sequence[Partition]) -> None:
        self.owned -= set(partitions)
        self.say_what_is_owned("lost")

    def say_what_is_owned(self, event: str) -> None:
        self.say(event, owned=sorted(self.owned), generation=self.consumer.generation(), id=self.consumer.member_id())

    # Work

    def live(self, options: Options, control: Control) -> None:
        try:
            self.consumer.start(options, self)
            self.say("started")
            self.run(control)
            self.consumer.close()
        except Exception as failure:
            self.say("failed", error=f"{type(failure).__name__}: {failure}")
            raise
        self.say("left")

    def run(self, control: Control) -> None:
        while not control.leaving.is_set():
            records = self.consumer.poll(POLL_S)
            if records:
                self.say("processed", records=records)
                self.hold_if_wanted(control)
                self.commit(records)

    def hold_if_wanted(self, control: Control) -> None:
        if control.held.is_set():
            self.say("holding")
            control.free.wait()

    def commit(self, records: Sequence[Record]) -> None:
        offsets: dict[Partition, int] = {}
        for topic, partition, offset in records:
            offsets[topic, partition] = max(offsets.get((topic, partition), 0), offset + 1)
        try:
            self.consumer.commit(offsets)
        except Refusal as refusal:
            self.say("refused", error=str(refusal))
        else:
            self.say("committed", offsets=[(*partition, offset) for partition, offset in offsets.items()])

    def say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), "member": self.name, **fields}) + "\n"
        # One write: whoever is killed leaves no half line behind, but for the last.
        os.write(1, line.encode())


def main() -> None:
    options = json.loads(sys.argv[1])
    control = Control()
    members = [Member(consumer_of(options["client"]), str(number)) for number in range(options.get("count", 1))]
    others = [threading.Thread(target=member.live, args=(options, control)) for member in members[1:]]
    for thread in others:
        thread.start()
    members[0].live(options, control)
    for thread in others:
        thread.join()


if __name__ == "__main__":
    main()
