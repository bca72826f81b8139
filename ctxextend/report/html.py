"""The report of a comparison: one HTML page that needs nothing but a browser."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxextend.comparison.comparison_result import LOSS, Comparison, Outcome
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Estimate
from ctxextend.report.comparison_panels import (
    NUMBERS,
    TRAINABLE,
    Plot,
    comparison_panels,
    lead_count,
    signed_text,
    trained_words,
)
from ctxextend.report.figures import COLOURS, DASHES, THEME, printable, render
from ctxextend.report.numbers import significant_sign
from ctxextend.report.saving import REPORT, check_file, save
from ctxextend.version import __version__

KINDS = {
    "causal": "a language model, which predicts the next token",
    "masked": "a masked language model",
    "encoder": "an encoder without a head",
}
# What matplotlib's SVG loses inside HTML: its size, its style (the page has its own), what no reader sees, and digits.
SVG_IN_HTML = (
    (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),
    (r' (width|height)="[\d.]+pt"| transform="rotate\(-0 [^"]*"| xmlns(:xlink)?="[^"]*"| version="1.1"', ""),
    (r" ?font-family: [^;]*;", ""),
    (r'<g id="[^"]*"', "<g"),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),
    (r"\s*\n\s*", "\n"),
)


def write_report(comparison: Comparison, path: Path) -> None:
    """Write a comparison as one HTML page; the same one gives the same bytes with the same matplotlib.

    The page needs no other file and asks no network: style, script and pictures are in it. It holds the ranking, losses
    by position and by context, norms and passkeys of each method, as far as they were measured, and the recipes.

    Args:
        comparison: What was found.
        path: The file, .html or .htm. What stands there is replaced once the page is made.

    Raises:
        OutputError: The ending is not that of a page, the extra `plot` is not installed, or the file cannot be written.
    """
    check_file(path, REPORT)
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("ctxextend.report", ""),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        comparison=comparison,
        verdict=verdict(comparison).split("`"),
        facts=_facts(comparison),
        columns=_columns(comparison),
        panels=comparison_panels(comparison),
        svg=_svg,
        line_class=_line_class,
        lead_count=lead_count(comparison),
        version=__version__,
    )
    save(path, page.encode())


def _shown(value: Any) -> Any:
    """Return a value of the template with question marks for what cannot be shown, lines kept; markup as it is."""
    return "\n".join(map(printable, value.split("\n"))) if type(value) is str else value


def _line_class(number: int) -> str:
    """Return the classes that give a method the colour and the dashes of its curves."""
    return f"c{number % len(COLOURS)} d{(number + number // len(COLOURS)) % len(DASHES)}"


def _svg(plot: Plot, key: str) -> Any:
    """Return a picture as SVG inside HTML: its text is text, and its colours are variables of the page's style.

    Args:
        plot: What is drawn.
        key: Stands before every id in it, since ids are those of the whole page.
    """
    from markupsafe import Markup
    from matplotlib.figure import Figure

    def make() -> Figure:
        figure = Figure(figsize=plot.size, layout="constrained", facecolor="none")
        axes = figure.subplots()
        plot.draw(axes)
        axes.set_title("")
        if plot.number is not None:
            axes.set(xlabel="", ylabel="")
        return figure

    text = render(make, ".svg", svg_fonttype="none").decode()
    text = text[text.index("<svg") :]
    for pattern, replacement in SVG_IN_HTML:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{key}-", text)
    for name, colour in THEME.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text)


# The ranking


@dataclass(frozen=True)
class Cell:
    """A cell: its text, a mark beside it, and the number it is sorted by; None stands last."""

    text: str
    value: float | None = None
    mark: str = ""

    @property
    def sort_key(self) -> str | None:
        """The number as the page's script reads it."""
        return None if self.value is None or not math.isfinite(self.value) else repr(float(self.value))


@dataclass(frozen=True)
class Column:
    """A column: its head, what that means, its cell of each method, and what the original has in it."""

    head: str
    meaning: str
    cells: Sequence[Cell]
    original: str = ""


