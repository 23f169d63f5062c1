"""From the command line to the broker's configuration, without a broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.serve import OPTIONS, broker_config, parse_flags
from penstock.core.config import BrokerConfig
from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import ConfigError


def a_config(*arguments: str, **environment: str) -> BrokerConfig:
    return broker_config(parse_flags(arguments), environment)


def test_given_no_arguments_then_every_key_but_the_machines_name_has_its_default() -> None:
    config = a_config()

    differing = [name for name in BROKER_KEYS if config[name] != BROKER_KEYS[name].default]
    assert differing == ["penstock.host"]


def test_given_flag_set_environment_and_file_then_they_win_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[log]\ndir = "from-file"\n[num]\npartitions = 9\n')
    from_file = ["--config", str(file)]
    from_set = ["--set", "log.dir=from-set", "--set", "log.dirs=from-set"]

    assert a_config(*from_file).data_dir == "from-file"
    assert a_config(*from_file, PENSTOCK_LOG_DIR="from-environment").data_dir == "from-environment"
    assert a_config(*from_file, *from_set, PENSTOCK_LOG_DIRS="from-environment").data_dir == "from-set"
    assert a_config(*from_file, *from_set, "--data-dir", "from-flag", PENSTOCK_LOG_DIRS="e").data_dir == "from-flag"
    assert a_config(*from_file).int("num.partitions") == 9


def test_given_host_and_port_then_they_beat_the_listeners_of_lower_layers_and_keep_what_they_do_not_say() -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.2:1234"

    assert str(a_config("--port", "0").listeners[0]) == "PLAINTEXT://127.0.0.1:0"
    assert str(a_config("--port", "0", "--set", listeners).listeners[0]) == "PLAINTEXT://127.0.0.2:0"
    assert str(a_config("--host", "127.0.0.3", "--set", listeners).listeners[0]) == "PLAINTEXT://127.0.0.3:1234"
    assert str(a_config("--host", "::1").listeners[0]) == "PLAINTEXT://[::1]:9092"


def test_given_insecure_then_other_machines_may_connect_and_are_told_the_machines_name() -> None:
    config = a_config("--host", "0.0.0.0", "--insecure")

    assert config.listeners[0].host == "0.0.0.0"
    assert config.advertised_listeners[0].host == config.str("penstock.host") != ""


@pytest.mark.parametrize("port", ["x", "-1", "65536", "1.5", ""])
def test_given_a_port_that_is_none_then_it_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match="port"):
        a_config(f"--port={port}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"a = ", "not TOML"), (b"\xff", "not TOML"), (b"[num]\npartition = 1", "num.partitions")],
)
def test_given_a_bad_file_then_the_message_names_it(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "penstock.toml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=reason) as refused:
        a_config("--config", str(file))
    assert str(file) in str(refused.value)


def test_given_the_options_then_those_with_a_key_name_one_that_exists() -> None:
    assert [option.flag for option in OPTIONS if option.key and option.key not in BROKER_KEYS] == []


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unknown option --prot; did you mean --port?"),
        (["--log-segment-bytes=1"], "unknown option --log-segment-bytes; did you mean --set log.segment.bytes=VALUE?"),
        (["extra"], 'unexpected argument "extra"'),
        (["--port"], "argument --port: expected one argument"),
        (["--set", "num.partitons=1"], 'unknown key "num.partitons" (from --set); did you mean "num.partitions"?'),
        (["--http-port", "x"], 'penstock.http.port="x" (from --http-port): expected a whole number from 0 to 65535'),
    ],
)
def test_given_a_mistake_then_one_line_says_what_and_the_exit_code_is_2(arguments: list[str], message: str) -> None:
    finished = penstock("serve", *arguments)

    assert finished.returncode == 2
    assert finished.stderr == f"penstock serve: {message}\n"
    assert finished.stdout == ""


def test_given_help_then_serve_shows_its_options_and_every_key_and_the_program_its_commands() -> None:
    serve_help = penstock("serve", "--help").stdout
    program_help = penstock("--help").stdout

    assert [option.flag for option in OPTIONS if option.flag not in serve_help] == []
    assert [name for name in BROKER_KEYS if f" {name}" not in serve_help] == []
    assert [word for word in ("serve", "topic", "produce", "consume", "log") if f" {word} " not in program_help] == []


def test_given_serve_or_up_then_the_packages_of_the_tools_stay_unloaded() -> None:
    script = (
        "import sys; import penstock.cli.main, penstock.cli.serve, penstock.cli.up; "
        "print([name for name in ('typer', 'rich', 'pydantic', 'confluent_kafka', 'aiohttp') if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"


def test_given_no_confluent_kafka_then_a_tool_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['confluent_kafka'] = None; sys.argv = ['penstock', 'topic', 'list']; "
        "from penstock.cli.main import main; main()"
    )

    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert finished.returncode == 1
    assert finished.stderr == "penstock: this command needs confluent-kafka: pip install confluent-kafka\n"


def test_given_nothing_listens_then_a_tool_says_so_at_once() -> None:
    finished = penstock("topic", "list", "--bootstrap-server", "127.0.0.1:1")

    assert finished.returncode == 1
    assert "no broker there" in finished.stderr
    assert "127.0.0.1:1: Connection refused" in finished.stderr
