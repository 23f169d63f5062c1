"""The page says what the result says: all of it, losses first, and without asking anybody else."""

from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench.page import page, write_page
from bench.page_rows import PageRow

VOID = {"meta", "br", "hr", "img", "input", "link"}
NOT_HERE = "nats-server is not installed"


def a_row(name: str, ours: float | None, theirs: float | None, **more: Any) -> dict[str, Any]:
    figures = {"penstock": ours, "kafka": theirs, "nats": None, "rabbitmq": None}
    ratio = ours / theirs if ours and theirs else None
    return {
        "row": name,
        "durability": "page-cache",
        **figures,
        "unit": "MB/s",
        "ratio": ratio,
        "goal": None,
        "met": True,
        "bound": None,
        "spread": {system: [value * 0.9, value * 1.1] for system, value in figures.items() if value},
        "reasons": {"nats": NOT_HERE, "rabbitmq": "not measured for this row"},
        **more,
    }


def a_result(*rows: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"cores": 2, "processor": "a fast one"},
        "versions": {"penstock": "1.0", "kafka": "4.2.0"},
        "date": "2026-11-17T05:00:00Z",
        "command": "python -m bench.side_by_side --rows 'produce*'",
        "rows": list(rows),
    }


def at_least(ratio: float) -> dict[str, Any]:
    return {"direction": "at least", "ratio": ratio, "of": "kafka"}


def at_most(ratio: float, **limit: float) -> dict[str, Any]:
    return {"direction": "at most", "ratio": ratio, "of": "kafka", **limit}


A_RESULT = a_result(
    a_row("produce-raw-1kb", 803, 195, goal=at_least(1.3)),
    a_row(
        "consume-raw-1kb", 2_000, 1_900, goal=at_least(1.3), met=False, nats=150, reasons={"rabbitmq": "no such row"}
    ),
    a_row("group-commits", 14_000, 40_700, unit="commits/s"),
    a_row("ack-p99", 0.9, 1.6, unit="ms", durability="fsync", goal=at_most(1, under=10), higher_is_better=False),
    a_row("produce-confluent-1kb", 670, 640, bound="client", stub=690, goal={**at_least(0.95), "of": "stub"}),
    a_row("failover", None, 9.5, unit="s", reasons={"penstock": "it fell over"}, higher_is_better=False),
)


