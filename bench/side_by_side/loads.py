"""What is written and read: records of one size, over some partitions, with or without a codec, in pieces of 16 KiB.

16 KiB is the size of a batch that Kafka's own producer aims at. A volume and not a time bounds a repetition: what lies
dirty in the page cache stays under the kernel's threshold for writing it back, and within one segment.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

from bench import wire
from bench.payloads import values

BATCH_BYTES = 16_384
COMPRESSED_AT_MOST = 4  # times; half of a value is random
VOLUME_BYTES = 384 << 20
SIZES = {"100b": 100, "1kb": 1_000, "10kb": 10_000}
PARTITIONS_COUNTS = (1, 12)
CODECS = ("none", "lz4")


@dataclass(frozen=True, slots=True)
class Load:
    size: str
    partitions_count: int
    codec: str

    @property
    def name(self) -> str:
        return f"{self.size}-{self.partitions_count}p-{self.codec}"

    @property
    def value_bytes(self) -> int:
        return SIZES[self.size]

    def batch(self) -> wire.Batch:
        return batch_of_about(BATCH_BYTES, self.value_bytes, self.codec)

    def batches_per_partition(self, volume_bytes: int = VOLUME_BYTES) -> int:
        return volume_bytes // len(self.batch().data) // self.partitions_count


LOADS = tuple(
    Load(size, partitions_count, codec) for size in SIZES for partitions_count in PARTITIONS_COUNTS for codec in CODECS
)


@cache
def batch_of_about(batch_bytes: int, value_bytes: int, codec: str) -> wire.Batch:
    """As many records as fit, at least one."""
    pool = values(value_bytes, 1 + COMPRESSED_AT_MOST * batch_bytes // value_bytes)

    def is_too_large(count: int) -> bool:
        return len(wire.batch_of(pool[:count], codec).data) > batch_bytes

    first_too_large = bisect_left(range(1, len(pool) + 1), True, key=is_too_large) + 1
    return wire.batch_of(pool[: max(1, first_too_large - 1)], codec)
