"""Screens of evaluations and comparisons, and their golden files."""

from ctxextend.cli.compare import add_comparison
from ctxextend.cli.console import Page, rendered
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.lab.evaluation_result import Evaluation
from tests.helpers.comparisons import COMPARISONS
from tests.helpers.evaluations import EVALUATIONS
from tests.helpers.repository import ROOT

SCREENS = ROOT / "tests" / "cli" / "screens"
RESULTS: dict[str, Evaluation | Comparison] = {**EVALUATIONS, **COMPARISONS}
NAMES = [f"{name}{kind}" for name in RESULTS for kind in ("", "-ascii")]


def page_of(result: Evaluation | Comparison, width: int = 80, *, unicode: bool = True) -> Page:
    page = Page(width, unicode=unicode)
    if isinstance(result, Evaluation):
        add_evaluation(page, result)
    else:
        add_comparison(page, result)
    return page


def screen_of(result: Evaluation | Comparison, width: int = 80, *, unicode: bool = True) -> str:
    """Return the screen as printed to a pipe."""
    lines = page_of(result, width, unicode=unicode).lines
    return rendered(lines) + "\n"


def screen(name: str) -> str:
    """Return a screen by its name in `NAMES`."""
    result = RESULTS[name.removesuffix("-ascii")]
    return screen_of(result, unicode=not name.endswith("-ascii"))
