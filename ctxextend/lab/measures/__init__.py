"""What is measured of models: one module for each measure, of its name.

A measure is a function from a model that reads, and texts, to scores::

    @measure("Accuracy of the next token", CAUSAL)
    def accuracy(reader: Reader, texts: Texts) -> Iterator[Score]:
        ...

It is called for the base, if there is one, then for each model; a model that is shorter than the
texts reads them in pieces. It raises DataError if the texts do not suffice, before it reads any.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ctxextend.settings import MEASURES

if TYPE_CHECKING:
    from ctxextend.lab.reader import Reader
    from ctxextend.lab.scores import Score
    from ctxextend.lab.texts import Texts

    Scoring = Callable[[Reader, Texts], Iterator[Score]]

# The first of those that were measured ranks models; others come last.
RANKING = ("search", "position", "retrieval", "context", "effective")


@dataclass(frozen=True)
class Measure:
    """A measure, and the kinds of models that it applies to."""

    name: str
    title: str  # of its table and figure
    kinds: tuple[str, ...]
    scores: "Scoring"


def measure(title: str, *kinds: str) -> "Callable[[Scoring], Measure]":
    """Let a function be a measure with its name, of these kinds of models."""

    def decorate(scores: "Scoring") -> Measure:
        return Measure(name=scores.__name__, title=title, kinds=kinds, scores=scores)

    return decorate


def all_measures() -> list[Measure]:
    """Return all measures, those that rank models first."""
    measures = list[Measure]()
    for name in sorted(MEASURES, key=lambda name: (*RANKING, name).index(name)):
        found: Measure = getattr(import_module(f"ctxextend.lab.measures.{name}"), name)
        measures.append(found)
    return measures
