"""What a pipeline is about to do, checked and ready to be shown: `--dry-run` ends here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", covariant=True)
Lines = list[tuple[str, str]]


class Plan(Protocol[Result]):
    """Making one has asked the brokers and looked at the target: nothing is left that arguments could have wrong."""

    def lines(self) -> Lines:
        """A label and what it says, for people."""

    def run(self) -> Result: ...


def carried_out(name: str, plan: Callable[Arguments, Plan[Result]]) -> Callable[Arguments, Result]:
    """A pipeline as a plain function: its plan, made and run at once."""

    @wraps(plan)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return plan(*arguments, **named).run()

    run.__name__ = run.__qualname__ = name
    return run
