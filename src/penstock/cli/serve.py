"""`penstock serve`: from flags, environment and file to a BrokerConfig, then into the broker.

Parsed by argparse because it costs a hundredth of a second where typer takes a fifth, and 20 MB of memory; OPTIONS
feeds both argparse and the help that typer prints.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.core.config import (
    Assignment,
    BrokerConfig,
    environment_assignments,
    file_assignments,
    set_assignments,
)
from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import ConfigError, nearest, to_text
from penstock.core.listeners import rebind

USAGE_ERROR = 2


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of `serve`. One with a `key` sets it, and beats every other layer."""

    flag: str
    metavar: str | None
    help: str
    key: str | None = None
    repeats: bool = False

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


def _key_option(flag: str, metavar: str | None, key: str) -> Option:
    return Option(flag, metavar, f"{BROKER_KEYS[key].doc} ({key})", key)


OPTIONS = (
    _key_option("--data-dir", "DIR", "log.dirs"),
    _key_option("--metadata", "ADDRESS", "penstock.metadata"),
    Option("--host", "HOST", "Address to listen on: the host of the first listener. (listeners)"),
    Option("--port", "PORT", "Port to listen on, 0 for a free one: the port of the first listener. (listeners)"),
    _key_option("--http-port", "PORT", "penstock.http.port"),
    Option("--ready-file", "FILE", "Written, as JSON, when clients can connect."),
    Option("--config", "FILE", "TOML file with configuration keys."),
    Option("--set", "KEY=VALUE", "Sets a configuration key; may be given many times.", repeats=True),
    _key_option("--insecure", None, "penstock.insecure"),
    Option("--hints", None, "Print three commands to try once the broker is ready."),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(message)


def _refuse(message: str) -> NoReturn:
    print(f"penstock serve: {message}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def serve(arguments: Sequence[str]) -> int:
    """Runs a broker until it is told to stop; the exit code of the process."""
    flags = parse_flags(arguments)
    try:
        config = broker_config(flags, os.environ)
    except ConfigError as refused:
        _refuse(str(refused))
    from penstock.server.node import run

    return run(config, Path(flags.ready_file) if flags.ready_file else None, hints=flags.hints)


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="penstock serve", add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        if option.metavar is None:
            parser.add_argument(option.flag, action="store_true")
        else:
            parser.add_argument(option.flag, action="append" if option.repeats else "store")
    flags, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(_unknown_option(unknown[0]))
    return flags


def _unknown_option(argument: str) -> str:
    if not argument.startswith("-"):
        return f'unexpected argument "{argument}"'
    flag = argument.partition("=")[0]
    guess = nearest(flag, [option.flag for option in OPTIONS])
    key = nearest(flag.strip("-").replace("-", "."), BROKER_KEYS)
    if guess:
        return f"unknown option {flag}; did you mean {guess}?"
    return f"unknown option {flag}" + (f"; did you mean --set {key}=VALUE?" if key else "")


def broker_config(flags: argparse.Namespace, environment: Mapping[str, str]) -> BrokerConfig:
    """All layers together: flags over --set over environment over file."""
    assignments = (
        Assignment("penstock.host", socket.gethostname(), "the machine's name"),
        *(_read_file(flags.config) if flags.config else ()),
        *environment_assignments(environment),
        *set_assignments(flags.set or ()),
    )
    return BrokerConfig((*assignments, *_flag_assignments(flags, assignments)))


def _read_file(path: str) -> tuple[Assignment, ...]:
    import tomllib

    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None
    return file_assignments(document, path)


def _flag_assignments(flags: argparse.Namespace, lower: Sequence[Assignment]) -> list[Assignment]:
    assignments = []
    for option in OPTIONS:
        value = getattr(flags, option.name)
        if option.key is not None and value not in (None, False):
            assignments.append(Assignment(option.key, to_text(value) or "", option.flag))
    if flags.host is not None or flags.port is not None:
        assignments.append(_listen_at(flags.host, _port(flags.port), lower))
    return assignments


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise ConfigError(f'--port "{text}": expected a whole number from 0 to 65535')
    return int(text)


def _listen_at(host: str | None, port: int | None, lower: Sequence[Assignment]) -> Assignment:
    """The listeners of the lower layers, the first of them at this host and port."""
    texts = BROKER_KEYS["listeners"].default
    for assignment in lower:
        if assignment.name == "listeners":
            texts = BROKER_KEYS["listeners"].parse(assignment.text)
    assert isinstance(texts, tuple)
    return Assignment("listeners", ",".join(rebind(texts, host, port)), "--host and --port")
