"""`ctxextend compare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import complete_method, measures
from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import counted, flag_name
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison, Row
    from ctxextend.report.numbers import NumberFormat


# Parameters that only make sense for one model: the settings of methods, and those of its reference.
OF_ONE_MODEL = (
    *(
        "to",
        "quick",
        "hold_out",
        "method",
        "eval_data",
        "steps",
        "trainable",
        "seq_len",
        "window",
        "lr",
        "batch_size",
    ),
    *("model_type", "tokenizer", "revision", "subfolder", "variant"),
)


def compare(
    source: Annotated[
        list[str], options.model("Model as in evaluate, or several, to compare side by side.")
    ],
    data: Annotated[
        list[str] | None,
        options.text("--data PATH", "As in evaluate.", "with --quick: Python's documentation"),
    ] = None,
    to: Annotated[
        str | None, options.basic("--to N", "New context length, e.g. 4096, 4k or 4x.", False)
    ] = None,
    quick: Annotated[
        bool, options.basic("--quick", "Advice within a minute; --to is 2x by default.")
    ] = False,
    hold_out: options.HoldOut = None,
    method: Annotated[
        list[str] | None,
        measures("--method NAME", "Method, e.g. stretch:keep-first=5.", "all", complete_method),
    ] = None,
    length: options.Length = None,
    measure: options.Measure = None,
    corpus: options.Corpus = None,
    queries: options.Queries = None,
    qrels: options.Qrels = None,
    text_field: options.TextField = "text",
    tokens: options.Tokens = None,
    eval_data: options.EvalData = None,
    steps: Annotated[
        int, options.learning("--steps N", "Also train methods, by default auto, for N steps.")
    ] = 0,
    trainable: options.Trainable = None,
    seq_len: options.SeqLen = None,
    window: options.Window = None,
    lr: options.LearningRate = None,
    batch_size: options.StepBatch = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = None,
    report: options.Report = None,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Benchmark resize methods on your model and text, or several models.

    Examples:
        ctxextend compare gpt2 --quick
        ctxextend compare gpt2 --hold-out 512 --data a.jsonl
        ctxextend compare gpt2-bands gpt2-rotary --data a.jsonl --length 4096

    Ranks language models by loss on windows of N tokens, and encoders by document retrieval, or by nDCG@10 in a search
    set (--corpus, --queries, --qrels). With --steps, each method is first trained on the rest of the text. With
    --quick, five methods at 2x the length on Python's text. With --hold-out, the rows cut off are the reference.
    """
    flags = locals()
    if len(source) > 1 and (of_one := [name for name in OF_ONE_MODEL if flags[name]]):
        found = f"{flag_name(of_one[0])} is for one MODEL, got {len(source)}: {', '.join(source)}."
        raise typer.BadParameter(f"{found} Remove it to compare them as they are.")
    used = [
        f"--{name}"
        for name in ("steps", "method", "length", "measure", "hold_out", "corpus")
        if flags[name]
    ]
    if quick and used:
        raise typer.BadParameter(
            f"--quick cannot be used with {used[0].replace('_', '-')}. Remove one of them."
        )
    if not quick and not data and corpus is None:
        raise typer.BadParameter("Missing option '--data'.")
    from ctxextend.comparison.compare import Compare, ComparisonInterrupted, compare_model
    from ctxextend.comparison.quick import compare_quickly
    from ctxextend.comparison.side_by_side import compare_checkpoints
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef, Evaluate, Train

    sink = Console(as_json, quiet)
    options.check_files(plot, report)
    with options.usage_errors():
        ref = options.from_flags(CheckpointRef, flags, source=source[0])
        given = options.given_flags(flags, Evaluate, Train)
        several = len(source) > 1
        evaluate = Evaluate(**options.given_flags(flags, Evaluate)) if several else None
        full = (
            None
            if quick or several
            else Compare.from_flags(methods=method or (), hold_out=hold_out, **given, to=to)
        )
    try:
        with sink.progress("Comparing", unit="tokens") as progress:
            if evaluate:
                result = compare_checkpoints(source, progress=progress, **vars(evaluate))
            elif full:
                result = compare_model(open_model(ref), full, progress)
            else:
                result = compare_quickly(open_model(ref), to, progress=progress, **given)
    except ComparisonInterrupted as stop:
        result = stop.comparison
    from ctxextend.report.figures import write_figure
    from ctxextend.report.html import comparison_figure, write_report
    from ctxextend.report.verdicts import comparison_verdict

    add_comparison(page := Page.for_stdout(), result)
    verdict = comparison_verdict(result, page.numbers).replace("`", "") if result.rows else ""
    figure = (plot, lambda path: write_figure(path, lambda: comparison_figure(result)))
    files = (
        [(report, lambda path: write_report(result, path, options.command_line())), figure]
        if result.rows
        else []
    )
    for reason in dict.fromkeys(result.skipped.values()):
        sink.note(
            "Skipped "
            f"{', '.join(name for name, other in result.skipped.items() if other == reason)}: "
            f"{reason}"
        )
    sink.measurement("compare", result, page.lines, files, to_json(result) | {"verdict": verdict})


