"""What goes wrong on the driver or in a task, as one sentence that a person understands.

Spark turns whatever a Python process raises into text, with the traceback before the message and Java's stack behind
it. An error that is already a sentence needs neither: where one is raised under `plainly`, Spark shows the sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.wire.errors import WireError

# Read by pyspark when it writes down an error, in the process that raised it and which ends with it.
_HIDES_TRACEBACK = "SPARK_HIDE_TRACEBACK"
# What every Python process that Spark starts is told, and no other.
_OF_SPARK = "SPARK_BUFFER_SIZE"


class BadOption(Exception):
    """An option that cannot be; said before anything is asked of a broker."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option} {problem}")
        self.option = option
        self.problem = problem

    def __reduce__(self) -> tuple[type[BadOption], tuple[str, str]]:
        return BadOption, (self.option, self.problem)


class BadOffsets(Exception):
    """Offsets, of an option or of a checkpoint, that are not those of what is read."""


class DataLost(Exception):
    """Records that were to be read are not there any more, and the query is not to go on without them."""


@contextmanager
def plainly() -> Iterator[None]:
    try:
        yield
    except (BadOption, BadOffsets, DataLost, WireError):
        if _OF_SPARK in os.environ:
            os.environ[_HIDES_TRACEBACK] = "1"
        raise
