"""The package that computes our checksums picks an implementation by the processor: all that run here must agree with
another package's, whatever the size and the alignment.
"""

from __future__ import annotations

import hashlib

import crc32c
import crc32c_rs
import pytest

_IMPLEMENTATIONS = sorted(name for name in crc32c_rs.__all__ if name.startswith("crc32c"))
_DATA = hashlib.shake_128(b"batches").digest(3 << 20)


@pytest.mark.parametrize("name", _IMPLEMENTATIONS)
def test_given_any_size_and_alignment_when_computed_then_two_packages_agree(name: str) -> None:
    checksum = getattr(crc32c_rs, name)
    view = memoryview(bytearray(_DATA))
    try:
        checksum(b"")
    except crc32c_rs.UnsupportedCPUFeatureError as error:
        pytest.skip(str(error))

    for size in (*range(1100), 4096, 16_384 - 21, 65_536 + 7, 1 << 20, len(_DATA) - 64):
        start = size % 67
        assert checksum(view[start : start + size]) == crc32c.crc32c(view[start : start + size]), size
    for cut in (0, 1, 63, 64, 65, 5000, 1 << 20):
        assert checksum(view[cut:], checksum(view[:cut])) == crc32c.crc32c(view), cut


def test_given_the_known_vector_then_it_is_crc_32c() -> None:
    assert crc32c_rs.crc32c(b"123456789") == 0xE3069283
