"""What ends a pipeline, in the words that its user reads."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from penstock.spark.data_loss import GOES_ON

_RAISED = re.compile(r"^(?:\w+\.)*(?P<name>\w*(?:Error|Exception|Exit|Lost|Refused|Recreated|TimedOut)): (?P<why>.+)$")
_PLUMBING = ("PySparkRuntimeError", "SparkException", "Py4JException", "SparkRuntimeException", "Py4JJavaError")

# What is ours is a sentence: what a query raises by itself, through `raise_error`, and errors of source and sink.
_OURS = re.compile(
    r"(?:\[USER_RAISED_EXCEPTION\]|\bpenstock(?:\.\w+)+:) (?P<why>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE
)


class PipelineError(Exception):
    """The message is for a person, and is all that is needed to understand what happened."""


def why(error: Exception) -> str:
    """What is at the bottom of a query's failure: Spark wraps it in the stack traces of two languages."""
    text = str(error)
    if not isinstance(error, PySparkException) and "Traceback" not in text:
        return text
    if ours := list(_OURS.finditer(text)):
        return ours[-1]["why"].replace(GOES_ON, "--skip-lost goes on with what is there")
    found = [match for line in text.splitlines() if (match := _RAISED.match(line.strip()))]
    # Causes come later than what they cause; what Spark says of its own calls explains nothing.
    for match in reversed(found):
        if match["name"] not in _PLUMBING:
            return match["why"]
    return text.splitlines()[0] if text else type(error).__name__
