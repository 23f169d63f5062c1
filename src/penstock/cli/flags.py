"""The flags of the commands that run brokers: a table that feeds both argparse and the help that typer prints.

Parsed by argparse because it costs a hundredth of a second where typer takes a fifth, and 20 MB of memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import nearest

USAGE_ERROR = 2


@dataclass(frozen=True, slots=True)
class Option:
    """A flag. One with a `key` sets it, and beats every other layer."""

    flag: str
    metavar: str | None
    help: str
    key: str | None = None
    repeats: bool = False

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


def key_option(flag: str, metavar: str | None, key: str) -> Option:
    return Option(flag, metavar, f"{BROKER_KEYS[key].doc} ({key})", key)


def refuse(command: str, message: str) -> NoReturn:
    print(f"penstock {command}: {message}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def parse(command: str, options: Sequence[Option], arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program, with a message, when the arguments are wrong."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            refuse(command, message)

    parser = Parser(prog=f"penstock {command}", add_help=False, allow_abbrev=False)
    for option in options:
        if option.metavar is None:
            parser.add_argument(option.flag, action="store_true")
        else:
            parser.add_argument(option.flag, action="append" if option.repeats else "store")
    flags, unknown = parser.parse_known_args(arguments)
    if unknown:
        refuse(command, _unknown_option(options, unknown[0]))
    return flags


def _unknown_option(options: Sequence[Option], argument: str) -> str:
    if not argument.startswith("-"):
        return f'unexpected argument "{argument}"'
    flag = argument.partition("=")[0]
    guess = nearest(flag, [option.flag for option in options])
    key = nearest(flag.strip("-").replace("-", "."), BROKER_KEYS)
    if guess:
        return f"unknown option {flag}; did you mean {guess}?"
    return f"unknown option {flag}" + (f"; did you mean --set {key}=VALUE?" if key else "")
