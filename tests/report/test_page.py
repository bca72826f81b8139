"""The HTML page of a result: content, well-formedness, escaping and privacy."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctxextend import inspect, resize
from ctxextend.report.page import write_report
from tests.helpers.scored import (
    BASE,
    MODEL,
    TITLES,
    by_length,
    by_position,
    effective,
    evaluation,
    of_base,
    retrieval,
    score,
)
from tests.helpers.trainings import invoke

HOSTILE = "--></title><script>alert(1)</script>\"'&\x1b[31m\x00\n\u202e\ud800"
HOME = "/home/alice/secret"


class PageParser(HTMLParser):
    """Parse a page; fail if elements are not nested correctly."""

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
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(data.strip())


def page_of(found: Any, folder: Path, command: str = "") -> str:
    write_report(found, folder / "page.html", command, "ctxextend train longer")
    return (folder / "page.html").read_text("utf-8")


def table_of(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table under a heading, by row."""
    _, _, rest = page.partition(f"<h2>{title}</h2>")
    table, _, _ = rest.partition("</table>")
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


MODEL_LOSS = by_position()[-1]
BASE_LOSS = score(3.4, BASE, 0.28, reading="sliding", length=128)
ALL = evaluation(
    *of_base(),
    *by_position(),
    *by_length(),
    *effective(),
    *retrieval(),
    references=[BASE_LOSS],
    differences=[MODEL_LOSS.minus(BASE_LOSS)],
)


