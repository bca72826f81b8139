"""The screens of comparisons."""

from dataclasses import replace

import pytest

from ctxextend.cli.compare import add_comparison
from ctxextend.cli.output import STYLES, styled
from ctxextend.cli.tables import Page
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.evaluation.evaluation_result import Estimate
from tests.comparisons import comparison, encoders

FEW = comparison(("bands", "stretch --keep-first 20", "copy"))
TRAINED = comparison(("bands", "copy"), steps=100)
COMPARISONS = {
    "untrained": comparison(),
    "trained": TRAINED,
    "encoders": encoders(),
    "incomplete": replace(FEW, complete=False),
    "nothing yet": replace(FEW, rows=(), original=None, complete=False),
}


def screen_of(found: Comparison, width: int = 80, *, unicode: bool = True) -> str:
    add_comparison(page := Page(width, unicode=unicode), found)
    assert {style for line in page.lines for _, style in line} <= set(STYLES)
    return "".join(styled(line, colour=False) + "\n" for line in page.lines)


def line_of(method: str, found: Comparison) -> list[str]:
    """The words of a method's line, its place first."""
    return next(line.split() for line in screen_of(found, 100).splitlines() if line[3:].startswith(method))


def with_last(found: Comparison, row: Row) -> Comparison:
    return replace(found, rows=(*found.rows[:-1], row))


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("found", COMPARISONS.values(), ids=COMPARISONS)
def test_comparison_screen_keeps_to_its_width_and_characters(found: Comparison, width: int) -> None:
    shown = screen_of(found, width, unicode=False)
    assert shown.isascii()
    # A method with its flags stays whole beside one figure.
    assert max(map(len, shown.splitlines())) <= max(width, len(" 1 stretch --keep-first 20  +0.0000 +- 0.0000") + 8)


def test_comparison_screen_ranks_and_marks_what_is_level_and_what_short_texts_pay() -> None:
    bands, stretch, copy = (line_of(method, FEW) for method in ("bands", "stretch", "copy"))
    assert [bands[0], stretch[0], copy[0]] == ["1", "2", "3"]
    assert " ".join(bands).endswith("the best +0.0300 ± 0.0040")
    assert "level" in stretch
    assert "level" not in copy
    assert copy[-2:] == ["as", "before"]


def test_comparison_screen_says_what_the_original_gives_and_what_level_means() -> None:
    shown = " ".join(screen_of(FEW).split())
    assert "The original in windows of 128 tokens that overlap by half: perplexity 23.77 ± 0.50." in shown
    assert "Level: behind the best by no more than two standard errors of the difference, paired by window." in shown
    assert "Left out: mean. it makes no more rows than it has." in shown
    assert "Level" not in screen_of(comparison(("bands",)))


def test_comparison_screen_of_a_training_shows_both_stages() -> None:
    shown = screen_of(TRAINED, 100)
    assert "trained     the position table, 100 steps, over 512 positions" in shown
    assert "perplexity, trained" in shown
    assert "untrained" in shown
    unfinished = with_last(TRAINED, replace(TRAINED.rows[-1], trained=None))
    assert line_of("copy", unfinished)[2:4] == ["-", "-"]


def test_comparison_screen_of_one_window_says_that_nothing_is_sure() -> None:
    found = comparison(("bands", "copy"))
    alone = replace(found.rows[1].untrained, behind=Estimate(0.5, None, 64))
    shown = screen_of(with_last(found, replace(found.rows[1], untrained=alone)))
    assert "One window was read" in shown
    assert "level" not in shown


def test_comparison_screen_shows_what_is_no_number() -> None:
    broken = replace(FEW.rows[-1].untrained, score=Estimate(float("nan"), None, 0), short=None)
    assert line_of("copy", with_last(FEW, replace(FEW.rows[-1], untrained=broken)))[2] == "-"