def add_comparison(page: Page, comparison: "Comparison") -> None:
    """Add the verdict, the settings, the ranking, and notes on its columns."""
    from ctxextend.evaluation.evaluation_result import text_summary
    from ctxextend.report.verdicts import comparison_verdict

    if comparison.rows:
        page.text(comparison_verdict(comparison, page.numbers).replace("`", ""), "title")
    if comparison.is_quick:
        page.command("Next: ", comparison.next_command)
    if not comparison.complete:
        page.text("Incomplete: interrupted before everything was measured.", "wrong")
    page.line()
    rows = counted(len(comparison.rows), comparison.row_type)
    if comparison.row_type == "checkpoint":
        page.line((rows, "title"), f" ({comparison.kind})")
        base = (
            f"; base {comparison.source}: {comparison.max_len_before:,} tokens"
            if comparison.source
            else ""
        )
        items = [("length", f"{comparison.max_len_after:,} tokens{base}")]
    else:
        page.line((comparison.source, "title"), f" ({comparison.model_type}, {comparison.kind})")
        held_out = "" if comparison.hold_out is None else "held-out rows as reference, "
        lengths = f"{comparison.max_len_before} -> {comparison.max_len_after} positions"
        items = [("length", f"{lengths}, {held_out}{rows}")]
    if comparison.search:
        items.append(("search", comparison.search.summary))
    if comparison.documents:
        items.append(
            ("text", text_summary(comparison.documents, comparison.tokens, comparison.limited_by))
        )
    if comparison.steps:
        trained = comparison.trained_part
        steps = counted(comparison.steps, "step")
        items.append(("training", f"{trained}, {steps}, sequence length {comparison.seq_len}"))
    items.append(
        ("run", f"{comparison.precision}, seed {comparison.seed}, {comparison.seconds:,.1f} s")
    )
    page.values(items)
    if comparison.rows:
        page.line()
        _add_ranking(page, comparison)
        page.line()
        if any(row.final.is_tied for row in comparison.rows[1:]):
            page.text("Tied: the 95 % interval of the paired difference contains 0.")
        if comparison.hold_out is not None:
            page.text(
                "Cost on short inputs: vs. the reference rows, on the first "
                f"{comparison.hold_out} tokens."
            )
            page.command("Next: ", comparison.next_command)
        elif any(row.final.short_inputs is not None for row in comparison.rows):
            page.text(f"Cost on short inputs: {comparison.short_inputs}.")
    if comparison.skipped:
        page.text(f"Skipped: {', '.join(comparison.skipped)}.", "faint")


def _add_ranking(page: Page, comparison: "Comparison") -> None:
    numbers, steps = page.numbers, comparison.steps
    score, unit = (numbers.perplexity, " (nats)") if comparison.is_loss else (numbers.estimate, "")
    header = [comparison.metric_names[0], f"delta vs. best{unit}"]
    header += ["untrained"] * bool(steps)
    header += [f"cost on short inputs{unit}"] * any(
        row.final.short_inputs is not None for row in comparison.rows
    )
    facts = [_facts(row, numbers) for row in comparison.rows]
    rows = list[list[Cell]]()
    more = [_against_reference(row, numbers) for row in comparison.rows]
    if comparison.hold_out is not None:
        references = [reference for _, reference in more[0].values()]
        rows.append(["   reference", score(comparison.base), "-", *references, "-"])
        header[2:2] = more[0]
    for number, row in enumerate(comparison.rows, 1):
        outcome = row.trained if steps else row.untrained
        delta: Cell = numbers.change(outcome.delta) if outcome else "-"
        if outcome and outcome.is_tied:
            delta = (f"tied  {delta}" if outcome.delta else "best", "right")
        cells: list[Cell] = [
            f"{number:>2} {row.method}",
            score(outcome.score if outcome else None),
            delta,
        ]
        cells += [cell for cell, _ in more[number - 1].values()]
        if steps:
            cells.append(score(row.untrained.score))
        short = row.final.short_inputs
        cells.append(
            "unchanged"
            if short and short.mean == 0 and not short.half_width
            else numbers.change(short)
        )
        rows.append([*cells[: len(header) + 1], *facts[number - 1].values()])
    page.table([f"   {comparison.row_type}", *map(numbers.head, header), *facts[0]], rows)


def _facts(row: "Row", numbers: "NumberFormat") -> dict[str, str]:
    """Return the cells of a checkpoint's facts by column; without a base, also its loss with the shortest context."""
    contexts = row.final.evaluation.contexts
    facts = row.checkpoint.cells if row.checkpoint else {}
    cells = {column: text for column, (text, _) in facts.items()}
    if not cells or not contexts or row.final.evaluation.base:
        return cells
    (first, *_) = contexts.points
    return {numbers.head(f"perplexity at {first.context}"): numbers.perplexity(first.loss), **cells}


def _against_reference(row: "Row", numbers: "NumberFormat") -> dict[str, tuple[str, str]]:
    """Return a row's cells with held-out rows, and those of the reference, by column; empty without them."""
    held_out = row.final.evaluation.held_out_rows
    scores = held_out.scores if held_out else {}
    if held_out and held_out.buckets:
        return {"delta vs. reference (nats)": (numbers.change(scores["beyond"].change), "-")}
    columns = {"MRR": "reciprocal_rank", "recall@1": "recall"}
    ranks = [(name, scores[key]) for name, key in columns.items() if key in scores]
    return {
        name: (numbers.estimate(score.model), numbers.estimate(score.reference))
        for name, score in ranks
    }
