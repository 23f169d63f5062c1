"""kcat, Debian's package: librdkafka of 2023, on a command line."""

import json
import re
import subprocess
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tests.compat.clients.interface import CONSUME_TIMEOUT_S, Client, Message, Received

# Two bytes that no test message contains: kcat reads its messages from one stream.
_KEY_END = "~!"
_MESSAGE_END = "~;"


class KcatClient(Client):
    name = "kcat"
    sets_timestamps = False

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        options = ["-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}", "-z", codec]
        # Headers, the absence of a key and the absence of a value are options of the command, not of the message.
        for (headers, has_key, has_value), alike in groupby(
            messages, lambda m: (m.headers, m.key is not None, m.value is not None)
        ):
            assert has_key or has_value, "kcat skips a message that has neither"
            key_options = ["-K", _KEY_END] if has_key else []
            null_options = [] if has_value else ["-Z"]
            header_options = [option for name, value in headers for option in ("-H", _header_option(name, value))]
            command = ["-P", "-t", topic, "-p", str(partition), "-D", _MESSAGE_END, *options]
            self.run(*command, *key_options, *null_options, *header_options, stdin=b"".join(map(_input, alike)))
        return []

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        return self.consume_from(topic, str(offset), count, partition=partition)

    def consume_from(self, topic: str, start: str, count: int, *, partition: int = 0) -> list[Received]:
        """`start` is what kcat's -o takes: an offset, `beginning`, `-5` for the last five, `s@` with a timestamp."""
        command = ["-C", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count), "-J"]
        output = self.run(*command, "-X", "fetch.wait.max.ms=100")
        return [_received(json.loads(line.decode("utf-8", "surrogateescape"))) for line in output.splitlines()]

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        output = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}").decode()
        found = re.fullmatch(rf"{re.escape(topic)} \[{partition}\] offset (-?\d+)\s*", output)
        assert found is not None, output
        offset = int(found[1])
        return offset if offset >= 0 else None

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        low = self.offset_for_time(topic, -2, partition=partition)
        high = self.offset_for_time(topic, -1, partition=partition)
        assert low is not None and high is not None
        return low, high

    def run(self, *arguments: str | bytes, stdin: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.bootstrap, "-q", *arguments]
        finished = subprocess.run(command, input=stdin, capture_output=True, timeout=CONSUME_TIMEOUT_S)
        assert finished.returncode == 0, finished.stderr.decode(errors="replace")
        return finished.stdout


def _header_option(name: str, value: bytes | None) -> bytes:
    return name.encode() if value is None else name.encode() + b"=" + value


def _input(message: Message) -> bytes:
    key = b"" if message.key is None else message.key + _KEY_END.encode()
    return key + (message.value or b"") + _MESSAGE_END.encode()


def _received(record: dict[str, Any]) -> Received:
    flat = record.get("headers", [])
    headers = tuple((name, _bytes(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    message = Message(_bytes(record["payload"]), _bytes(record["key"]), headers, record["ts"])
    return Received(record["offset"], message)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
