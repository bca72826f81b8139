"""Golden screens of evaluations.

`python -m tests.cli.test_screens` rewrites all screens.
"""

import pytest

from ctxextend.cli.console import STYLES
from tests.helpers.evaluations import EVALUATIONS, EXTREMES, extreme
from tests.helpers.result_screens import NAMES, SCREENS, page_of, screen, screen_of

LINES = 25  # of a terminal


@pytest.mark.parametrize("name", NAMES)
def test_result_screen_matches_the_golden_file(name: str) -> None:
    text = screen(name)
    assert text == (SCREENS / f"{name}.txt").read_text(encoding="utf-8")
    assert text.isascii()


@pytest.mark.parametrize("name", EVALUATIONS)
def test_result_screen_fits_a_terminal_and_uses_known_styles(name: str) -> None:
    lines = page_of(EVALUATIONS[name]).lines
    assert len(lines) <= LINES
    for line in lines:
        assert {style for _, style in line} <= set(STYLES)
        assert sum(len(text) for text, _ in line) <= 80


@pytest.mark.parametrize("mean", EXTREMES)
def test_result_screen_prints_no_nan(mean: float) -> None:
    assert "nan" not in screen_of(extreme(mean), 40)
