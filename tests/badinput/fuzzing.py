"""How the fuzzers choose their cases, and how bytes are spoilt.

A case is made from the seed and its number, whatever ran before it; only the time of day and the broker's topic ids
differ from run to run. So a failure is repeated by the two numbers that its message gives:
`PENSTOCK_TEST_SEED=7 PENSTOCK_TEST_FUZZ_CASE=123 pytest -k ...` runs that case and no other.
`PENSTOCK_TEST_FUZZ_CASES=1000000` runs long, with a new seed unless one is given; `PENSTOCK_TEST_FUZZ_APIS=26,27` has
the grammar fuzzer send requests of these keys only.
"""

import os
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

_SEED_OF_EVERY_DAY = 2
_BYTES_SHOWN = 1_000
_CASES = os.environ.get("PENSTOCK_TEST_FUZZ_CASES")
_CASE = os.environ.get("PENSTOCK_TEST_FUZZ_CASE")
SEED = int(os.environ.get("PENSTOCK_TEST_SEED") or (secrets.randbelow(2**32) if _CASES else _SEED_OF_EVERY_DAY))

# Long runs take as long as they take.
fuzz_timeout = pytest.mark.timeout(0 if _CASES else 120)

EXTREMES = {
    "b": (0, 1, -1, 127, -128),
    "h": (0, 1, -1, 2, 255, 256, 32767, -32768),
    "i": (0, 1, -1, 2, 65535, 2**24, 2**31 - 1, -(2**31)),
    "q": (0, 1, -1, 2**31, 2**63 - 1, -(2**63)),
}
_VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x01", b"\xff" * 10, b"\0")


def cases(usual: int) -> Iterator[tuple[int, Random]]:
    """Numbers of cases, each with its own source of chance."""
    numbers = [int(_CASE)] if _CASE else range(int(_CASES or usual))
    print(f"PENSTOCK_TEST_SEED={SEED}, cases {numbers}")
    for number in numbers:
        yield number, Random(f"{SEED}/{number}")


@contextmanager
def told_apart(case: int, what: str, sent: bytes) -> Iterator[None]:
    """Adds to any failure in the block how to repeat it, and what was sent."""
    try:
        yield
    except BaseException as error:
        repeat = f"PENSTOCK_TEST_SEED={SEED} PENSTOCK_TEST_FUZZ_CASE={case}"
        error.add_note(f"repeat with {repeat}\n{what}, {len(sent)} bytes: {sent[:_BYTES_SHOWN].hex()}")
        raise


def spoilt(data: bytes, random: Random) -> bytes:
    """One to three changes of any kind."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(_CHANGES)(data, random)
    return data


def with_flipped_bits(data: bytes, random: Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8)) if data else 0):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _with_inserted_bytes(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 4, 40))) + data[at:]


def _with_bytes_left_out(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 2, 4, 40)) :]


def _with_another_number(data: bytes, random: Random) -> bytes:
    """Lengths and counts are numbers somewhere: sooner or later one of them is hit."""
    kind = random.choice("bhiq")
    number = struct.pack(f">{kind}", random.choice(EXTREMES[kind]))
    at = random.randrange(max(1, len(data) - len(number) + 1))
    return data[:at] + number + data[at + len(number) :]


def _with_a_long_varint(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(_VARINTS) + data[at + 1 :]


def _with_a_piece_twice(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data) + 1)
    end = random.randrange(start, min(len(data), start + 100) + 1)
    return data[:end] + data[start:end] + data[end:]


_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    with_flipped_bits,
    _cut,
    _with_inserted_bytes,
    _with_bytes_left_out,
    _with_another_number,
    _with_another_number,
    _with_a_long_varint,
    _with_a_piece_twice,
)
