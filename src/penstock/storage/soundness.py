"""Whether the files of a log are what was written to them: every batch where it should be, with its CRC. Blocks."""

from __future__ import annotations

import errno

from penstock.storage.log import Log
from penstock.storage.reader import readable_end
from penstock.storage.scan import checked_batches


def first_damage(log: Log) -> str | None:
    """Thread-safe, beside appends, retention and compaction; after a truncation meanwhile it means nothing.

    None: there is none. OSError: who knows. Offsets are under no CRC, so a batch must also not begin before the one
    before it ends.
    """
    upper, next_offset = log.end_position, -1
    for segment in log.segments:
        end, position = readable_end(segment, upper), 0
        try:
            for batch in checked_batches(segment.file(), 0, end):
                if batch.header.base_offset < max(next_offset, segment.base_offset):
                    break
                position, next_offset = batch.position + batch.header.size, batch.header.next_offset
        except FileNotFoundError:
            continue  # retention or compaction took it
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return str(error)
        if position < end:
            return f"{segment.path} has no sound batch at byte {position}"
    return None
