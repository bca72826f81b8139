"""`ctxextend evaluate`."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Cell, Console, Page
from ctxextend.errors import counted, not_an_option
from ctxextend.settings import Candidates, CheckpointRef, Evaluate, Figures

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation, ModelFacts
    from ctxextend.lab.scores import Difference, Score

COLUMNS = 4  # of losses by position
DIFFERENCE_COLUMNS = {"same_text": "vs. same text", "chunks": "vs. whole text"}
OUTCOME_STYLES = {1: "right", -1: "wrong", 0: "", None: ""}
# What limited the text that was read.
TEXT_LIMITS = {"tokens": "limited by --tokens", "text": "all of the text", "": ""}


@options.command(CheckpointRef, Candidates, Evaluate, Figures, without=("source", "table"))
def evaluate(
    ref: CheckpointRef,
    candidates: Candidates,
    settings: Evaluate,
    figures: Figures,
    console: Console,
) -> None:
    """Measure how well models read long text, beside their base.

    Examples:
        ctxextend evaluate gpt2-4096 --data articles.jsonl
        ctxextend evaluate gpt2-bands gpt2-rotary --data articles.jsonl --length 4096
        ctxextend evaluate gpt2 --to 4x --method bands --method copy

    Language models: loss by position and context length. Encoders: retrieval, or a search set. All:
    up to which length they find what a text hides. With --to, methods are measured before anything
    is written.
    """
    from ctxextend.lab.evaluate import evaluate_models

    options.check_figures(figures)
    with console.progress("Reading", unit="tokens") as progress:
        evaluation = evaluate_models(ref, candidates, settings, progress)

    for reason in dict.fromkeys(evaluation.skipped.values()):
        names = [name for name, other in evaluation.skipped.items() if other == reason]
        console.note(f"Skipped {', '.join(names)}: {reason}")
    command = next_command(evaluation, replace(ref, source=candidates.models[0]))
    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    files = options.figure_files(figures, evaluation, command)
    console.measurement("evaluate", evaluation, page.lines, files)
    console.next_steps(command)


def next_command(evaluation: "Evaluation", ref: CheckpointRef) -> str:
    """Return the command that follows: to write the best method, or to use the best model."""
    if evaluation.auto:
        return ref.resize_command(to=evaluation.length, method=evaluation.recommended)
    named = [model for model in evaluation.models if model.name == evaluation.recommended]
    source = shlex.quote(not_an_option(named[0].source if named else ref.source))
    references = evaluation.main_references
    if references and evaluation.ranking[0].minus(references[0]).outcome == 1:
        return f"ctxextend verify {source} --deep"
    return f"ctxextend inspect {source}"


def add_evaluation(page: Page, evaluation: "Evaluation") -> None:
    """Add the verdict, what was read, the ranking, and a table of each measure with a curve."""
    from ctxextend.lab.effective_length import describe_effective
    from ctxextend.lab.measures import all_measures
    from ctxextend.lab.scores import SEPARATE, START, select

    page.text(evaluation.verdict, "title")
    page.line()
    page.values(_settings(evaluation))
    _add_ranking(page, evaluation)
    # As in the ranking; the base last.
    ranks = {name: rank for rank, name in enumerate(evaluation.order)}
    shown = [score for score in evaluation.scores if score.reading not in (SEPARATE, START)]
    shown.sort(key=lambda score: ranks.get(score.model, len(ranks)))
    for measure in all_measures():
        scores = [*select(shown, measure=measure.name)]
        if measure.name == "effective":
            for name, own in groupby(scores, key=lambda score: score.model):
                if len(evaluation.models) > 1:
                    page.text(f"{name}: {' '.join(describe_effective([*own]))}")
        elif scores:
            _add_curve(page, measure.title, scores)
    _add_costs(page, evaluation.models)


def _settings(evaluation: "Evaluation") -> Iterator[tuple[str, str]]:
    if len(evaluation.models) == 1 and not evaluation.auto:
        (model,) = evaluation.models
        yield "model", f"{model.source}: {model.model_type}, {model.kind}, {model.max_len:,} tokens"
    if evaluation.base is not None:
        base = evaluation.base
        yield "base", f"{base.source}: {base.model_type}, {base.kind}, {base.max_len:,} tokens"
    if evaluation.documents:
        parts = [f"{evaluation.tokens:,} tokens", counted(evaluation.documents, "document")]
        if evaluation.limited_by:
            parts.append(TEXT_LIMITS[evaluation.limited_by])
        yield "text", ", ".join(parts)
    yield "run", f"{evaluation.precision}, seed {evaluation.seed}, {evaluation.seconds:,.1f} s"


def _add_ranking(page: Page, evaluation: "Evaluation") -> None:
    """Add a table of the scores that rank models, and of the base beside them."""
    from ctxextend.lab.scores import SEPARATE
    from ctxextend.lab.verdict import quantity
    from ctxextend.report.numbers import score_text

    ranking = evaluation.ranking
    if not ranking:
        return
    best = ranking[0]
    name = quantity(best)
    shown_references = [
        reference for reference in evaluation.references if reference.reading != SEPARATE
    ]
    rows = list[dict[str, Cell]]()
    for number, score in enumerate(ranking, 1):
        rank = f"{number:>2} " if len(ranking) > 1 else ""
        cells: dict[str, Cell] = {"": f"{rank}{score.model}", f"{name} (95 %)": score_text(score)}
        if len(ranking) > 1:
            cells["vs. best"] = "best" if score is best else _cell(score.minus(best))
        for reference in evaluation.main_references:
            column = DIFFERENCE_COLUMNS.get(reference.reading, "vs. base")
            cells[column] = _cell(score.minus(reference))
        short = evaluation.of_short(score.model)
        if short is not None:
            cells["short inputs"] = "unchanged" if short.change.mean == 0 else _cell(short)
        rows.append(cells)
    header = list(rows[0])
    for reference in shown_references:
        blank = "   " if len(ranking) > 1 else ""
        rows.append({"": f"{blank}{reference.label}", f"{name} (95 %)": score_text(reference)})
    page.line()
    page.table(header, [[cells.get(column, "") for column in header] for cells in rows])


def _cell(difference: "Difference") -> Cell:
    from ctxextend.report.numbers import difference_text

    return difference_text(difference), OUTCOME_STYLES[difference.outcome]


def _add_curve(page: Page, title: str, scores: "Sequence[Score]") -> None:
    """Add a table of scores by position or by context length, without intervals."""
    from ctxextend.lab.scores import NATS, curves
    from ctxextend.report.numbers import score_text

    rows = dict[str, dict[str, Cell]]()
    for label, own in curves(scores, COLUMNS).items():
        rows[label] = {_column(score): score_text(score, with_interval=False) for score in own}
    header = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    if len(header) < 2:
        return
    page.line()
    unit = " (perplexity)" if scores[0].unit == NATS else f" ({scores[0].name})"
    page.text(f"{title}{unit}", "title")
    cells = [[label, *(own.get(column, "-") for column in header)] for label, own in rows.items()]
    page.table(["", *header], cells)


def _column(score: "Score") -> str:
    if score.part is None:
        return f"{score.length:,}"
    start, stop = score.part
    return f"{start:,}-{stop - 1:,}"


def _add_costs(page: Page, models: "Sequence[ModelFacts]") -> None:
    """Add a table of what several checkpoints are, and what they cost to run."""
    rows = list[list[Cell]]()
    for model in models:
        if model.tokens_per_second is None:
            return
        rows.append(
            [
                model.name,
                model.scheme,
                f"{model.max_len:,}",
                f"{model.parameters:,}",
                f"{model.tokens_per_second:,.0f}",
                model.size,
            ]
        )
    page.line()
    page.table(["", "positions", "context", "parameters", "tokens/s", "size"], rows)
