"""HTML reports of all commands: content, well-formedness, escaping and privacy."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.lab.evaluation_result import MODEL, Estimate, Evaluation, LossEstimate
from ctxextend.report.html import comparison_figure, write_report

from ctxextend import resize
from ctxextend.inspection.inspect import inspect
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.report.figures import write_figure
from ctxextend.report.numbers import NUMBERS
from tests.helpers.comparisons import COMPARISONS, METHODS, comparison, encoders
from tests.helpers.evaluations import (
    EXTENDED,
    EXTREMES,
    extreme_evaluation,
)
from tests.helpers.trainings import invoke

Found = Comparison | Evaluation | Sequence[Inspection]

HOSTILE = "--></title><script>alert(1)</script>\"'&\x1b[31m\x00\n\u202e\ud800"


class PageParser(HTMLParser):
    """Parse a report; fail if elements are not nested correctly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def page_of(found: Found, folder: Path, command: str = "") -> str:
    write_report(found, folder / "page.html", command)
    return (folder / "page.html").read_text("utf-8")


def plots(page: str) -> Iterator[ElementTree.Element]:
    """Yield every plot (not legend swatches), parsed as XML."""
    for text in re.findall(r'role="img"[^>]*>(<svg.*?</svg>)', page, re.DOTALL):
        yield ElementTree.fromstring(text.replace("<svg", '<svg xmlns:xlink="x"', 1))


