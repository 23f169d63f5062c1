"""`penstock up`: a cluster on one machine. What brokers share is said once, what they cannot share is given out here.

Everything is checked before the first broker starts, so that a mistake is told once and not by each of them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.cli.flags import Option, key_option, parse, refuse
from penstock.cli.serve import broker_config
from penstock.cli.terminal import counted
from penstock.core.config import BrokerConfig, ConfigSource
from penstock.core.config_values import ConfigError
from penstock.core.metadata_address import SqliteAddress, parse_metadata_address
from penstock.metadata.open_store import METADATA_FILE
from penstock.server.supervisor import BrokerPlan, ClusterPlan, Refused, run

DEFAULT_BROKERS = 3
MAX_PORT = 65535
# What names one broker cannot be said of all of them.
KEYS_OF_ONE_BROKER = ("node.id", "advertised.listeners", "penstock.internal.port")

OPTIONS = (
    Option("--brokers", "N", f"How many brokers to run: {DEFAULT_BROKERS} when not given."),
    Option(
        "--without",
        "NUMBER",
        "Leave out broker-NUMBER, whose directory is lost; may be given many times.",
        repeats=True,
    ),
    Option(
        "--data-dir",
        "DIR",
        f"The cluster's directory. In it each broker has its own, broker-1 and so on, beside {METADATA_FILE}.",
        "log.dirs",
    ),
    key_option("--metadata", "ADDRESS", "penstock.metadata"),
    Option("--host", "HOST", "Address that all brokers listen on. (listeners)"),
    Option(
        "--port", "PORT", "Port of the first broker; the others take those after it. 0 takes free ones. (listeners)"
    ),
    Option("--http-port", "PORT", "The same for HTTP; free ports when not given. (penstock.http.port)"),
    Option("--ready-file", "FILE", "Written, as a JSON list, when all brokers are ready, and when one comes or goes."),
    Option("--config", "FILE", "TOML file with configuration keys."),
    Option("--set", "KEY=VALUE", "Sets a configuration key; may be given many times.", repeats=True),
    key_option("--insecure", None, "penstock.insecure"),
    Option("--hints", None, "Print three commands to try once the brokers are ready."),
)


def up(arguments: Sequence[str]) -> int:
    """Runs the cluster until it is told to stop; the exit code of the process."""
    flags = parse("up", OPTIONS, arguments)
    try:
        plan = cluster_plan(flags, os.environ)
    except ConfigError as refused:
        refuse("up", str(refused))
    try:
        return run(plan)
    except (Refused, OSError) as error:
        print(f"penstock up: {error}", file=sys.stderr)
        return 1


def cluster_plan(flags: argparse.Namespace, environment: Mapping[str, str]) -> ClusterPlan:
    """Raises ConfigError for what no broker would take, and for what several brokers cannot share."""
    config = broker_config(flags, environment)
    count = _count(flags.brokers)
    left_out = _left_out(flags.without or (), count)
    _check_shared(config)
    directory = Path(config.data_dir)
    ports = _ports("--port", config.listeners[0].port, count)
    http_ports = _ports("--http-port", _first_http_port(config), count)
    if both := sorted({*ports} & {*http_ports} - {0}):
        raise ConfigError(f"--port and --http-port: with {counted(count, 'broker')} both want {both[0]}")
    address = config.optional_str("penstock.metadata")
    metadata = SqliteAddress(str(directory / METADATA_FILE)) if address is None else parse_metadata_address(address)
    shared = _shared_arguments(flags, directory, has_own_metadata=address is None)
    return ClusterPlan(
        directory=directory,
        brokers=tuple(
            BrokerPlan(
                name=f"broker-{number}",
                port=ports[number - 1],
                http_port=http_ports[number - 1],
                # Brokers of other machines may be in a store that was given: there, ids are assigned.
                arguments=(*shared, f"--set=node.id={number}") if address is None else shared,
            )
            for number in range(1, count + 1)
            if number not in left_out
        ),
        ready_file=Path(flags.ready_file) if flags.ready_file else None,
        session_timeout_ms=config.int("broker.session.timeout.ms"),
        metadata_file=Path(metadata.path) if isinstance(metadata, SqliteAddress) else None,
        hints=flags.hints,
    )


def _count(text: str | None) -> int:
    if text is None:
        return DEFAULT_BROKERS
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PORT):
        raise ConfigError(f'--brokers "{text}": expected a whole number from 1')
    return int(text)


def _left_out(texts: Sequence[str], count: int) -> set[int]:
    for text in texts:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= count):
            raise ConfigError(f'--without "{text}": expected the number of a broker, from 1 to {count} (--brokers)')
    left_out = {int(text) for text in texts}
    if len(left_out) == count:
        raise ConfigError("--without: no broker is left to run")
    return left_out


def _check_shared(config: BrokerConfig) -> None:
    for key in KEYS_OF_ONE_BROKER:
        if config.entry(key).source is not ConfigSource.DEFAULT_CONFIG:
            raise ConfigError(f"{key} would be the same for all brokers: leave it out, each has its own")
    if len(config.listeners) > 1:
        raise ConfigError("listeners has several, and a broker of penstock up has one: give one, without the others")


def _first_http_port(config: BrokerConfig) -> int:
    key = "penstock.http.port"
    return 0 if config.entry(key).source is ConfigSource.DEFAULT_CONFIG else config.int(key)


def _ports(flag: str, first: int, count: int) -> tuple[int, ...]:
    if first == 0:
        return (0,) * count
    if first + count - 1 > MAX_PORT:
        raise ConfigError(f"{flag} {first}: there are no {count} ports from there on")
    return tuple(range(first, first + count))


def _shared_arguments(flags: argparse.Namespace, directory: Path, *, has_own_metadata: bool) -> tuple[str, ...]:
    given = ((name, getattr(flags, name)) for name in ("metadata", "host", "config"))
    return (
        *([f"--metadata=sqlite:{directory / METADATA_FILE}"] if has_own_metadata else ()),
        *(f"--{name}={value}" for name, value in given if value is not None),
        *(f"--set={assignment}" for assignment in flags.set or ()),
        *(["--insecure"] if flags.insecure else ()),
    )
