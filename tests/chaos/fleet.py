"""Workers as processes: started, killed by their own process ids, ended in good order, none left behind."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.testkit import eventually

_PROJECT = Path(__file__).parents[2]
_END_WITHIN_S = 90
_PROGRESS_WITHIN_S = 40
_ROUNDS = 3


class Worker:
    """One process, with a history of its own."""

    def __init__(self, module: str, name: str, directory: Path, options: dict[str, Any]) -> None:
        self.module = module
        self.name = name
        self.options = options
        self.history_path = directory / f"{name}.history"
        self._log_path = directory / f"{name}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.chaos.workers.{module}", json.dumps(options | {"name": name})],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_PROJECT,
                env={**os.environ, "PYTHONPATH": str(_PROJECT)},
            )

    def progress(self) -> int:
        """How much it has written down."""
        if self._process.poll() is not None:
            # Not an AssertionError, which would count as "not yet".
            raise WorkerDied(f"{self.name} ended by itself\n{self.log_tail()}")
        return self.history_path.stat().st_size if self.history_path.exists() else 0

    def say_where_it_is(self) -> None:
        """Its stack goes to its log."""
        self._process.send_signal(signal.SIGUSR1)
        eventually(lambda: "most recent call first" in self.log_tail(), 5, f"{self.name} does not answer")

    def last_event(self) -> str:
        """What it wrote down last: what came after it did not end."""
        lines = self.history_path.read_text(errors="replace").splitlines() if self.history_path.exists() else []
        return lines[-1] if lines else "nothing"

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def until_ended(self) -> None:
        try:
            code = self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.say_where_it_is()
            raise AssertionError(f"{self.name} does not end after {self.last_event()}\n{self.log_tail()}") from None
        assert code == 0, f"{self.name} ended with {code}\n{self.log_tail()}"

    def log_tail(self) -> str:
        return "\n".join([f"--- {self.name}:", *self._log_path.read_text(errors="replace").splitlines()[-25:]])


class WorkerDied(Exception):
    """A worker ended that nobody had told to."""


class Fleet:
    """All workers of a test."""

    def __init__(self, bootstrap: str, directory: Path, luck: random.Random) -> None:
        directory.mkdir()
        self.directory = directory
        self.living: list[Worker] = []
        self.stuck: list[str] = []
        """Who did not get on, and what they were doing."""

        self._sizes: dict[Worker, int] = {}
        self._started: list[Worker] = []
        self._luck = luck
        self._numbers = itertools.count(1)
        self._common = {"bootstrap": bootstrap, "directory": str(directory)}

    def start(self, module: str, **options: Any) -> Worker:
        name = f"{module}-{next(self._numbers)}"
        worker = Worker(module, name, self.directory, self._common | {"seed": self._luck.randrange(2**32)} | options)
        self.living.append(worker)
        self._started.append(worker)
        return worker

    def replace(self, worker: Worker) -> None:
        """Kills it, and starts another like it."""
        worker.kill()
        self.living.remove(worker)
        self.start_another(worker)

    def start_another(self, worker: Worker) -> Worker:
        """One like it, with its transactional id if it has one, while it still lives."""
        return self.start(worker.module, **{key: value for key, value in worker.options.items() if key != "seed"})

    def until_all_progress(self) -> None:
        """Who does not get on is killed and replaced, so that the others are tried further, and goes to `stuck`."""
        for _ in range(_ROUNDS):
            self._sizes = {worker: worker.progress() for worker in self.living}
            try:
                eventually(
                    lambda: not self._slow(), _PROGRESS_WITHIN_S, "somebody is stuck, and so are those after him"
                )
                return
            except AssertionError as error:
                refusal = error
            for worker in self._slow():
                worker.say_where_it_is()
                self.stuck.append(f"{worker.name} after {worker.last_event()}\n{worker.log_tail()}")
                self.replace(worker)
        raise refusal

    def _slow(self) -> list[Worker]:
        return [worker for worker, size in self._sizes.items() if worker.progress() <= size]

    def end(self, *modules: str) -> None:
        """Ends all workers of these kinds in good order."""
        self.end_these([worker for worker in self.living if worker.module in modules])

    def end_these(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.until_ended()
            self.living.remove(worker)

    def read_everything(self, topic: str, partitions: int) -> None:
        """Final readers of both isolation levels."""
        for isolation in ("read_committed", "read_uncommitted"):
            self.start("final_reader", topic=topic, partitions=partitions, isolation=isolation)
        for worker in [each for each in self.living if each.module == "final_reader"]:
            worker.until_ended()
            self.living.remove(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._started:
            worker.kill()
            if error is not None:
                error.add_note(worker.log_tail())
