"""Screens of evaluations, and their golden files."""

from ctxextend.cli.console import Page, rendered
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.lab.evaluation import Evaluation
from tests.helpers.evaluations import EVALUATIONS
from tests.helpers.repository import ROOT

SCREENS = ROOT / "tests" / "cli" / "screens"
NAMES = [f"evaluate-{name}" for name in EVALUATIONS]


def page_of(result: Evaluation, width: int = 80) -> Page:
    page = Page(width)
    add_evaluation(page, result)
    return page


def screen_of(result: Evaluation, width: int = 80) -> str:
    """Return the screen as printed to a pipe."""
    return rendered(page_of(result, width).lines) + "\n"


def screen(name: str) -> str:
    """Return a screen by its name in `NAMES`."""
    return screen_of(EVALUATIONS[name.removeprefix("evaluate-")])
