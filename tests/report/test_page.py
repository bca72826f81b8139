"""The HTML page of a result: content, well-formedness, escaping and privacy."""

import platform
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ctxextend import inspect, resize
from ctxextend.report.page import write_report
from tests.helpers.evaluations import (
    EFFECTIVE,
    EXTREMES,
    METHODS,
    SEARCH,
    WITHOUT_BASE,
    WORSE,
    extreme,
)
from tests.helpers.trainings import invoke

HOSTILE = "_$x--></title><script>alert(1)</script>\"'&\x1b[31m\x00\n\u202e\ud800"
HOME = "/home/alice/secret"


def page_of(found: Any, folder: Path, command: str = "") -> str:
    write_report(found, folder / "page.html", command, "ctxextend train longer")
    return (folder / "page.html").read_text("utf-8")


def texts_of(found: Any, folder: Path, command: str = "") -> set[str]:
    tree = ElementTree.fromstring(page_of(found, folder, command))
    return {text.strip() for text in tree.itertext()}


def rows_of(found: Any, folder: Path) -> list[list[str]]:
    """Return the cells of all rows of tables."""
    tree = ElementTree.fromstring(page_of(found, folder))
    return [[cell.text or "" for cell in row] for row in tree.iter("tr")]


FOUND = {"scores": WORSE, "effective": EFFECTIVE, "tables": [inspect("tiny-gpt2")] * 2}


@pytest.mark.parametrize("name", FOUND)
def test_page_is_well_formed_html_and_loads_nothing(name: str, tmp_path: Path) -> None:
    page = page_of(FOUND[name], tmp_path)
    assert page.startswith("<!DOCTYPE html>\n")
    ElementTree.fromstring(page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(ids)

    own = re.sub(r'xlink:href="data:image/png;base64,[^"]*"|xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|@import|url\([^#]|\bsrc=|\bhref=\"[^#]|<script", own)
    assert "default-src 'none'" in page
    assert "<svg" in page


@pytest.mark.parametrize("mean", EXTREMES)
def test_page_of_extreme_numbers(mean: float, tmp_path: Path) -> None:
    ElementTree.fromstring(page_of(extreme(mean), tmp_path))


def test_page_of_an_evaluation_has_verdict_facts_and_notes(tmp_path: Path) -> None:
    model = replace(METHODS.models[0], recipe="method: bands\n")
    found = replace(METHODS, warnings=("Few windows.",), notes=("A note.",), models=(model,))
    skipped = "Skipped hierarchical: hierarchical covers at most 256 positions."
    facts = ("6,144 tokens of 7 documents", "short: gpt2, causal, 128 tokens")
    shown = {found.verdict, "Few windows.", "A note.", skipped, *facts, "method: bands"}
    assert shown <= texts_of(found, tmp_path)


def test_page_has_a_table_of_each_measure(tmp_path: Path) -> None:
    rows = rows_of(WORSE, tmp_path)
    base = "short in sliding windows"
    assert [base, "Loss by position", "loss", "45 (44 to 46)"] in rows
    assert ["", "64", "128", "256", "512"] in rows
    assert ["short", "49 (48 to 51)", "45 (44 to 46)", "-", "-"] in rows
    assert ["", "0 to 63", "64 to 127"] in [row[:3] for row in rows]
    difference = next(row for row in rows if row[1] == f"{base} at 128")
    assert (difference[0], difference[-1]) == ("long at 512", "worse")
    rows = rows_of(SEARCH, tmp_path)
    assert ["", "median tokens", "nDCG@10", "MRR", "recall@1"] in rows
    rows = rows_of(EFFECTIVE, tmp_path)
    assert ["long, needle, depth 20 to 40 %", *["100 (68 to 100)"] * 3, "25 (7 to 59)"] in rows


def test_page_escapes_all_values(tmp_path: Path) -> None:
    scores = [replace(score, model=HOSTILE) for score in WITHOUT_BASE.scores]
    model = replace(WITHOUT_BASE.models[0], name=HOSTILE, model_type=HOSTILE, kind=HOSTILE)
    hostile = replace(
        WITHOUT_BASE,
        scores=tuple(scores),
        models=(model,),
        notes=(HOSTILE,),
        warnings=(HOSTILE,),
        precision=HOSTILE,
        skipped={HOSTILE: HOSTILE},
    )
    page = page_of(hostile, tmp_path, HOSTILE)
    for element in ElementTree.fromstring(page).iter():
        assert element.tag != "script"
        assert not any(key.startswith("on") for key in element.attrib)
    assert not re.search("[\x1b\0\u202e]", page)
    assert page.count("&lt;script&gt;") > 15


@pytest.mark.slow
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
    model = replace(WORSE.models[0], source=source, recipe=f"source: {source}\n")
    scored = replace(WORSE, models=(model,), notes=(shared,), warnings=(warning,))
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
    versions = ["2023-11-14"]
    for name in ("ctxextend", "torch", "transformers", "numpy"):
        versions.append(f"{name} {version(name)}")
    versions.append(f"Python {platform.python_version()}")
    texts = texts_of(EFFECTIVE, tmp_path, command)
    assert {" · ".join(versions), command, "ctxextend train longer"} <= texts
    assert page_of(EFFECTIVE, tmp_path) == page_of(EFFECTIVE, tmp_path)


def test_page_of_tables_contains_limits_and_findings(tmp_path: Path) -> None:
    resize("tiny-gpt2", 512, "copy", output="longer")
    found = [inspect("tiny-gpt2"), inspect("longer")]
    texts = texts_of(found, tmp_path)
    for one in found:
        assert {*one.tables[0].findings(), f": {one.verdict}"} <= texts
        assert {limit.file for limit in one.limits} <= texts


def test_inspect_writes_a_page_with_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    resize("tiny-gpt2", 256, output="alice/longer")
    arguments = ["inspect", str(Path("alice/longer").absolute()), "--report=alice/page.html"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ctxextend", *arguments])
    assert invoke(*arguments).exit_code == 0
    page = Path("alice/page.html").read_text()
    assert "<code>ctxextend inspect longer --report=page.html</code>" in page
    assert "alice" not in page