def cells(page: str) -> list[list[str]]:
    """Return the cell texts of the ranking by row."""
    (table,) = re.findall(r'<table class="ranking">.*?</table>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    texts = [re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]*>", "", text).split()) for text in row] for row in texts]


def with_last(found: Comparison, **changes: Any) -> Comparison:
    """Change the last row of a comparison."""
    return replace(found, rows=(*found.rows[:-1], replace(found.rows[-1], **changes)))


def without_small_plots(found: Comparison) -> Comparison:
    """Remove the data of small plots, effective lengths, from a comparison."""
    rows = []
    for row in found.rows:
        rows.append(replace(row, evaluation=replace(row.evaluation, effective=None)))
    return replace(found, rows=tuple(rows))


def with_extremes(found: Comparison, mean: float, error: float | None) -> Comparison:
    """Give the last row of a comparison extreme results."""
    extreme = LossEstimate(mean, error, 0, 9)
    evaluation = extreme_evaluation(mean, error)
    return with_last(
        found, score=extreme, delta=extreme, short_inputs=extreme, evaluation=evaluation
    )


# Results, and the number of plots in their reports.
REPORTS: dict[str, tuple[Found, int]] = {
    "plain": (comparison(("linear", "copy", "last")), 2 + 2 + 2 * 3),
    "encoder": (without_small_plots(encoders()), 1 + 2),
    "effective": (COMPARISONS["compare-effective"], 1 + 2 * 2),
    "evaluation": (EXTENDED, 2 + 2 + 2),
    "two tables": ([inspect("tiny-gpt2")] * 2, 3 + 2),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, (result, _) in REPORTS.items():
        found[name] = page_of(result, tmp_path_factory.mktemp(name))
    return found


@pytest.mark.parametrize("name", REPORTS)
def test_report_is_well_formed_html_and_loads_nothing(name: str, pages: dict[str, str]) -> None:
    page = pages[name]
    _, count = REPORTS[name]
    tags = PageParser(page).tags
    assert page.startswith("<!DOCTYPE html>\n")
    assert [tag for tag, _ in tags[:3]] == ["html", "head", "meta"]
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = re.findall(r'(?:url\(|href=")#([^)"]*)', page)
    assert set(links) <= set(ids)

    without_maps = re.sub(r'xlink:href="data:image/png;base64,[^"]*"', "", page)
    loaded = re.search(r"https?:|//\w|@import|url\([^#]|\bsrc=|\bhref=\"[^#]", without_maps)
    assert not loaded
    (policy,) = (attributes["content"] for _, attributes in tags if attributes.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")
    assert len(list(plots(page))) == count


def test_report_contains_the_ranking(tmp_path: Path) -> None:
    head, *rows, base = cells(page_of(without_small_plots(comparison()), tmp_path))
    scores = [
        "perplexity",
        "loss (nats)",
        "delta vs. best (nats)",
        "delta vs. base (nats)",
        "cost on short inputs (nats)",
    ]
    assert head == ["#", "method", *(f"{score} ± 95 %" for score in scores), "learned rows"]
    assert [row[1] for row in rows] == list(METHODS)
    best = (
        "bands",
        "19.75 ± 0.87",
        "2.983 ± 0.044",
        "best",
        "-0.185 ± 0.012",
        "+0.0300 ± 0.0080",
        "changed",
    )
    assert rows[0] == ["1", *best]
    assert rows[1][4] == "+0.052 ± 0.069 tied"
    assert [row[1] for row in rows].index("copy") == 3
    assert rows[3] == [
        "4",
        "copy",
        "28.7 ± 1.3",
        "3.356 ± 0.044",
        "+0.373 ± 0.031",
        "+0.187 ± 0.012",
        "0",
        "kept",
    ]
    assert base[1:4] == ["base, sliding windows of 128", "23.8 ± 1.0", "3.169 ± 0.042"]


def test_report_contains_all_losses_recipes_and_notes(tmp_path: Path) -> None:
    found = comparison(("linear", "copy"))
    page = page_of(found, tmp_path)
    texts = PageParser(page).texts
    whole = " ".join(texts)
    for row in found.rows:
        assert row.recipe in whole
        evaluation = row.evaluation
        assert evaluation.positions is not None
        assert evaluation.contexts is not None
        losses = [bucket.losses[MODEL] for bucket in evaluation.positions.buckets]
        losses += [point.loss for point in evaluation.contexts.points]
        for loss in losses:
            assert f"{loss.mean:.3f} ± 0.042" in texts
    for text in (*found.notes, *found.warnings, *found.skipped.values()):
        assert text in whole


def test_report_escapes_all_values(tmp_path: Path) -> None:
    found = comparison(("linear", "copy"))
    recipe = yaml.safe_dump({"to": HOSTILE})
    rows = tuple(replace(row, method=HOSTILE, recipe=recipe) for row in found.rows)
    hostile = replace(
        found,
        source=HOSTILE.replace("/", ""),
        model_type=HOSTILE,
        table=HOSTILE,
        kind=HOSTILE,
        precision=HOSTILE,
        rows=rows,
        notes=(HOSTILE,),
        warnings=(HOSTILE,),
        skipped={HOSTILE: HOSTILE},
    )
    page = page_of(hostile, tmp_path)

    tags = PageParser(page).tags
    names = [tag for tag, _ in tags]
    assert names.count("script") == 1
    for character in ("\x1b", "\0", "\u202e"):
        assert character not in page
    for _, attributes in tags:
        for key in attributes:
            assert not key.startswith("on")
    assert list(plots(page))
    assert page.count("&lt;script&gt;") > 26


HOME = "/home/alice/secret"
SHARED = (
    "minilm is /home/alice/secret/minilm/model.bin; ~/alice/x, ../alice/y, C:\\alice\\z, "
    "alice/b.txt; </s>, a/b, 1 / 2"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [f"{HOME}/minilm", f"{HOME}/minilm/", "../alice/minilm", "alice/minilm", "./minilm"]
)
def test_report_contains_no_folder_names(source: str, tmp_path: Path) -> None:
    Path("alice").mkdir()
    compared = comparison(("linear", "copy"))
    rows = [
        replace(row, recipe=f"source: {source}\ntrain:\n  data: [alice/b.txt]\n")
        for row in compared.rows
    ]
    texts: dict[str, Any] = {
        "source": source,
        "notes": (SHARED,),
        "warnings": (f"In {source}: few windows.",),
    }
    (table,) = inspect("tiny-gpt2").tables
    limit = replace(
        inspect("tiny-gpt2").limits[0],
        reason="too short",
        fix=f"ctxextend resize {source} --to 512",
    )
    inspections = [
        replace(inspect("tiny-gpt2"), source=path, limits=(limit,))
        for path in (source, f"{HOME}/x/minilm")
    ]
    found: list[Found] = [
        replace(
            compared, **texts, rows=tuple(rows), skipped={"mean": f"{HOME}/minilm has no mean."}
        ),
        replace(EXTENDED, **texts, base=f"{HOME}/tiny-gpt2"),
        inspections,
    ]
    for one in found:
        page = page_of(one, tmp_path, "ctxextend compare minilm")
        assert "alice" not in page
        assert "secret" not in page
        assert "minilm" in page
        assert ("&lt;/s&gt;, a/b, 1 / 2" in page) == hasattr(one, "notes")
    assert table.name in page
    assert "ctxextend resize minilm --to 512" in page
    assert "minilm (2)" in page  # two models of the same name


def test_report_contains_date_versions_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    page = page_of(EXTENDED, tmp_path, "ctxextend evaluate gpt2-512 --data 'a b.txt'")
    libraries = [
        f"{name} {version(name)}" for name in ("ctxextend", "torch", "transformers", "numpy")
    ]
    python = ".".join(map(str, sys.version_info[:3]))
    texts = PageParser(page).texts
    assert " · ".join(["2023-11-14", *libraries, f"Python {python}"]) in texts
    assert "ctxextend evaluate gpt2-512 --data 'a b.txt'" in "".join(texts)
    assert page == page_of(EXTENDED, tmp_path, "ctxextend evaluate gpt2-512 --data 'a b.txt'")
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert "2023-11-14" not in page_of(EXTENDED, tmp_path)


def test_report_of_an_evaluation_contains_verdict_and_numbers_without_script(
    tmp_path: Path,
) -> None:
    page = page_of(EXTENDED, tmp_path)
    assert "script" not in page
    texts = [text.strip() for text in PageParser(page).texts]
    assert any(
        text.startswith("Longer context helps: -0.284 ± 0.012 nats/token at 512 vs. 128; better")
        for text in texts
    )
    assert EXTENDED.contexts is not None
    assert {NUMBERS.estimate(point.loss) for point in EXTENDED.contexts.points} <= set(texts)
    assert "0.571 ± 0.061" in texts  # mean reciprocal rank
    headings = {
        "Loss by position",
        "Loss by context length",
        "Effective context: answers found (%)",
        "Effective context by task",
        "Document retrieval",
    }
    assert headings <= set(texts)
    assert "Few windows." in page_of(replace(EXTENDED, warnings=("Few windows.",)), tmp_path)


def test_report_of_tables_contains_limits_and_findings(tmp_path: Path) -> None:
    resize("tiny-gpt2", 512, "copy", output="longer")
    found = [inspect("tiny-gpt2"), inspect("longer")]
    texts = [text.strip() for text in PageParser(page_of(found, tmp_path)).texts]
    findings = [finding for one in found for finding in one.tables[0].findings()]
    assert len(findings) > 8
    assert set(findings) <= set(texts)
    assert all(f": {one.verdict}" in " ".join(texts) for one in found)
    assert {limit.file for one in found for limit in one.limits} <= set(texts)
    assert "Effective limit per library, tiny-gpt2" in texts
    assert "no truncation in tokenizer.json" in texts


@pytest.mark.parametrize("command", ["evaluate", "inspect"])
def test_command_writes_a_report_with_its_command_line(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)
    resize("tiny-gpt2", 256, output="alice/longer")
    data = list[object]()
    shown = f"ctxextend {command} longer --report=page.html"
    if command == "evaluate":
        data = ["--data", Path("book.txt").absolute(), "--measure", "position"]
        shown = "ctxextend evaluate longer --data book.txt --measure position --report=page.html"
    arguments = [command, Path("alice/longer").absolute(), *data, "--report=alice/page.html"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ctxextend", *map(str, arguments)])
    assert invoke(*arguments).exit_code == 0
    page = Path("alice/page.html").read_text()
    assert f"<code>{shown}</code>" in page
    assert "alice" not in page


@pytest.mark.parametrize(("mean", "error"), EXTREMES)
def test_report_and_figure_of_extreme_numbers(
    mean: float, error: float | None, tmp_path: Path
) -> None:
    found = without_small_plots(comparison(("linear", "copy", "last")))
    found = with_extremes(found, mean, error)
    found = replace(found, base=Estimate(mean, error, 0, 9), source=HOSTILE)
    page = page_of(found, tmp_path)
    PageParser(page)
    for plot in plots(page):
        values = " ".join(value for element in plot.iter() for value in element.attrib.values())
        assert not re.search(r"\b(nan|inf)\b", values)
    write_figure(tmp_path / "figure.svg", lambda: comparison_figure(found))
