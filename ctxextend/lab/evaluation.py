"""The result of an evaluation: scores of models, which is best, and next to their base."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ctxextend.json_output import Result, not_in_json
from ctxextend.lab.effective_length import effective_length
from ctxextend.lab.scores import NATS, ONE_PASS, SEPARATE, START, Difference, Score, select
from ctxextend.lab.statistics import MIN_SAMPLES
from ctxextend.tables.method_facts import DEFAULT_METHOD, SWITCH


@dataclass(frozen=True)
class ModelFacts:
    """What a model is."""

    name: str  # without folders; of a method, its name with its settings
    source: str  # the reference that the user passed
    model_type: str
    kind: str  # ``causal``, ``masked`` or ``encoder``
    max_len: int  # context length in tokens
    parameters: int
    keeps_learned_rows: bool = False  # whether a method leaves short inputs as they are
    recipe: str = ""  # YAML that writes the checkpoint of a method; empty of a checkpoint


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result, shows=("names", "length", "tokens")):
    """What models score on one text, next to their base."""

    models: tuple[ModelFacts, ...]  # in the order in which they were measured
    base: ModelFacts | None  # None if it is unknown
    length: int  # tokens of a text that models read, at most
    scores: tuple[Score, ...]  # of the base, then of each model
    documents: int  # documents read
    tokens: int  # tokens of the windows cut from them, special tokens included
    limited_by: str  # what limited the text: ``tokens``, or its own end, ``text``; or empty
    seed: int  # for masks and needles
    precision: str  # dtype of the forward passes
    seconds: float  # without loading
    auto: str = ""  # of methods: the one that `auto` takes
    skipped: Mapping[str, str] = field(default_factory=dict)  # methods that do not apply, and why
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()

    json_properties: ClassVar = ("verdict", "order", "recommended", "differences")

    def label(self, score: Score) -> str:
        """Return what a score is of, in a table: the model, or how the base reads."""
        if self.base is None or score.model != self.base.name:
            return score.label
        return score.label.replace(score.model, "base", 1)

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return [model.name for model in self.models]

    @property
    def ranks_base(self) -> bool:
        """Whether the base is also one of the models."""
        base = self.base
        if base is None:
            return False
        return any(model.source == base.source and not model.recipe for model in self.models)

    @cached_property
    def ranking(self) -> list[Score]:
        """The score of each model by which they are ranked, best first."""
        whole = select(self.scores, reading=ONE_PASS, part=None)
        measured = [score for score in whole if score.model in self.names]
        if not measured:
            return []
        first = measured[0]
        ranked = select(measured, measure=first.measure, name=first.name, length=first.length)
        return sorted(ranked, key=_cost)

    @property
    def order(self) -> list[str]:
        """The names of the models, best first."""
        return [score.model for score in self.ranking]

    @property
    def ranked_scores(self) -> list[Score]:
        """All scores, those of the best model first, and of the base last."""
        order = self.order
        ranks = {name: rank for rank, name in enumerate(order)}
        return sorted(self.scores, key=lambda score: ranks.get(score.model, len(ranks)))

    @cached_property
    def references(self) -> list[Score]:
        """How the base scores in what ranks the models, for each way in which it reads."""
        if self.base is None or not self.ranking:
            return []
        best = self.ranking[0]
        references = list[Score]()
        for score in select(
            self.scores, model=self.base.name, measure=best.measure, name=best.name, part=None
        ):
            # Of contexts, the longest comes first. In one pass, the base may be ranked itself.
            is_other = score.reading != ONE_PASS or not (references or self.ranks_base)
            if is_other:
                references.append(score)
        return references

    @cached_property
    def main_references(self) -> list[Score]:
        """Those of how one would use the base: not cut off, and not in separate windows."""
        return [score for score in self.references if score.reading not in (SEPARATE, START)]

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """All differences that the verdict and the tables state, paired by document."""
        differences = list[Difference]()
        for score in self.ranking:
            if score is not self.ranking[0]:
                differences.append(score.minus(self.ranking[0]))
            differences += [score.minus(reference) for reference in self.references]
            differences += filter(None, (self.of_context(score.model), self.of_short(score.model)))
        return tuple(differences)

    def of_context(self, model: str) -> Difference | None:
        """Return what the longest context changes for a model, next to that of its base.

        Without a base, it is next to the shortest measured one; None if only one was measured.
        """
        contexts = [*select(self.scores, model=model, measure="context")]
        if len(contexts) < 2:
            return None
        reference = contexts[-1]
        for score in contexts[1:]:
            if self.base is not None and score.length == self.base.max_len:
                reference = score
        return contexts[0].minus(reference)

    def of_short(self, model: str) -> Difference | None:
        """Return how a model reads short inputs, next to its base; None if it was not measured."""
        if self.base is None:
            return None
        short = [*select(self.scores, measure="context", length=self.base.max_len)]
        own = [*select(short, model=model)]
        of_base = [*select(short, model=self.base.name)]
        return own[0].minus(of_base[0]) if own and of_base else None

    def effective_length(self, model: str | None = None) -> int | None:
        """Return the effective length of a model, by default the best one; None without one."""
        name = model or self.recommended
        return effective_length([*select(self.scores, model=name, measure="effective")])

    @property
    def has_little_text(self) -> bool:
        """Whether the text is too short to choose a model by."""
        return bool(self.ranking) and self.ranking[0].samples < MIN_SAMPLES

    @property
    def recommended(self) -> str:
        """The name of the model to use.

        Of methods, it is the one of `auto` if it is tied with the best, or if the text is too
        short to choose by; even if it was not measured.
        """
        if not self.ranking:
            return self.auto
        best = self.ranking[0]
        for score in self.ranking:
            is_auto = score.model in (self.auto, DEFAULT_METHOD)
            if is_auto and (self.has_little_text or not score.minus(best).outcome):
                return score.model
        if self.auto and self.has_little_text:
            return self.auto
        # `switch` is for short inputs, which scores of long ones do not rank: long inputs get from
        # it what the method of `auto` gives them, up to an attention factor. The user chooses it.
        methods = [name.partition(":")[0] for name in self.order]
        if self.auto in methods and methods[0] == SWITCH and len(methods) > 1:
            return self.order[1]
        return best.model

    @property
    def verdict(self) -> str:
        """A few sentences: which model is best, and how it compares with its base."""
        from ctxextend.lab.verdict import verdict

        return verdict(self)


def _cost(score: Score) -> float:
    """Return what to sort by, best first; NaN and infinity are last."""
    if not math.isfinite(score.mean):
        return math.inf
    return score.mean if score.unit == NATS else -score.mean
