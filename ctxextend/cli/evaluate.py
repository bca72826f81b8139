"""`ctxextend evaluate`."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Cell, Console, Page
from ctxextend.errors import counted, joined, not_an_option
from ctxextend.settings import Candidates, CheckpointRef, Evaluate, Figures

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation, ModelFacts
    from ctxextend.lab.scores import Score

COLUMNS = 4  # of losses by position
MOST_CURVES = 3  # models of which curves are shown, besides the ranking
OUTCOME_STYLES = {1: "right", -1: "wrong", 0: "", None: ""}


@options.command(CheckpointRef, Candidates, Evaluate, Figures, without=("source", "table"))
def evaluate(
    ref: CheckpointRef,
    candidates: Candidates,
    settings: Evaluate,
    figures: Figures,
    console: Console,
) -> None:
    """Measure how well models read long text, next to their base.

    Examples:
        ctxextend evaluate gpt2-4096 --data articles.jsonl
        ctxextend evaluate gpt2-bands gpt2-rotary --data articles.jsonl --length 4096
        ctxextend evaluate gpt2 --to 4x --method bands --method copy

    Measures losses, retrieval, search sets, and up to which length models read.
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
    from ctxextend.lab.effective_length import effective_text
    from ctxextend.lab.measures import all_measures
    from ctxextend.lab.scores import SEPARATE, select

    page.text(evaluation.verdict, "title")
    page.line()
    page.values(_settings(evaluation))
    _add_ranking(page, evaluation)
    models = len(evaluation.models)
    shown = [score for score in evaluation.ranked_scores if score.reading != SEPARATE]
    if models > 1:  # losses by position would not fit the screen
        shown = [*select(shown, part=None)]
    if evaluation.base is not None and evaluation.ranks_base:
        shown = [score for score in shown if score.model != evaluation.base.name]
    for measure in all_measures():
        scores = [*select(shown, measure=measure.name)]
        if measure.name == "effective":
            texts = dict[str, list[str]]()
            for name, own in groupby(scores, key=lambda score: score.model):
                texts.setdefault(effective_text([*own]), []).append(name)
            if models > 1:  # else the verdict says it
                page.line()
                for text, names in texts.items():
                    whose = joined(names) if len(texts) > 1 else "All models"
                    page.text(f"{whose}: {text}")
        elif models <= MOST_CURVES:
            _add_curves(page, measure.title, scores, evaluation)


def _settings(evaluation: "Evaluation") -> Iterator[tuple[str, str]]:
    models = evaluation.models
    if evaluation.auto:  # methods on the base
        models = ()
    for model in models:
        yield "model", _facts(model)
    base = evaluation.base
    if base is not None:
        yield "base", _facts(base)
    if evaluation.documents:
        parts = [f"{evaluation.tokens:,} tokens", counted(evaluation.documents, "document")]
        if evaluation.limited_by == "tokens":
            parts.append("limited by --tokens")
        yield "text", ", ".join(parts)
    for score in evaluation.ranking[:1]:
        if score.measure == "search":
            yield "search", f"{score.samples:,} queries"
    yield "run", f"{evaluation.precision}, seed {evaluation.seed}, {evaluation.seconds:,.1f} s"


def _facts(model: "ModelFacts") -> str:
    return f"{model.source}: {model.model_type}, {model.kind}, {model.max_len:,} tokens"


def _add_ranking(page: Page, evaluation: "Evaluation") -> None:
    """Add a table of the scores that rank models and of the base, and the best next to each."""
    from ctxextend.lab.numbers import difference_text, score_text
    from ctxextend.lab.scores import SEPARATE
    from ctxextend.lab.verdict import quantity

    if not evaluation.ranking:
        return
    best = evaluation.ranking[0]
    margin = "   " if len(evaluation.ranking) > 1 else ""
    rows = list[list[Cell]]()
    for number, score in enumerate((*evaluation.ranking, *evaluation.references), 1):
        if score.reading == SEPARATE:
            continue
        rank = margin
        if margin and number <= len(evaluation.ranking):
            rank = f"{number:>2} "
        row: list[Cell] = [
            f"{rank}{evaluation.label(score)}",
            score_text(score, with_interval=False),
        ]
        if score is best:
            row.append("")
        else:
            difference = best.minus(score)
            row.append((difference_text(difference), OUTCOME_STYLES[difference.outcome]))
        short = evaluation.of_short(score.model)
        is_model = score in evaluation.ranking
        if is_model and short is not None:
            text = difference_text(short, with_interval=False)
            row.append("unchanged" if short.change.mean == 0 else text)
        rows.append(row)
    whose = "best" if margin else "model"
    header = ["", quantity(best), f"{whose} vs. this (95 %)", "short inputs"]
    columns = max(map(len, rows)) if len(rows) > 1 else 2
    page.line()
    page.table(header[:columns], [[*row, ""][:columns] for row in rows])


def _add_curves(
    page: Page, title: str, scores: "Sequence[Score]", evaluation: "Evaluation"
) -> None:
    """Add a table of scores by position or by context length, without intervals."""
    from ctxextend.lab.numbers import score_text
    from ctxextend.lab.scores import Part, curves
    from ctxextend.lab.verdict import quantity

    of_one_name = [score for score in scores if score.name == scores[0].name]
    by_label = curves(of_one_name, COLUMNS)
    if all(len(own) == 1 for own in by_label.values()):
        return
    columns = dict[Part, str]()
    rows = list[dict[Part, str]]()
    for own in by_label.values():
        cells = dict[Part, str]()
        for score in own:
            place = score.part or (score.length, score.length)
            columns[place] = f"{score.length:,}"
            if score.part is not None:
                columns[place] = f"{place[0]:,}-{place[1] - 1:,}"
            cells[place] = score_text(score, with_interval=False)
        rows.append(cells)
    places = sorted(columns)
    page.line()
    page.text(f"{title} ({quantity(scores[0])})", "title")
    labels = [evaluation.label(own[0]) for own in by_label.values()]
    page.table(
        ["", *(columns[place] for place in places)],
        [
            [label, *(cells.get(place, "-") for place in places)]
            for label, cells in zip(labels, rows, strict=True)
        ],
    )
