"""The screens of comparisons."""

from dataclasses import replace

import pytest

from ctxextend.cli.compare import add_comparison
from ctxextend.cli.output import STYLES, styled
from ctxextend.cli.tables import Page
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.numbers import NumberFormat
from tests.comparisons import comparison, encoders

FEW = ("bands", "stretch --keep-first 20", "copy")
COMPARISONS = {
    "untrained": comparison(),
    "trained": comparison(FEW, steps=100),
    "encoders": encoders(),
    "incomplete": replace(comparison(FEW), complete=False),
    "nothing yet": replace(comparison(FEW), rows=(), original=None, complete=False),
}


def page_of(found: Comparison, width: int = 80, *, unicode: bool = True) -> Page:
    add_comparison(page := Page(width, unicode=unicode), found)
    return page


def screen_of(found: Comparison, width: int = 80, *, unicode: bool = True) -> str:
    return "".join(styled(line, colour=False) + "\n" for line in page_of(found, width, unicode=unicode).lines)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("found", COMPARISONS.values(), ids=COMPARISONS)
def test_comparison_screen_keeps_to_its_width_characters_and_styles(found: Comparison, width: int) -> None:
    shown = screen_of(found, width, unicode=False)
    assert shown.isascii()
    # A method with its flags stays whole beside one figure.
    assert max(map(len, shown.splitlines())) <= max(width, len(" 1 stretch --keep-first 20  +0.0000 +- 0.0000") + 8)
    assert {style for line in page_of(found, width).lines for _, style in line} <= set(STYLES)


def test_comparison_screen_ranks_and_marks_what_is_level_and_what_short_texts_pay() -> None:
    lines = [line.split() for line in screen_of(comparison(FEW), 100).splitlines()]
    rows = [line for line in lines if line[:1] and line[0].isdigit()]
    assert [row[:2] for row in rows] == [["1", "bands"], ["2", "stretch"], ["3", "copy"]]
    assert " ".join(rows[0]).endswith("the best +0.0300 ± 0.0040")
    assert "level +" in " ".join(rows[1])
    assert "level" not in rows[2]
    assert " ".join(rows[2]).endswith("as before")


def test_comparison_screen_says_what_the_original_gives_and_what_level_means() -> None:
    found = comparison(FEW)
    shown = " ".join(screen_of(found).split())
    assert found.original is not None
    given = NumberFormat(unicode=True).perplexity(found.original)
    assert f"The original in windows of 128 tokens that overlap by half: perplexity {given}." in shown
    assert "Level: behind the best by no more than two standard errors of the difference, paired by window." in shown
    assert "Left out: mean. it makes no more rows than it has." in shown
    assert "Level" not in screen_of(comparison(("bands",)))


def test_comparison_screen_of_a_training_shows_both_stages() -> None:
    shown = screen_of(COMPARISONS["trained"])
    assert "trained     the position table, 100 steps, over 512 positions" in shown
    header = next(line for line in shown.splitlines() if "method" in line and "perplexity" in line)
    assert header.split("  ")[-1].strip() == "short texts, nats" or "untrained" in shown
    unfinished = comparison(FEW, steps=100)
    rows = (*unfinished.rows[:1], *(replace(row, trained=None) for row in unfinished.rows[1:]))
    waiting = next(line for line in screen_of(replace(unfinished, rows=rows)).splitlines() if " copy " in line)
    assert waiting.split()[2:4] == ["-", "-"]


def test_comparison_screen_of_one_window_says_that_nothing_is_sure() -> None:
    found = comparison(("bands", "copy"))
    alone = replace(found.rows[1].untrained, behind=Estimate(0.5, None, 64))
    shown = screen_of(replace(found, rows=(found.rows[0], replace(found.rows[1], untrained=alone))))
    assert "One window was read" in shown
    assert "level" not in shown


def test_comparison_screen_shows_what_is_no_number() -> None:
    found = comparison(("copy",))
    broken = replace(found.rows[0].untrained, score=Estimate(float("nan"), None, 0), short=None)
    shown = screen_of(replace(found, rows=(replace(found.rows[0], untrained=broken),)))
    assert next(line for line in shown.splitlines() if " copy " in line).split()[2] == "-"
