"""Log lines for the person on call: time, level, event, then the facts as key=value.

2026-11-15T21:00:00.123Z INFO  topic created topic=orders partitions=3
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Protocol

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FactFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        facts = "".join(f" {name}={_quoted(value)}" for name, value in record.__dict__.items() if name not in _STANDARD)
        line = f"{moment}.{int(record.msecs):03d}Z {record.levelname:<7} {record.getMessage()}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


class Writable(Protocol):
    def write(self, text: str, /) -> object: ...


def configure(level: str = "INFO", stream: Writable | None = None) -> None:
    """On standard error, unless another stream is given."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(FactFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