@pytest.mark.parametrize(("name", "plots"), [("evaluation", 5), ("tables", 5)])
def test_page_is_well_formed_html_and_loads_nothing(name: str, plots: int, tmp_path: Path) -> None:
    found = {"evaluation": ALL, "tables": [inspect("tiny-gpt2")] * 2}[name]
    page = page_of(found, tmp_path)
    tags = PageParser(page).tags
    assert page.startswith("<!DOCTYPE html>\n")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(ids)

    own = re.sub(r'xlink:href="data:image/png;base64,[^"]*"|xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|@import|url\([^#]|\bsrc=|\bhref=\"[^#]", own)
    (policy,) = (attributes["content"] for _, attributes in tags if attributes.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")
    names = [tag for tag, _ in tags]
    assert names.count("svg") == plots
    assert "script" not in names


def test_page_of_an_evaluation_has_verdict_tables_and_notes(tmp_path: Path) -> None:
    page = page_of(ALL, tmp_path)
    texts = PageParser(page).texts
    for text in (MODEL, "is best at 512 tokens.", "Few windows.", *ALL.notes, *TITLES.values()):
        if text != TITLES["search"]:
            assert text in texts
    assert "8,192 tokens of 16 documents" in texts
    ranking = table_of(page, "Ranking")
    assert ranking[1:] == [
        [MODEL, "position", "loss", "33.1 (29.9 to 36.7)"],
        [f"{BASE}, sliding windows of 128", "position", "loss", "30.0 (27.3 to 32.9)"],
    ]
    (difference,) = table_of(page, "Differences")[1:]
    assert difference[-2:] == ["+10.5 % (9.8 to 11.2)", "worse"]

    head, *rows = table_of(page, TITLES["position"])
    assert head == ["", "0 to 127", "128 to 255", "256 to 511", "all"]
    assert rows[0] == [MODEL, *["33.1 (29.9 to 36.7)"] * 4]
    assert rows[2][0] == f"{BASE}, separate windows of 128"
    head, *rows = table_of(page, TITLES["context"])
    assert head == ["", "128", "256", "512"]
    head, *rows = table_of(page, TITLES["effective"])
    assert rows[0] == [f"{MODEL}, needle", "100 (81 to 100)", "88 (64 to 97)", "56 (33 to 77)"]
    assert rows[2][0] == f"{MODEL}, needle, depth 50 to 100 %"
    head, *rows = table_of(page, TITLES["retrieval"])
    assert head == ["", "median tokens", "recall@1", "MRR", "nDCG@10"]
    assert rows[1][:3] == [f"{BASE}, first 128 tokens", "512", "42 (28 to 56)"]


def test_page_escapes_all_values(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    scores = [*by_position(name), *by_length(name)]
    hostile = evaluation(
        *scores,
        verdict=HOSTILE,
        notes=[HOSTILE],
        warnings=[HOSTILE],
        precision=HOSTILE,
        base=SimpleNamespace(name=HOSTILE, max_len=128),
        differences=[scores[0].minus(scores[0])],
    )
    page = page_of(hostile, tmp_path, HOSTILE)
    for tag, attributes in PageParser(page).tags:
        assert tag != "script"
        assert not any(key.startswith("on") for key in attributes)
    for character in ("\x1b", "\0", "\u202e"):
        assert character not in page
    assert page.count("&lt;script&gt;") > 15


@pytest.mark.parametrize(
    "source",
    [f"{HOME}/minilm", f"{HOME}/minilm/", f"{HOME}/a b/minilm", "../alice/minilm", "alice/minilm"],
)
def test_page_contains_no_folder_names(source: str, tmp_path: Path) -> None:
    Path("alice").mkdir()
    shared = (
        "minilm is /home/alice/secret/minilm/model.bin; ~/alice/x, ../alice/y, C:\\alice\\z, "
        "alice/b.txt; </s>, a/b, 1 / 2"
    )
    scores = [*by_position(source), *by_length(source), *effective()]
    texts = {"notes": [shared], "warnings": [f"In {source}: few windows."], "verdict": source}
    limit = replace(
        inspect("tiny-gpt2").limits[0],
        reason="too short",
        fix=f"ctxextend resize {source} --to 512",
    )
    inspections = [
        replace(inspect("tiny-gpt2"), source=path, limits=(limit,))
        for path in (source, f"{HOME}/x/minilm")
    ]
    for found in (evaluation(*scores, **texts), inspections):
        page = page_of(found, tmp_path, "ctxextend evaluate minilm")
        assert "alice" not in page
        assert "secret" not in page
        assert "minilm" in page
        assert ("&lt;/s&gt;, a/b, 1 / 2" in page) == (found is not inspections)
    assert "ctxextend resize minilm --to 512" in page
    assert "minilm (2)" in page  # two models of the same name


def test_page_contains_date_versions_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    command = "ctxextend evaluate gpt2-512 --data 'a b.txt'"
    page = page_of(ALL, tmp_path, command)
    libraries = [
        f"{name} {version(name)}" for name in ("ctxextend", "torch", "transformers", "numpy")
    ]
    python = ".".join(map(str, sys.version_info[:3]))
    texts = PageParser(page).texts
    assert " · ".join(["2023-11-14", *libraries, f"Python {python}"]) in texts
    assert command in "".join(texts)
    assert "ctxextend train longer" in texts
    assert page == page_of(ALL, tmp_path, command)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert "2023-11-14" not in page_of(ALL, tmp_path)


def test_page_of_tables_contains_limits_and_findings(tmp_path: Path) -> None:
    resize("tiny-gpt2", 512, "copy", output="longer")
    found = [inspect("tiny-gpt2"), inspect("longer")]
    texts = PageParser(page_of(found, tmp_path)).texts
    findings = [finding for one in found for finding in one.tables[0].findings()]
    assert len(findings) > 8
    assert set(findings) <= set(texts)
    assert all(f": {one.verdict}" in texts for one in found)
    assert {limit.file for one in found for limit in one.limits} <= set(texts)
    assert "Effective limit per library, tiny-gpt2" in texts
    assert "no truncation in tokenizer.json" in texts


def test_page_of_rotary_positions_has_no_plots(make_pico: Any, tmp_path: Path) -> None:
    page = page_of([inspect(make_pico("llama").folder)], tmp_path)
    assert "svg" not in [tag for tag, _ in PageParser(page).tags]
    assert "rope_theta" not in page
    assert len(table_of(page, "Limits of pico-llama")) > 1


def test_inspect_writes_a_page_with_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    resize("tiny-gpt2", 256, output="alice/longer")
    arguments = ["inspect", str(Path("alice/longer").absolute()), "--report=alice/page.html"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ctxextend", *arguments])
    assert invoke(*arguments).exit_code == 0
    page = Path("alice/page.html").read_text()
    assert "<code>ctxextend inspect longer --report=page.html</code>" in page
    assert "alice" not in page
