"""What a comparison found, in words."""

import math
from collections.abc import Sequence

from ctxextend.comparison.reports import LOSS, Comparison, Outcome, Row
from ctxextend.evaluation.evaluation_result import SLIDING, Estimate
from ctxextend.report.numbers import Figures, side

__all__ = [
    "FIGURES",
    "against_original",
    "listed",
    "percent",
    "run_facts",
    "score_text",
    "signed",
    "trained_words",
    "twice",
    "verdict",
]

FIGURES = Figures(unicode=True)

# Standard errors behind every ±.
ERRORS = 2.0

KINDS = {
    "causal": "a language model, which predicts the next token",
    "masked": "a masked language model",
    "encoder": "an encoder without a head",
}
TRAINABLE = {"new": "the new rows", "positions": "the position table", "all": "everything"}


def verdict(comparison: Comparison) -> str:
    """Say in a sentence which method is the best, which are level with it, and how it stands to the original.

    Names of methods stand in backticks.
    """
    if not comparison.rows:
        return "No method was measured."
    best = comparison.rows[0]
    if not math.isfinite(best.final.score.mean):
        return f"No method has a finite loss at {comparison.max_len_after:,} tokens."
    what = "perplexity" if comparison.metric == LOSS else "mean reciprocal rank"
    score = score_text(best.final.score, comparison.metric)
    tokens, count = f"at {comparison.max_len_after:,} tokens", len(comparison.rows)
    first = f"{_name(best)} is the best of {count} methods {tokens}, with a {what} of {score}"
    parts = [first if count > 1 else f"{_name(best)} has a {what} of {score} {tokens}", _level(comparison)]
    sentence = "; ".join(part for part in (*parts, _original(comparison, best)) if part)
    return f"{trained_words(comparison)}{sentence}."


def trained_words(comparison: Comparison) -> str:
    """Return after what the ranking is, as the beginning of a sentence; nothing where nothing was trained."""
    if not comparison.steps:
        return ""
    what = TRAINABLE.get(comparison.trainable, comparison.trainable)
    return f"After {comparison.steps:,} step{'s' * (comparison.steps != 1)} of training {what}, "


def _name(row: Row) -> str:
    return "`{}`".format(row.method.replace("`", "'"))


def _level(comparison: Comparison) -> str:
    level = [_name(row) for row in comparison.rows[1:] if row.final.is_level]
    if not level:
        return "no other is within two standard errors of it" if len(comparison.rows) > 1 else ""
    return f"{listed(level)} {'is' if len(level) == 1 else 'are'} level with it, within two standard errors"


def _original(comparison: Comparison, best: Row) -> str:
    if comparison.original is None:
        return ""
    read = "the same text in pieces" if comparison.metric == LOSS else "the same documents in chunks"
    pieces = f"the original, which reads {read} of {comparison.max_len_before:,} tokens,"
    has = f"{pieces} has {score_text(comparison.original, comparison.metric)}"
    change = against_original(best.final)
    return has if change is None else f"{has}, so that {_name(best)} is {_compared(change)}"


def _compared(change: Estimate) -> str:
    amount = FIGURES.number(abs(change.mean), twice(change.error))
    verdicts = {
        -1: f"better by {amount} nats a token",
        0: f"not surely different ({signed(change)} nats a token)",
        1: f"worse by {amount} nats a token",
    }
    return verdicts[side(change.mean, change.error)]


def against_original(outcome: Outcome) -> Estimate | None:
    """Return the loss minus that of the original in pieces that overlap by half, paired; None where not measured."""
    positions = outcome.evaluation.positions
    return None if positions is None else positions.changes.get(SLIDING)


def score_text(score: Estimate, metric: str) -> str:
    """Return a perplexity or a reciprocal rank, with two standard errors."""
    if metric != LOSS:
        return FIGURES.number(score.mean, twice(score.error))
    return FIGURES.perplexity(Estimate(score.mean, twice(score.error), score.tokens))


def signed(difference: Estimate | None) -> str:
    """Return a difference with its sign and two standard errors; 0 for none at all, and nothing where not measured."""
    if difference is None:
        return ""
    if not difference.mean and not difference.error:
        return "0"
    return FIGURES.number(difference.mean, twice(difference.error), signed=True)


def twice(error: float | None) -> float | None:
    """Return two standard errors."""
    return None if error is None else ERRORS * error


def percent(share: float | None) -> str:
    """Return a share in percent; a dash for what was not measured."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def run_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Return what was measured and how, each with its label."""
    kind = KINDS.get(comparison.kind, comparison.kind)
    factor = comparison.max_len_after / comparison.max_len_before
    return [
        ("Model", f"{comparison.source} ({comparison.family}), {kind}"),
        ("Table", comparison.table),
        ("Length", f"{comparison.max_len_before:,} → {comparison.max_len_after:,} tokens ({factor:.3g}\u00d7)"),
        ("Text", f"{comparison.documents:,} document{'s' * (comparison.documents != 1)}, {comparison.tokens:,} tokens"),
        ("Training", _training(comparison)),
        ("Run", f"seed {comparison.seed}, in {comparison.precision}, {comparison.seconds:,.0f} s"),
    ]


def _training(comparison: Comparison) -> str:
    if not comparison.steps:
        return "none: every method as it is made"
    what = TRAINABLE.get(comparison.trainable, comparison.trainable)
    reach = "" if comparison.seq_len is None else f", by sequences over {comparison.seq_len:,} positions"
    return f"{comparison.steps:,} step{'s' * (comparison.steps != 1)} of {what}{reach}"
