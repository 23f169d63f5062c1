"""What a pipeline is about to do, checked and ready to be shown: `--dry-run` ends here."""

from __future__ import annotations

from typing import Protocol

from penstock.spark.pipelines.running import Ended

Lines = list[tuple[str, str]]


class Plan(Protocol):
    """Making one has asked the brokers and looked at the target: nothing is left that arguments could have wrong."""

    def lines(self) -> Lines:
        """A label and what it says, for people."""

    def run(self) -> Ended: ...
