"""What an evaluation says, in a few sentences: which model is best, and if it beats its base."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ctxextend.errors import counted, joined
from ctxextend.lab.effective_length import effective_text
from ctxextend.lab.numbers import difference_text, percent_text, score_text
from ctxextend.lab.scores import NATS, ONE_PASS, Difference, Score, select
from ctxextend.lab.statistics import MIN_SAMPLES
from ctxextend.tables.method_facts import SWITCH

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation

MAX_NAMED = 2  # models that are worse than the best one and are listed with their differences


def verdict(evaluation: "Evaluation") -> str:
    """Return which model is best, and whether it is better than its base, by how much."""
    ranking = evaluation.ranking
    measured = [score for score in ranking if math.isfinite(score.mean)]
    if not ranking:
        return "Nothing was measured."
    if not measured:
        name = quantity(ranking[0])
        return f"No model has a finite {name} at {evaluation.length:,} tokens."
    best = measured[0]
    sentences = list[str]()
    if len(measured) > 1:
        sentences.append(_ranked(evaluation, measured))
    for reference in evaluation.main_references:
        sentences.append(_against_base(best, reference))
    if len(measured) == 1 and not sentences and best.measure != "effective":
        sentences.append(
            f"{best.model}: {quantity(best)} {score_text(best)} at {evaluation.length:,} tokens."
        )
    effect = evaluation.of_context(best.model)
    if effect is not None:
        sentences.append(_of_context(effect))
    of_best = [*select(evaluation.scores, model=best.model, measure="effective")]
    if len(measured) == 1 and of_best:
        sentences.append(effective_text(of_best))
    sentences += _doubts(evaluation)
    return " ".join(sentences)


def quantity(score: Score) -> str:
    """Return what a score is, as people say it."""
    if score.unit == NATS:
        return "perplexity"
    return "share of answers found" if score.measure == "effective" else score.name


def _ranked(evaluation: "Evaluation", measured: Sequence[Score]) -> str:
    best, *others = measured
    tied = list[str]()
    worse = list[Difference]()
    for score in others:
        difference = best.minus(score)
        if difference.outcome:
            worse.append(difference)
        else:
            tied.append(score.model)
    clauses = [
        f"{best.model} is best at {evaluation.length:,} tokens: {quantity(best)} {score_text(best)}"
    ]
    if tied:
        verb = "are" if len(tied) > 1 else "is"
        clauses.append(f"{joined(tied)} {verb} tied with it")
    if len(worse) > MAX_NAMED:
        clauses.append(f"better than the other {len(worse)} by {_amount(worse[0])} or more")
    elif worse:
        amounts = [f"{one.other.model} by {_amount(one)}" for one in worse]
        clauses.append(f"better than {joined(amounts)}")
    return f"{'; '.join(clauses)}."


def _against_base(score: Score, reference: Score) -> str:
    """Return whether a model is better than its base, and by how much."""
    difference = score.minus(reference)
    change = f"{quantity(difference.score)} {difference_text(difference)}"
    other = reference.label
    if reference.unit == NATS:
        preposition = "at" if reference.reading == ONE_PASS else "of"
        other = f"{other} {preposition} {reference.length:,} tokens"
    if not math.isfinite(difference.change.mean):
        return f"{score.model} cannot be compared with {other}: a loss is not finite."
    if difference.outcome is None:
        return f"{score.model} against {other}: {change}, from one text, so it may be chance."
    if difference.outcome == 0:
        if score.samples < MIN_SAMPLES:
            change += f"; {counted(score.samples, 'text')} are too few"
        return f"{score.model} and {other} are tied, the difference may be chance: {change}."
    outcome = "better" if difference.outcome > 0 else "worse"
    return f"{score.model} is {outcome} than {other}: {change}."


def _of_context(difference: Difference) -> str:
    longest = difference.score.length
    other = difference.other.length
    change = f"{quantity(difference.score)} {difference_text(difference)}"
    if not math.isfinite(difference.change.mean):
        return f"What a context of {longest:,} tokens changes is unknown: a loss is not finite."
    effect = {
        1: "A longer context helps it",
        -1: "A longer context hurts it",
        0: "A longer context changes nothing beyond chance",
        None: "A longer context, from one text",
    }[difference.outcome]
    return f"{effect}: {change} at {longest:,} tokens against {other:,}."


def _amount(difference: Difference) -> str:
    percent, _, _ = difference.percent
    return percent_text(difference, abs(percent), math.nan, math.nan)


def _doubts(evaluation: "Evaluation") -> Iterator[str]:
    best = evaluation.ranking[0]
    if len(evaluation.ranking) == 1:
        return
    if evaluation.has_little_text:
        count = counted(best.samples, "sample")
        verb = "is" if best.samples == 1 else "are"
        sentence = f"{count} of text {verb} too little to choose by"
        if evaluation.auto:
            sentence += f"; auto takes {evaluation.auto}"
        yield f"{sentence}."
    elif evaluation.recommended != best.model:
        reason = "auto takes it"
        if best.model.partition(":")[0] == SWITCH:
            reason = f"scores of long inputs do not say what {best.model} is for"
        yield f"Use {evaluation.recommended}: {reason}."