def _columns(comparison: Comparison) -> list[Column]:
    """Return the columns that hold anything."""
    rows, before = comparison.rows, comparison.max_len_before
    finals = [row.final for row in rows]
    original = comparison.original
    own_score = NUMBERS.estimate(original) if original else ""
    scores = [Cell(NUMBERS.estimate(one.score), one.score.mean) for one in finals]
    score_text = NUMBERS.perplexity if comparison.metric == LOSS else NUMBERS.estimate
    if comparison.metric == LOSS:
        perplexities = [Cell(NUMBERS.perplexity(one.score), one.score.mean) for one in finals]
        own_perplexity = NUMBERS.perplexity(original) if original else ""
        meaning = "mean loss over all positions, in nats per token, ± 2 standard errors"
        columns = [
            Column("perplexity", "e to the power of the loss, ± 2 standard errors", perplexities, own_perplexity),
            Column("loss", meaning, scores, own_score),
        ]
    else:
        ways = [one.evaluation.retrieval.ways if one.evaluation.retrieval else {} for one in finals]
        recalls = [
            (found[MODEL].recall, found[MODEL].recall_error) if MODEL in found else (None, None) for found in ways
        ]
        percents = [Cell(NUMBERS.percent(*recall), recall[0]) for recall in recalls]
        meaning = "mean of 1 / rank of the document that a query was cut from, ± 2 standard errors; more is better"
        columns = [
            Column("reciprocal rank", meaning, scores, own_score),
            Column("recall@1, %", "share of queries whose own document came first, ± 2 standard errors", percents),
        ]
    columns += [
        Column(
            "behind the best",
            "how much worse than the best, paired by window or query, ± 2 standard errors; level: within them",
            [Cell(signed_text(one.behind), one.behind.mean if one.behind else 0.0, _mark(one)) for one in finals],
        ),
        Column(
            "against the original",
            f"loss minus that of the original in pieces of {before:,} tokens that overlap by half, paired by token, "
            "± 2 standard errors; below 0 is better",
            [_change(_against_original(one)) for one in finals],
        ),
        Column(
            "short texts",
            f"loss minus the original's on texts that it can read at once ({before:,} tokens), paired, ± 2 standard "
            "errors: what texts pay that fitted before",
            [_change(one.short) for one in finals],
        ),
        Column(
            "untrained",
            "the same without any training",
            [
                Cell(score_text(row.untrained.score), row.untrained.score.mean, _mark(row.untrained))
                if row.trained
                else Cell("")
                for row in rows
            ],
        ),
        Column(
            "learned rows",
            "whether every learned row stays as it is before any training",
            [Cell("kept" if row.keeps_learned_rows else "moved", float(not row.keeps_learned_rows)) for row in rows],
        ),
    ]
    return [column for column in columns if any(cell.text or cell.mark for cell in column.cells)]


def _change(difference: Estimate | None) -> Cell:
    return Cell(signed_text(difference), difference.mean if difference else None)


def _mark(outcome: Outcome) -> str:
    return "" if not outcome.is_level else "best" if outcome.behind is None else "level"


def _against_original(outcome: Outcome) -> Estimate | None:
    """Return the loss minus that of the original in pieces that overlap by half, paired; None where not measured."""
    positions = outcome.evaluation.positions
    return None if positions is None else positions.changes.get(SLIDING)


# What was found and how, in words


def verdict(comparison: Comparison) -> str:
    """Say in a sentence which method is the best, which are level with it, and how it stands to the original.

    Names of methods stand in backticks.
    """
    rows, after = comparison.rows, comparison.max_len_after
    if not rows:
        return "No method was measured."
    best, is_loss = rows[0], comparison.metric == LOSS
    if not math.isfinite(best.final.score.mean):
        return f"No method has a finite loss at {after:,} tokens."
    names = ["`{}`".format(row.method.replace("`", "'")) for row in rows]
    text = NUMBERS.perplexity if is_loss else NUMBERS.estimate
    score = f"a {'perplexity' if is_loss else 'mean reciprocal rank'} of {text(best.final.score)}"
    parts = [f"{names[0]} has {score} at {after:,} tokens"]
    if len(rows) > 1:
        parts = [f"{names[0]} is the best of {len(rows)} methods at {after:,} tokens, with {score}"]
        level = [name for name, row in zip(names[1:], rows[1:], strict=True) if row.final.is_level]
        if level:
            listed = " and ".join(filter(None, (", ".join(level[:-1]), level[-1])))
            parts.append(f"{listed} {'is' if len(level) == 1 else 'are'} level with it, within two standard errors")
        else:
            parts.append("no other is within two standard errors of it")
    if comparison.original is not None:
        read = "the same text in pieces" if is_loss else "the same documents in chunks"
        pieces = f"the original, which reads {read} of {comparison.max_len_before:,} tokens,"
        change = _against_original(best.final)
        against = "" if change is None else f", so that {names[0]} is {_compared(change)}"
        parts.append(f"{pieces} has {text(comparison.original)}{against}")
    return f"{trained_words(comparison)}{'; '.join(parts)}."


def _compared(change: Estimate) -> str:
    which = significant_sign(change.mean, change.error)
    if not which:
        return f"not surely different ({signed_text(change)} nats a token)"
    amount = NUMBERS.estimate(Estimate(abs(change.mean), change.error, change.tokens))
    return f"{'better' if which < 0 else 'worse'} by {amount} nats a token"


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Return what was measured and how, each with its label."""
    before, after = comparison.max_len_before, comparison.max_len_after
    training = "none: every method as it is made"
    if comparison.steps:
        what = TRAINABLE.get(comparison.trainable, comparison.trainable)
        reach = "" if comparison.seq_len is None else f", by sequences over {comparison.seq_len:,} positions"
        training = f"{comparison.steps:,} step{'s' * (comparison.steps != 1)} of {what}{reach}"
    documents = f"{comparison.documents:,} document{'s' * (comparison.documents != 1)}"
    return [
        ("Model", f"{comparison.source} ({comparison.family}), {KINDS.get(comparison.kind, comparison.kind)}"),
        ("Table", comparison.table),
        ("Length", f"{before:,} → {after:,} tokens ({after / before:.3g}\u00d7)"),
        ("Text", f"{documents}, {comparison.tokens:,} tokens"),
        ("Training", training),
        ("Run", f"seed {comparison.seed}, in {comparison.precision}, {comparison.seconds:,.0f} s"),
    ]
