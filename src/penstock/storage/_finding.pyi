"""What is found in C; `finding` says what serves where there was no compiler."""

import mmap

def find_span(
    descriptor: int,
    index: mmap.mmap | bytes,
    count: int,
    base_offset: int,
    offset: int,
    end: int,
    max_bytes: int,
    at_least_one: bool,
    probed_below: int,
) -> tuple[int, int] | None: ...
