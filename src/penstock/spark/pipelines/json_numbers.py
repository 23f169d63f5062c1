"""Numbers of JSON that keep their digits when Spark writes JSON anew, as it does with a part of a value.

It takes a number that is no integer for a double: 1.10 becomes 1.1, an amount of 30 digits one of 17, 1e400 a string.
So such numbers are strings while it parses and writes, and numbers again afterwards.
"""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import Column
from pyspark.sql import functions as F

_MARK = f"{uuid4().hex}:"  # another one in every process: no value can have it
# All of it possessive: a value of megabytes is gone through once, and without a stack that could overflow.
_STRING = r""" "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' """  # Spark takes the second for JSON too
_INTEGER = r"-?[0-9]++(?![.eE])"
_OTHER_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+(?![0-9.eE])"
_NEXT = rf"""(?sx) \G ( (?: [^"'0-9-]++ | {_STRING} | {_INTEGER} | -(?![0-9]) )*+ ) ( {_OTHER_NUMBER} )"""


def as_strings(text: Column) -> Column:
    """JSON in which numbers that are no integers are strings with a mark."""
    return F.regexp_replace(text, _NEXT, f'$1"{_MARK}$2"')


def as_they_were(text: Column) -> Column:
    """A part of such JSON, or one of its strings."""
    return F.regexp_replace(text, f'"?{_MARK}([-+.0-9eE]+)"?', "$1")
