"""The HTML page of a result: content, well-formedness, escaping and privacy."""

import platform
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
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
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def page_of(found: Any, folder: Path, command: str = "") -> str:
    write_report(found, folder / "page.html", command, "ctxextend train longer")
    return (folder / "page.html").read_text("utf-8")


LOSS = by_position()[-1]
BASE_LOSS = score(3.4, BASE, 0.28, reading="sliding", length=128)
ALL = evaluation(
    *of_base(),
    *by_position(),
    *by_length(),
    *effective(),
    *retrieval(),
    references=[BASE_LOSS],
    differences=[LOSS.minus(BASE_LOSS)],
)


@pytest.mark.parametrize("name", ["evaluation", "tables"])
def test_page_is_well_formed_html_and_loads_nothing(name: str, tmp_path: Path) -> None:
    found = {"evaluation": ALL, "tables": [inspect("tiny-gpt2")] * 2}[name]
    page = page_of(found, tmp_path)
    tags = PageParser(page).tags
    assert page.startswith("<!DOCTYPE html>\n")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(ids)

    own = re.sub(r'xlink:href="data:image/png;base64,[^"]*"|xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|@import|url\([^#]|\bsrc=|\bhref=\"[^#]|<script", own)
    assert "default-src 'none'" in page
    assert page.count("<svg") == 5


def test_page_of_an_evaluation_has_verdict_tables_and_notes(tmp_path: Path) -> None:
    page = page_of(ALL, tmp_path)
    texts = PageParser(page).texts
    shown = {"is best at 512 tokens.", "Few windows.", "8,192 tokens of 16 documents"}
    assert {MODEL, *shown, *ALL.notes, TITLES["context"]} <= set(texts)
    rows = list[list[str]]()
    for row in re.findall("<tr>(.*?)</tr>", page):
        rows.append(re.findall("<t[dh].*?>(.*?)</t[dh]>", row))
    base = f"{BASE}, sliding windows of 128"
    number = "33.1 (29.9 to 36.7)"
    for expected in (
        [base, "position", "loss", "30.0 (27.3 to 32.9)"],
        [MODEL, base, "position", "loss", "+10.5 % (9.8 to 11.3)", "worse"],
        ["", "0 to 127", "128 to 255", "256 to 511", "all"],
        [MODEL, number, number, number, number],
        ["", "128", "256", "512"],
        [f"{MODEL}, needle", "100.0 (80.6 to 100.0)", "88 (64 to 97)", "56 (33 to 77)"],
        [f"{MODEL}, key, depth 50 to 100 %", "94 (72 to 99)", "50 (28 to 72)", "19 (7 to 43)"],
        ["", "median tokens", "recall@1", "MRR"],
        [f"{BASE}, first 128 tokens", "512", "42 (28 to 56)", "42 (28 to 56)"],
    ):
        assert expected in rows


def test_page_escapes_all_values(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    scores = [*by_position(name), *by_length(name)]
    hostile = evaluation(
        *scores,
        verdict=HOSTILE,
        notes=[HOSTILE],
        warnings=[HOSTILE],
        precision=HOSTILE,
        differences=[scores[0].minus(scores[0])],
    )
    page = page_of(hostile, tmp_path, HOSTILE)
    for tag, attributes in PageParser(page).tags:
        assert tag != "script"
        assert not any(key.startswith("on") for key in attributes)
    assert not re.search("[\x1b\0\u202e]", page)
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
    warning = f"In {source}: few windows."
    scored = evaluation(*by_length(source), notes=[shared], warnings=[warning], verdict=source)
    one = inspect("tiny-gpt2")
    fix = f"ctxextend resize {source} --to 512"
    limits = (replace(one.limits[0], reason="too short", fix=fix),)
    tables = [replace(one, source=path, limits=limits) for path in (source, f"{HOME}/x/minilm")]
    pages = [page_of(found, tmp_path, "ctxextend evaluate minilm") for found in (scored, tables)]
    for page in pages:
        assert not re.search("alice|secret", page)
    assert "&lt;/s&gt;, a/b, 1 / 2" in pages[0]
    assert "ctxextend resize minilm --to 512" in pages[1]
    assert "minilm (2)" in pages[1]  # two models of the same name


def test_page_contains_date_versions_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    command = "ctxextend evaluate gpt2-512 --data 'a b.txt'"
    found = evaluation(*by_length())
    page = page_of(found, tmp_path, command)
    libraries = ("ctxextend", "torch", "transformers", "numpy")
    versions = [f"{name} {version(name)}" for name in libraries]
    python = f"Python {platform.python_version()}"
    texts = PageParser(page).texts
    assert " · ".join(["2023-11-14", *versions, python]) in texts
    assert {command, "ctxextend train longer"} <= set(texts)
    assert page == page_of(found, tmp_path, command)


def test_page_of_tables_contains_limits_and_findings(tmp_path: Path) -> None:
    resize("tiny-gpt2", 512, "copy", output="longer")
    found = [inspect("tiny-gpt2"), inspect("longer")]
    texts = set(PageParser(page_of(found, tmp_path)).texts)
    for one in found:
        assert {*one.tables[0].findings(), f": {one.verdict}"} <= texts
        assert {limit.file for limit in one.limits} <= texts
    assert "Effective limit per library, tiny-gpt2" in texts
    assert "128, longer inputs are truncated" in texts


def test_inspect_writes_a_page_with_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    resize("tiny-gpt2", 256, output="alice/longer")
    arguments = ["inspect", str(Path("alice/longer").absolute()), "--report=alice/page.html"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ctxextend", *arguments])
    assert invoke(*arguments).exit_code == 0
    page = Path("alice/page.html").read_text()
    assert "<code>ctxextend inspect longer --report=page.html</code>" in page
    assert "alice" not in page
