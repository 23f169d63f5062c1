"""The values that all clients send: half of each is the same text everywhere, half is random, so a codec has some work.

Plain ASCII without line ends, since Kafka's own tool reads its values from the lines of a file.
"""

import random
import string

_LETTERS = string.ascii_letters + string.digits
_PIECE_BYTES = 20
_SAME = "level=info host=web1"


def values(value_bytes: int, count: int) -> list[bytes]:
    """The same ones every time."""
    randomness = random.Random(value_bytes)
    return [_value(randomness, value_bytes) for _ in range(count)]


def _value(randomness: random.Random, value_bytes: int) -> bytes:
    pieces = []
    for _ in range(-(-value_bytes // (2 * _PIECE_BYTES))):
        pieces += [_SAME, "".join(randomness.choices(_LETTERS, k=_PIECE_BYTES))]
    return "".join(pieces).encode()[:value_bytes]
