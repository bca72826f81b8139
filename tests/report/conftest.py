"""Titles of the measures that synthetic results have."""

import pytest

from ctxextend.report import figures
from tests.helpers.scored import TITLES


@pytest.fixture(autouse=True)
def _titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "measure_title", TITLES.__getitem__)
