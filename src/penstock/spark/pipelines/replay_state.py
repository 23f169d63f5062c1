"""What a replay has laid down and how far it has come: two small files, in a directory of its own.

The plan is written before the first chunk is: the archive may grow while the replay goes on. What it covers stays, but
chunks that were not begun may be cut anew, into smaller ones. How far it has come is noted after each chunk and may be
behind: the sink knows which chunks were written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json
from penstock.spark.pipelines.replay_plan import ReplayChunks

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def check_id(given: str) -> None:
    """It is the name of a directory. Raises PipelineError."""
    if not _ID.fullmatch(given):
        raise PipelineError(
            f'--id takes 1 to 100 letters, digits, dots, dashes and underscores, and no dot first: not "{given}"'
        )


def write_id(replay_id: str, purpose: Mapping[str, object], chunk: int) -> str:
    """By which brokers remember a chunk, for longer than the replay's directory may live. So it tells what is written
    and where to: under the same id, from an archive or to a topic that was made anew, it is another replay.
    """
    whole = json.dumps({"id": replay_id, **purpose}, sort_keys=True)
    return f"replay-{hashlib.sha256(whole.encode()).hexdigest()[:32]}-{chunk:06}"


@dataclass(frozen=True, slots=True)
class Done:
    """Chunks that are known to be written, with how many rows."""

    chunks: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ReplayState:
    """`purpose` is all that says which records go where: a replay of the same id with another one is another replay."""

    files: Files
    directory: str
    id: str
    purpose: Mapping[str, object]

    def chunks(self) -> ReplayChunks | None:
        """None where nothing is laid down yet. Raises PipelineError when it is another replay."""
        found = read_json(self.files, self._plan)
        if found is None:
            return None
        for key, value in self.purpose.items():
            known = found.get("purpose", {}).get(key)
            if known != value:
                raise PipelineError(
                    f"the replay {self.id} is another one: its {key} is {known}, not {value}; --id takes another name"
                )
        return ReplayChunks.from_json(found, self._plan)

    def write_id(self, chunk: int) -> str:
        return write_id(self.id, self.purpose, chunk)

    def laid_down(self, cut: Callable[[], ReplayChunks]) -> ReplayChunks:
        if self.chunks() is None:
            self.files.make_directory(self.directory)
            self.files.create(self._plan, self._text(cut()))
        known = self.chunks()
        assert known is not None, "it was written, by us or by somebody who was faster"
        return known

    def lay_anew(self, chunks: ReplayChunks) -> None:
        """Where those that may have been begun are as they were."""
        self.files.write(self._plan, self._text(chunks))

    def done(self) -> Done:
        found = read_json(self.files, self._done)
        if found is None:
            return Done()
        try:
            return Done(int(found["chunks"]), int(found["rows"]))
        except (KeyError, ValueError) as error:
            raise PipelineError(f"{self._done} is damaged: {error!r}") from None

    def note(self, done: Done) -> None:
        self.files.write(self._done, json.dumps(asdict(done)))

    def _text(self, chunks: ReplayChunks) -> str:
        return json.dumps({"purpose": dict(self.purpose), **chunks.to_json()})

    @property
    def _plan(self) -> str:
        return joined(self.directory, "plan.json")

    @property
    def _done(self) -> str:
        return joined(self.directory, "done.json")
