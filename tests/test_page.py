import hashlib
import math
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ctxextend.comparison.reports import Comparison, Outcome, Row
from ctxextend.errors import OutputError
from ctxextend.evaluation.evaluation_result import MODEL, Estimate, LossEstimate
from ctxextend.report.axes import doublings, places, positions, round_numbers, top
from ctxextend.report.charts import line_class
from ctxextend.report.document import check_page, write_page
from ctxextend.report.markup import Markup, element
from ctxextend.report.page_figure import _figure, plot_comparison
from ctxextend.report.words import verdict
from tests.comparisons import METHODS, comparison, encoders

HOSTILE = "--></title><script>alert(1)</script>\"'&\x1b[31m\x00\n\u202e\ud800"
VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page; fails where an element is not closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


def page_of(found: Comparison, folder: Path) -> str:
    write_page(found, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def pictures(page: str) -> Iterator[ElementTree.Element]:
    """Every outermost SVG, read as XML."""
    depth = start = 0
    for tag in re.finditer(r"<(/?)svg\b", page):
        start = tag.start() if not depth else start
        depth += -1 if tag[1] else 1
        if not depth:
            yield ElementTree.fromstring(page[start : tag.end() + 1])


def cells(page: str) -> list[list[str]]:
    """What stands in the ranking's rows."""
    (table,) = re.findall(r'<table class="ranking">.*?</table>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]


def changed(found: Comparison, outcome: Outcome) -> Comparison:
    """The comparison with another outcome in its last row."""
    last = replace(found.rows[-1], untrained=outcome)
    return replace(found, rows=(*found.rows[:-1], last))


EMPTY = replace(comparison(()), norms=(), original=None, warnings=(), notes=(), left_out={})
ODD = [math.nan, math.inf, -math.inf, 0.0, 1e38]
SHOWN = {
    "plain": comparison(),
    "trained": comparison(steps=200),
    "encoder": encoders(),
    "one": comparison(("linear",)),
    "empty": EMPTY,
}


@pytest.mark.parametrize("name", SHOWN)
def test_write_page_is_well_formed_html(name: str, tmp_path: Path) -> None:
    page = page_of(SHOWN[name], tmp_path)
    found = read(page).found
    assert page.startswith("<!DOCTYPE html>\n")
    assert [tag for tag, _ in found[:3]] == ["html", "head", "meta"]
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", SHOWN)
def test_write_page_loads_nothing(name: str, tmp_path: Path) -> None:
    page = page_of(SHOWN[name], tmp_path)
    assert not re.search(r"https?:|//\w|@import|url\(|\bsrc=|\bhref=", page)
    (policy,) = (seen["content"] for tag, seen in read(page).found if seen.get("http-equiv"))
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in str(policy)


def test_write_page_holds_every_number_of_the_ranking(tmp_path: Path) -> None:
    head, *rows, original = cells(page_of(comparison(), tmp_path))
    assert [name.strip() for name in head] == [
        *("#", "method", "perplexity", "loss", "behind the best", "against the original", "short texts", "learned rows")
    ]
    assert [row[1] for row in rows] == list(METHODS)
    assert rows[0] == [
        "1",
        "bands",
        "19.75 ± 0.87",
        "2.983 ± 0.044",
        "best",
        "-0.185 ± 0.012",
        "+0.0300 ± 0.0080",
        "moved",
    ]
    assert rows[1][4] == "+0.052 ± 0.069 level"
    assert rows[5] == ["6", "copy", "28.7 ± 1.3", "3.356 ± 0.044", "+0.373 ± 0.030", "+0.187 ± 0.012", "0", "kept"]
    assert original[1:4] == ["the original, in pieces of 128", "23.77 ± 1.00", "3.169 ± 0.042"]


def test_write_page_holds_both_stages_of_a_training(tmp_path: Path) -> None:
    page = page_of(comparison(steps=200), tmp_path)
    head, first, second, *_ = cells(page)
    assert first[head.index("perplexity")] == "20.54 ± 0.90"
    assert first[head.index("untrained")] == "19.75 ± 0.87 best"
    assert second[head.index("untrained")] == "20.80 ± 0.92 level"
    assert "200 steps of the position table, by sequences over 512 positions" in page


def test_write_page_shows_what_encoders_find(tmp_path: Path) -> None:
    page = page_of(encoders(), tmp_path)
    head, first, *_ = cells(page)
    assert head[2:5] == ["reciprocal rank", "recall@1, %", "behind the best"]
    assert first[2:5] == ["0.620 ± 0.062", "52.0 ± 7.1", "best"]
    assert "perplexity" not in page
    assert "Loss of" not in page
    assert "original, chunks" in page


def test_write_page_has_every_loss_in_a_table(tmp_path: Path) -> None:
    found = comparison()
    words = read(page_of(found, tmp_path)).words
    for row in found.rows:
        evaluation = row.final.evaluation
        assert evaluation.positions is not None
        assert evaluation.contexts is not None
        losses = [bucket.losses[MODEL] for bucket in evaluation.positions.buckets]
        for loss in (*losses, *(point.loss for point in evaluation.contexts.points)):
            assert f"{loss.mean:.3f} ± 0.042" in words


def test_write_page_has_every_recipe_and_note(tmp_path: Path) -> None:
    found = comparison()
    page = page_of(replace(found, complete=False), tmp_path)
    words = " ".join(read(page).words)
    for said in (*(row.recipe for row in found.rows), *found.notes, *found.warnings, *found.left_out.values()):
        assert said in words
    assert "Incomplete" in words
    assert "Incomplete" not in page_of(found, tmp_path)


@pytest.mark.parametrize("name", SHOWN)
def test_write_page_says_every_picture_in_words(name: str, tmp_path: Path) -> None:
    page = page_of(SHOWN[name], tmp_path)
    shown = [picture for picture in pictures(page) if picture.get("aria-hidden") != "true"]
    for picture in shown:
        title, text = (picture.findtext(tag) for tag in ("title", "desc"))
        assert title
        assert text
        assert re.search(r"\d", text), "no figures"
        assert picture.get("role") == "img"
        assert picture.get("viewBox")
        ids = str(picture.get("aria-labelledby")).split()
        assert ids == [element.get("id") for element in picture[:2]]
    assert page.count('class="numbers"') == page.count('<section class="panel')
    assert len(shown) == {"plain": 30, "trained": 30, "encoder": 29, "one": 4, "empty": 0}[name]


def test_write_page_draws_each_method_alike_in_all_pictures(tmp_path: Path) -> None:
    page = page_of(comparison(), tmp_path)
    for number in range(len(METHODS)):
        groups = re.findall(rf'<g class="series ([^"]*)" data-series="{number}">', page)
        assert len(groups) == 5
        assert {" ".join(group.split()[:2]) for group in groups} == {line_class(number)}


def test_write_page_says_where_pictures_cut_values_off(tmp_path: Path) -> None:
    assert "cut off" not in page_of(comparison(("linear", "random")), tmp_path)
    found = comparison(("linear", "copy", "mirror", "last"))
    assert "cut off" not in page_of(found, tmp_path)
    hopeless = replace(found.rows[-1].final, behind=Estimate(40.0, 0.1, 99))
    page = page_of(changed(found, hopeless), tmp_path)
    assert page.count("cut off") == 1
    assert "last 40.00 ± 0.20" in page


def test_line_class_tells_sixteen_methods_apart() -> None:
    assert len({line_class(number) for number in range(18)}) == 18


@pytest.mark.parametrize("place", ["source", "family", "table", "kind", "trainable", "precision"])
def test_write_page_escapes_the_comparison(place: str, tmp_path: Path) -> None:
    hostile: dict[str, Any] = {place: HOSTILE}
    check_harmless(page_of(replace(comparison(("copy", "last"), steps=3), **hostile), tmp_path))


def test_write_page_escapes_methods_recipes_and_notes(tmp_path: Path) -> None:
    found = comparison(("copy", "last"))
    rows = tuple(replace(row, method=f"`{HOSTILE}", recipe=HOSTILE) for row in found.rows)
    hostile = replace(found, rows=rows, notes=(HOSTILE,), warnings=(HOSTILE,), left_out={HOSTILE: HOSTILE})
    page = page_of(hostile, tmp_path)
    check_harmless(page)
    assert page.count("&lt;script&gt;") > 20


def check_harmless(page: str) -> None:
    found = read(page)
    assert [tag for tag, _ in found.found if tag in ("script", "title")].count("script") == 1
    assert "\x1b" not in page
    assert "\0" not in page
    assert "\u202e" not in page
    assert not [key for _, attributes in found.found for key in attributes if key.startswith("on")]
    assert list(pictures(page))


def test_element_escapes_text_and_attributes_but_not_markup() -> None:
    assert element("p", "<b>", Markup("<b></b>"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<b></b></p>'
    assert element("meta", charset="utf-8", name=None) == '<meta charset="utf-8">'


def test_write_page_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    write_page(comparison(steps=200), tmp_path / "here.html")
    code = (
        "from pathlib import Path\n"
        "from ctxextend.report.document import write_page\n"
        "from tests.comparisons import comparison\n"
        f"write_page(comparison(steps=200), Path({str(tmp_path / 'there.HTM')!r}))\n"
        "import sys; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    folder = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert (tmp_path / "here.html").read_bytes() == (tmp_path / "there.HTM").read_bytes()


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("error", [None, math.nan, math.inf, 0.0])
def test_write_page_of_odd_figures(value: float, error: float | None, tmp_path: Path) -> None:
    found = changed(comparison(("linear", "copy", "last")), odd_outcome(comparison().rows[-1], value, error))
    page = page_of(replace(found, original=Estimate(value, error, 0)), tmp_path)
    read(page)
    for picture in pictures(page):
        places = " ".join(value for mark in picture.iter() for value in mark.attrib.values())
        assert not re.search(r"\b(nan|inf)\b", places)


def odd_outcome(row: Row, value: float, error: float | None) -> Outcome:
    odd, read_losses = LossEstimate(value, error, 0), row.final.evaluation
    assert read_losses.positions is not None
    assert read_losses.contexts is not None
    buckets = tuple(replace(bucket, losses={MODEL: odd}) for bucket in read_losses.positions.buckets)
    points = tuple(replace(point, loss=odd, original=odd) for point in read_losses.contexts.points)
    evaluation = replace(
        read_losses,
        positions=replace(read_losses.positions, buckets=buckets, changes={}),
        contexts=replace(read_losses.contexts, points=points),
    )
    return Outcome(odd, odd, odd, evaluation)


def test_write_page_of_parts_that_hold_nothing(tmp_path: Path) -> None:
    found = comparison(("linear", "copy"))
    full = found.rows[-1].final.evaluation
    assert full.positions is not None
    assert full.contexts is not None
    assert full.passkey is not None
    empty = replace(
        full,
        positions=replace(full.positions, buckets=(), losses={}, changes={}),
        contexts=replace(full.contexts, points=()),
        passkey=replace(full.passkey, lengths=(), depths=(), found=()),
    )
    nothing = replace(full, positions=None, contexts=None, passkey=None)
    for evaluation in (empty, nothing):
        outcome = Outcome(Estimate(3.0, None, 1), None, None, evaluation)
        page = page_of(changed(found, outcome), tmp_path)
        read(page)
        rows = tuple(replace(row, untrained=outcome, norms=()) for row in found.rows)
        page = page_of(replace(found, rows=rows, norms=()), tmp_path)
        assert "passkey-" not in page
        assert "by position" not in page


def test_write_page_leaves_out_rows_that_were_not_measured(tmp_path: Path) -> None:
    found = comparison(("linear", "copy"))
    full = found.rows[0].final.evaluation
    assert full.passkey is not None
    shares: tuple[tuple[float | None, ...], ...] = ((None,) * 5, *full.passkey.found[1:])
    outcome = replace(found.rows[0].final, evaluation=replace(full, passkey=replace(full.passkey, found=shares)))
    page = page_of(replace(found, rows=(replace(found.rows[0], untrained=outcome), found.rows[1])), tmp_path)
    assert page.count('class="empty"') == 5
    assert "Over all depths: 95 % of texts of 128 tokens" in page


def test_write_page_thins_long_tables(tmp_path: Path) -> None:
    norms = [1.0] * 40_000
    norms[20_003], norms[7] = 9.5, math.nan
    found = comparison(("copy",))
    row = replace(found.rows[0], norms=tuple(norms))
    page = page_of(replace(found, rows=(row,), max_len_after=40_000), tmp_path)
    assert len(page) < 150_000
    assert "from 1 to 9.5" in page
    assert "20003.5" not in page


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (comparison(), "`bands` is the best of 13 methods at 512 tokens, with a perplexity of 19.75 ± 0.87"),
        (comparison(), "`stretch --keep-first 20` is level with it"),
        (comparison(), "has 23.77 ± 1.00, so that `bands` is better by 0.185 ± 0.012 nats a token."),
        (comparison(("copy", "last")), "no other is within two standard errors of it"),
        (comparison(("copy",)), "`copy` is worse by 0.187 ± 0.012 nats a token."),
        (comparison(steps=1), "After 1 step of training the position table, `bands`"),
        (encoders(), "with a mean reciprocal rank of 0.620 ± 0.062"),
        (encoders(), "in chunks of 128 tokens, has 0.522 ± 0.063."),
        (replace(comparison(("copy",)), original=None), "`copy` has a perplexity of 28.7 ± 1.3 at 512 tokens."),
        (EMPTY, "No method was measured."),
        (
            changed(comparison(("random",)), odd_outcome(comparison().rows[0], math.nan, None)),
            "No method has a finite loss at 512 tokens.",
        ),
    ],
)
def test_verdict(found: Comparison, words: str) -> None:
    assert words in verdict(found)


@pytest.mark.parametrize(
    ("name", "words"), [("page.txt", "end in"), ("folder.html", "is a folder"), ("none/page.html", "no folder")]
)
def test_check_page_refuses_before_any_work(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OutputError, match=words) as caught:
        check_page(tmp_path / name)
    assert caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html"]


def test_check_page_lets_pass_what_can_be_written(tmp_path: Path) -> None:
    for name in ("page.html", "page.HTM"):
        check_page(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_write_page_refuses_other_endings(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="pages"):
        write_page(EMPTY, tmp_path / "page.pdf")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (2.8, 4.5, (2.5, 3.0, 3.5, 4.0, 4.5)),
        (0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (-0.02, 0.1, (-0.02, 0.0, 0.02, 0.04, 0.06, 0.08, 0.1)),
        (3.0, 3.0, (2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6)),
    ],
)
def test_round_numbers_begin_and_end_at_ticks(low: float, high: float, ticks: tuple[float, ...]) -> None:
    axis = round_numbers("", low, high)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.share(axis.ticks[0]), axis.share(axis.ticks[-1])) == (0, 1)


def test_axes_of_lengths_and_names() -> None:
    assert positions("", 512).ticks == tuple(range(0, 513, 64))
    log = doublings("", (32, 64, 128))
    assert log.share(64) == pytest.approx(0.5)
    assert log.share(128) - log.share(64) == pytest.approx(log.share(64) - log.share(32))
    assert [places("", ["a", "b"]).share(place) for place in places("", ["a", "b"]).ticks] == [0.25, 0.75]


def test_top_cuts_what_is_hopeless_alone() -> None:
    assert top([1.0, 2.0, 3.5], [1.0, 2.0]) == (1.0, 3.5, False)
    assert top([1.0, 2.0, 9.0], [1.0, 2.0]) == (1.0, 4.0, True)
    assert top([math.nan, math.inf], []) == (0.0, 0.0, False)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot_comparison_writes_the_same_again(suffix: str, head: bytes, tmp_path: Path) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix}"
    plot_comparison(comparison(), one)
    plot_comparison(comparison(), other)
    assert one.read_bytes().startswith(head)
    assert one.read_bytes() == other.read_bytes()


def test_plot_comparison_has_a_panel_for_each_part() -> None:
    axes: list[Any] = _figure(comparison()).axes
    ranking, by_position, by_context = axes
    assert [label.get_text() for label in ranking.get_yticklabels()] == list(METHODS)
    assert [bar.get_width() for bar in ranking.patches][1] == pytest.approx(0.05175)
    assert len(by_position.lines) == len(by_context.lines) == len(METHODS) + 2
    assert [axes.get_title() for axes in _figure(encoders()).axes] == ["Behind the best", "Documents found by queries"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_plot_comparison_of_odd_figures(value: float, tmp_path: Path) -> None:
    found = changed(comparison(("linear", "copy")), odd_outcome(comparison().rows[-1], value, math.nan))
    plot_comparison(replace(found, source=HOSTILE), tmp_path / "figure.svg")
    plot_comparison(EMPTY, tmp_path / "figure.svg")
