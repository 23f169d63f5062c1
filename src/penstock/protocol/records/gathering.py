"""Rows of Arrow's columns gathered into record batches: compiled where a compiler was at hand, else in plain Python.

A module of its own, as columns are: brokers never need it. See `_pure_gathering`. What is gathered becomes a batch of a
producer with `sealed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.batch import HEADER, HEADER_BYTES, LENGTH_END, MAGIC, TRANSACTIONAL_BIT, seal
from penstock.protocol.compression import Codec, compress
from penstock.protocol.records import KERNEL
from penstock.protocol.records._pure_gathering import Gathered, RowColumns, TooLarge
from penstock.protocol.records.checksum import Blobs, Numbers, Pairs

if TYPE_CHECKING:
    from penstock.protocol.records._gathering import Gathering, murmur2
elif KERNEL == "pure":
    from penstock.protocol.records._pure_gathering import Gathering, murmur2
else:
    try:
        from penstock.protocol.records._gathering import Gathering, murmur2
    except ImportError:
        from penstock.protocol.records._pure_gathering import Gathering, murmur2

__all__ = ["Blobs", "Gathered", "Gathering", "Numbers", "Pairs", "RowColumns", "TooLarge", "murmur2", "sealed"]

_NO_LEADER_EPOCH = -1


def sealed(
    gathered: Gathered,
    *,
    codec: Codec,
    level: int | None,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> memoryview:
    """A whole batch. What was gathered is changed in place, and is the batch itself where nothing is compressed."""
    batch = gathered.batch
    if codec is not Codec.NONE:
        section = compress(codec, batch[HEADER_BYTES:], level)
        batch = memoryview(bytearray(HEADER_BYTES + len(section)))
        batch[HEADER_BYTES:] = section
    HEADER.pack_into(
        batch,
        0,
        0,  # the base offset, which the leader decides
        len(batch) - LENGTH_END,
        _NO_LEADER_EPOCH,
        MAGIC,
        0,  # the CRC, for now
        codec | (TRANSACTIONAL_BIT if is_transactional else 0),
        gathered.rows - 1,
        gathered.base_timestamp,
        gathered.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        gathered.rows,
    )
    seal(batch, 0)
    return batch
