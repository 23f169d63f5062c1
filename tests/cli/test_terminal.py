"""What people see of names that others chose."""

import pytest

from penstock.cli.terminal import print_columns


def test_given_names_with_line_breaks_and_escapes_then_each_row_stays_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns(("GROUP", "STATE"), [("a\nb\x1b[2J", "Empty"), ("größe ✓", "Stable")])

    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [(row[0], row[-1].strip()) for row in rows] == [
        ("GROUP", "STATE"),
        ("a\\nb\\u001b[2J", "Empty"),
        ("größe ✓", "Stable"),
    ]
