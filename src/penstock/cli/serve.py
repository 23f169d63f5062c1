"""`penstock serve`: from flags, environment and file to a BrokerConfig, then into the broker."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.cli.flags import Option, key_option, parse, refuse
from penstock.core.config import (
    Assignment,
    BrokerConfig,
    environment_assignments,
    file_assignments,
    set_assignments,
)
from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import ConfigError, to_text
from penstock.core.listeners import rebind

OPTIONS = (
    key_option("--data-dir", "DIR", "log.dirs"),
    key_option("--metadata", "ADDRESS", "penstock.metadata"),
    Option("--host", "HOST", "Address to listen on: the host of the first listener. (listeners)"),
    Option("--port", "PORT", "Port to listen on, 0 for a free one: the port of the first listener. (listeners)"),
    key_option("--http-port", "PORT", "penstock.http.port"),
    Option("--ready-file", "FILE", "Written, as JSON, when clients can connect."),
    Option("--config", "FILE", "TOML file with configuration keys."),
    Option("--set", "KEY=VALUE", "Sets a configuration key; may be given many times.", repeats=True),
    key_option("--insecure", None, "penstock.insecure"),
    Option("--hints", None, "Print three commands to try once the broker is ready."),
    Option("--parent", "PID", "End at once when this process, which started the broker, ends."),
)


def serve(arguments: Sequence[str]) -> int:
    """Runs a broker until it is told to stop; the exit code of the process."""
    flags = parse_flags(arguments)
    if flags.parent is not None:
        _follow_parent(flags.parent)
    try:
        config = broker_config(flags, os.environ)
    except ConfigError as refused:
        refuse("serve", str(refused))
    from penstock.server.node import run

    return run(config, Path(flags.ready_file) if flags.ready_file else None, hints=flags.hints)


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    return parse("serve", OPTIONS, arguments)


def _follow_parent(pid: str) -> None:
    from penstock.runtime.parent import ParentGone, die_with_parent

    if not (pid.isascii() and pid.isdigit()):
        refuse("serve", f'--parent "{pid}": expected the id of a process')
    try:
        die_with_parent(int(pid))
    except (ParentGone, OSError) as error:
        print(f"penstock serve: --parent: {error}", file=sys.stderr)
        sys.exit(1)


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
    assignments = [
        Assignment(option.key, to_text(value) or "", option.flag)
        for option in OPTIONS
        if option.key is not None and (value := getattr(flags, option.name)) not in (None, False)
    ]
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