class Reader(HTMLParser):
    """Tags that do not match, attributes, the text, and the text of each plot."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.plots: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag == "svg":
            self.plots.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> was never opened"
        assert self.open.pop() == tag, f"</{tag}> is not what was opened last"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if "svg" in self.open:
            self.plots[-1] += f"{data}\n"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_given_a_result_when_the_page_is_written_then_it_is_one_whole_document(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.html"

    write_page(A_RESULT, path)

    read = Reader(path.read_text(encoding="utf-8"))
    assert read.open == []
    assert [each.name for each in path.parent.iterdir()] == ["latest.html"]


def test_given_a_result_when_the_page_is_made_then_every_row_is_in_a_plot_and_in_the_table() -> None:
    read = Reader(page(A_RESULT))

    for row in A_RESULT["rows"]:
        assert any(row["row"] in plot.splitlines() for plot in read.plots), row["row"]
        assert read.texts.count(row["row"]) >= 2, row["row"]
    for figure in ("803", "195", "14,000", "40,700", "0.9", "9.5"):
        assert figure in read.text


def test_given_goals_met_and_missed_when_the_page_is_made_then_the_headline_counts_them() -> None:
    read = Reader(page(A_RESULT))

    assert "3 of 4 goals met" in read.text
    assert read.text.count("✗ goal missed") == 2, "in the overview and in its group"


def test_given_lost_rows_when_the_page_is_made_then_they_are_told_before_the_details() -> None:
    read = Reader(page(A_RESULT))

    told = read.text[read.text.index("Where Penstock loses") : read.text.index("Medians, and from")]
    assert "consume-raw-1kb" in told
    assert "group-commits" in told
    assert "produce-raw-1kb" not in told


def test_given_no_lost_row_when_the_page_is_made_then_it_says_so() -> None:
    read = Reader(page(a_result(a_row("produce-1kb", 803, 195, goal=at_least(1.3)))))

    assert "no goal was missed, and no row was behind Kafka" in read.text


def test_given_both_durabilities_when_the_page_is_made_then_no_plot_mixes_them() -> None:
    read = Reader(page(A_RESULT))

    names = {
        durability: [row["row"] for row in A_RESULT["rows"] if row["durability"] == durability]
        for durability in ("page-cache", "fsync")
    }
    for plot in read.plots:
        seen = [durability for durability, rows in names.items() if set(rows) & set(plot.splitlines())]
        assert len(seen) == 1, plot
    assert "Acknowledged from the page cache" in read.text
    assert "Acknowledged after fsync" in read.text


def test_given_a_peer_that_is_missing_when_the_page_is_made_then_it_is_named_with_the_reason() -> None:
    read = Reader(page(A_RESULT))

    told = read.text[read.text.index("What has no figure") :]
    assert NOT_HERE in told
    assert "NATS JetStream" in told
    assert "RabbitMQ streams" in told
    assert "it fell over" in told


def test_given_the_page_when_a_browser_shows_it_then_nothing_is_fetched() -> None:
    text = page(A_RESULT)

    read = Reader(text)
    assert not read.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "use", "image"}
    assert not read.attributes.keys() & {"src", "href", "srcset", "xlink:href", "data", "style", "onload"}
    for way_out in ("http:", "https:", "url(", "@import", "//"):
        assert way_out not in text


def test_given_texts_with_markup_when_the_page_is_made_then_they_are_only_texts() -> None:
    nasty = "<script>alert('&')</script>\"><b"
    row = a_row(nasty, 1, 2, unit=nasty, durability=nasty, reasons={"nats": nasty}, bound=nasty)
    result = {**a_result(row), "command": nasty, "versions": {nasty: nasty}, "machine": {nasty: nasty}, "date": nasty}

    read = Reader(page(result))

    assert "script" not in read.tags
    assert read.open == []
    assert nasty in read.texts


def test_given_made_by_whom_and_where_when_the_page_is_made_then_it_says_so() -> None:
    read = Reader(page(A_RESULT))

    for fact in ("a fast one", "4.2.0", "2026-11-17T05:00:00Z", "python -m bench.side_by_side --rows 'produce*'"):
        assert fact in read.text


@pytest.mark.parametrize("rows", [(), (a_row("nothing", None, None, reasons={"penstock": "off", "kafka": "off"}),)])
def test_given_nothing_measured_when_the_page_is_made_then_it_is_still_a_page(rows: tuple[dict[str, Any], ...]) -> None:
    read = Reader(page(a_result(*rows)))

    assert "No goal was measured" in read.text
    assert read.open == []


def test_given_a_limit_of_the_client_when_the_page_is_made_then_it_is_drawn_and_in_the_table() -> None:
    read = Reader(page(A_RESULT))

    assert "the client's limit" in read.text
    assert "690 stub" in read.text


def test_given_less_is_better_when_a_row_is_parsed_then_its_advantage_is_the_ratio_turned_over() -> None:
    row = PageRow.parse(a_row("memory", 50, 400, higher_is_better=False, goal=at_most(0.2)))

    assert row.advantage == 8
    assert row.goal_advantage == 5
    assert row.goal_figure == 80


def test_given_a_goal_with_a_limit_when_a_row_is_parsed_then_the_stricter_of_both_is_marked() -> None:
    loose = PageRow.parse(a_row("ack-p99", 2, 40, higher_is_better=False, goal=at_most(1, under=10)))
    tight = PageRow.parse(a_row("ack-p99", 2, 4, higher_is_better=False, goal=at_most(1, under=10)))

    assert (loose.goal_figure, tight.goal_figure) == (10, 4)


def test_given_repetitions_that_differ_when_a_row_is_drawn_then_it_has_a_whisker_for_each_system() -> None:
    differing = page(a_result(a_row("produce-1kb", 803, 195)))
    alike = page(a_result(a_row("produce-1kb", 803, 195, spread={"penstock": [803, 803]})))

    assert differing.count('class="whisker"') == 2
    assert alike.count('class="whisker"') == 0
