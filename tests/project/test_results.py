"""Scores that pages state are those of `benchmarks/results`."""

import re

import pytest

from tests.helpers.repository import ROOT
from tests.project.test_docs import CARDS, PAGES

# Scores with their interval, and those of search: nDCG@10, MRR and recall.
SCORE = re.compile(r"\d[\d,]*(?:\.\d+)? (?:± \d+(?:\.\d+)?|\([\d,.]+ to [\d,.]+\))|\b0\.\d{3}\b")
STATED = (
    "README.md",
    "results.md",
    "train.md",
    "convert.md",
    "guides/sentence-transformers.md",
    *CARDS,
)


@pytest.mark.parametrize("name", STATED)
def test_page_states_scores_that_were_measured(name: str) -> None:
    results = sorted((ROOT / "benchmarks" / "results").iterdir())
    measured = "\n".join(path.read_text("utf-8") for path in results)
    scores = SCORE.findall(PAGES[name].read_text("utf-8"))
    assert scores
    assert [score for score in scores if score not in measured] == []
