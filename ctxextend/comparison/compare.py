"""Rank methods on one model, one text and one seed."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.comparison_result import (
    COSINE,
    LOSS,
    METRIC_BOUNDS,
    METRICS,
    NDCG,
    Comparison,
    Outcome,
    Row,
)
from ctxextend.comparison.in_memory import InMemoryTrainer, ResizedModel, open_resized, open_trainer
from ctxextend.errors import DataError, MethodError, ResizeError, TrainingError
from ctxextend.evaluation.embedding import last_states
from ctxextend.evaluation.eval_model import ENCODER, ModelFiles, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, applicable_measures, plan_evaluation
from ctxextend.evaluation.evaluation_result import (
    CHUNKS,
    SLIDING,
    TRUNCATED,
    UNBOUNDED,
    Estimate,
    Evaluation,
    difference_bounds,
    estimate,
    estimate_loss,
    little_text,
)
from ctxextend.evaluation.losses import LossTask
from ctxextend.evaluation.passkey import PasskeyTask
from ctxextend.evaluation.reference_rows import plan_held_out_rows, read_texts
from ctxextend.evaluation.search import read_search_set
from ctxextend.held_out import shared_texts, split_documents
from ctxextend.models.devices import torch_threads
from ctxextend.models.extend import set_tables
from ctxextend.output.record import recorded_settings
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    MIN_LENGTH,
    CheckpointRef,
    Evaluate,
    Recipe,
    Resize,
    Train,
    accepts_settings,
    split_ref,
)
from ctxextend.recipe_file import TENSOR_KEYS, recipe_values, yaml_text
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA, method_text
from ctxextend.tables.method_parser import parse_method
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES
from ctxextend.text_data import check_paths, path_names

HELD_OUT = (
    "Methods are evaluated on windows held out of --data, about 5 % of it, and trained on the "
    "rest. Pass --eval-data "
    "to evaluate on other text."
)

MIN_WINDOWS = 2  # of a quick comparison
ALL = "all"  # every method of the registry with its defaults

# Settings of the evaluation, and those of training that apply to written output only.
EVAL_SETTINGS = {item.name for item in fields(Evaluate)} - {"data", "base", "no_base", "batch_size"}
UNCOMPARED = (
    *(
        "eval_every",
        "save_every",
        "save",
        "report_to",
        "dtype",
        "copy_code",
        "distill",
        "contrastive",
    ),
    *("lora", "save_adapter", "fsdp"),
)


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C during a comparison; `comparison` has the results so far, with `complete` False."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


@accepts_settings(
    CheckpointRef, Evaluate, Train, without=(*TENSOR_KEYS, *UNCOMPARED, "base", "no_base")
)
def compare(
    reference: str | os.PathLike[str],
    to: int | str | None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    methods: str | Sequence[str] = (),
    steps: int = 0,
    hold_out: int | None = None,
    progress: Progress = no_progress,
    **settings: Any,
) -> Comparison:
    """Rank methods on one model, one text and one seed.

    The model is loaded once; only its tables change between methods, and equal those that `resize`
    writes, bit for bit. The base reads the same text once, in sliding windows or chunks. Language
    models are ranked by their loss on windows of the new length, encoders by document retrieval, or
    by nDCG@10 in a search set. With `steps`, each method is evaluated before and after training,
    from the same weights, on the same text in the same order.

    Args:
        reference: As in `resize`.
        to: New context length in positions. With `hold_out`: of the cut tables, by default the
            model's own.
        data: As in `evaluate`; with `steps`, the training text.
        methods: Methods, with settings if any: ``linear``, ``stretch:keep-first=5``; ``all`` (the
            default without `steps`): every one. With `steps`, the default is ``auto``, the default
            method.
        steps: Optimizer steps of training; 0: no training.
        hold_out: Cut the tables to their first rows, as many as this, extend them back, and compare
            with the rows that were cut off, the reference rows: loss at these positions, or cosine
            to the reference embeddings.
        progress: Called with the number of tokens read since the last call, the total, and the name
            of the method.
        settings: Other fields of `Evaluate`, by name: ``length``, ``measure``, ``tokens``, …; with
            `steps`, also fields of `Train` without output, with ``eval_data`` for evaluation;
            ``revision``, … as in `resize`.

    Raises:
        CtxextendError: As `evaluate` and `train`; a named method does not apply, or `eval_data` is
            also trained on.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    ref, settings = split_ref(reference, settings)
    settings["eval_data"] = path_names(settings.get("eval_data") or ())
    methods = (methods,) if isinstance(methods, str) else methods
    requested = Compare.from_flags(to, path_names(data), methods, steps, hold_out, **settings)
    return compare_model(open_model(ref), requested, progress)


class MethodSpec(NamedTuple):
    """A method to compare."""

    name: str  # with its settings, if any
    resize: Resize  # to `Compare.to`, or any length if that is None
    is_named: bool  # whether the user named it, so that it cannot be skipped


@dataclass(frozen=True)
class Compare:
    """What to compare, and how."""

    # New context length in positions, as `Resize.to`, of the cut tables with `hold_out`; None: the
    # checkpoint's own.
    to: int | str | None
    evaluate: Evaluate  # on windows held out of `train.data`, unless `train.eval_data` is given
    methods: tuple[MethodSpec, ...]
    train: Train | None  # None: no training
    hold_out: int | None = (
        None  # the first held-out row, a position; None: extend the tables as they are
    )
    # Of a quick comparison: time for reading text, which sets the number of windows. None: a full
    # comparison.
    seconds: float | None = None

    @classmethod
    def from_flags(
        cls,
        to: int | str | None,
        data: Sequence[str] = (),
        methods: Sequence[str] = (),
        steps: int = 0,
        hold_out: int | None = None,
        is_named: bool = True,
        **flags: Any,
    ) -> "Compare":
        """Return a comparison's settings, from fields of `Evaluate` and `Train` by name; None means
        the default.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        evaluation = {name: given[name] for name in EVAL_SETTINGS if name in given}
        training = {name: value for name, value in given.items() if name not in EVAL_SETTINGS}
        defaults = {item.name: item.default for item in fields(Train)}
        if not steps and (
            unused := [name for name, value in training.items() if value != defaults.get(name)]
        ):
            flag = f"--{unused[0].replace('_', '-')}"
            raise ResizeError(f"{flag} requires --steps.", f"Add --steps, or remove {flag}.")
        training |= {name: value for name, value in evaluation.items() if name in defaults}
        text = (
            () if steps and "corpus" in evaluation else tuple(data)
        )  # a search set leaves all text to training
        evaluate = Evaluate(training.get("eval_data") or text, **evaluation)
        if hold_out is None and to is None:
            raise ResizeError(
                "--to or --hold-out is missing.", "Pass a longer context length, such as --to 4x."
            )
        if hold_out is not None and hold_out < MIN_LENGTH:
            raise MethodError(f"--hold-out must be at least {MIN_LENGTH}, got {hold_out}.")
        used = [
            name
            for name in ("steps", "length", "measure", "corpus")
            if (given | {"steps": steps}).get(name)
        ]
        if hold_out is not None and used:
            reason = (
                f"--{used[0]} cannot be used with --hold-out, which measures untrained methods "
                "its own way."
            )
            raise ResizeError(reason, "Remove one of them.")
        to = to if to is None else Resize(to).to
        if isinstance(to, int) and to < MIN_LENGTH:
            raise ResizeError(f"--to must be at least {MIN_LENGTH} to compare methods, got {to}.")
        if isinstance(to, int) and max(evaluate.length, default=0) > to:
            raise ResizeError(
                f"--length {max(evaluate.length)} is more than --to {to}.", "Use a larger --to."
            )
        # With "best", the step would be selected on the text that methods are evaluated on.
        train = Train(tuple(data), steps, save="last", **training) if steps else None
        methods = methods or [DEFAULT_METHOD] * bool(steps)
        return cls(to, evaluate, read_methods(methods, to, is_named=is_named), train, hold_out)

    def evaluate_for(self, kind: str, to: int) -> Evaluate:
        """Return the settings to evaluate a kind of model at a length, with the measure that ranks
        methods.
        """
        if self.seconds is not None:
            return replace(
                self.evaluate, length=(to,), measure=() if kind == ENCODER else ("position",)
            )
        return with_ranking(
            replace(self.evaluate, length=self.evaluate.length and (*self.evaluate.length, to)),
            kind,
        )


def with_ranking(settings: Evaluate, kind: str) -> Evaluate:
    """Add the measure that ranks a kind of models to the requested ones, if any."""
    if settings.corpus is not None or not settings.measure:
        return settings
    return replace(
        settings, measure=(*settings.measure, "retrieval" if kind == ENCODER else "position")
    )


def read_methods(
    specs: Sequence[str], to: int | str | None, *, is_named: bool = True
) -> tuple[MethodSpec, ...]:
    """Return the requested methods, each once; by default, and for ``all``, every method with its
    defaults.
    """
    specs_by_name = dict[str, MethodSpec]()
    to = MIN_LENGTH if to is None else to
    for text in specs or [ALL]:
        if text.strip() == ALL:
            for name in (*METHODS, *ROTARY_METHOD_NAMES):
                if name != DEFAULT_METHOD:  # it chooses one of the others
                    specs_by_name.setdefault(
                        name, MethodSpec(name, Resize(to, method=name), is_named=False)
                    )
        else:
            resize, (method, given) = Resize(to, method=text), parse_method(text)
            full_name = method_text(method.name, given)
            specs_by_name[full_name] = MethodSpec(full_name, resize, is_named)
    return tuple(specs_by_name.values())


def compare_model(
    opened: OpenedModel, settings: Compare, progress: Progress = no_progress
) -> Comparison:
    """Compare methods on a checkpoint; see `compare`."""
    with tempfile.TemporaryDirectory() as folder:
        run = open_comparison(opened, settings, Path(folder))
        try:
            with torch_threads(run.resized.model.model, settings.evaluate.threads):
                run.measure(progress)
        except KeyboardInterrupt:
            raise ComparisonInterrupted(run.report(complete=False)) from None
        return run.report(complete=True)


class Measurement(NamedTuple):
    """The evaluation of a candidate at one stage."""

    evaluation: Evaluation
    scores: tuple[NDArray[np.float64], ...]  # from `EvaluationRun.scores`


@dataclass
class Candidate:
    """A method or a checkpoint, and its measurements so far."""

    name: str  # of a method with its settings, if any
    keeps_learned_rows: bool = False
    recipe: str = ""  # YAML that reproduces its checkpoint
    measured: list[Measurement] = field(default_factory=list)  # untrained, then trained
    seconds: float = 0.0

    def add(self, run: EvaluationRun) -> None:
        """Add what a run has measured."""
        self.measured.append(Measurement(run.report(complete=True), run.scores))


@dataclass
class ComparisonRun:
    """Candidates and their results so far."""

    files: ModelFiles
    settings: Compare
    resized: ResizedModel
    evaluation: EvaluationRun
    trainer: InMemoryTrainer | None  # None: no training
    candidates: list[Candidate]
    plans: Mapping[str, Plan]  # by name of the candidate
    skipped: dict[str, str]  # skipped methods, with the reason
    to: (
        int | str
    )  # for `resize` of the base: the new length or, with held-out rows, the same factor
    auto: str  # the method that `auto` takes for it
    failures: list[str] = field(default_factory=list)  # messages of failed training runs
    started: float = field(default_factory=time.perf_counter)

    def measure(self, progress: Progress) -> None:
        """Run the base, then evaluate each candidate untrained, then train and evaluate each."""
        evaluation = self.evaluation
        total = evaluation.base_tokens + len(self.candidates) * evaluation.tokens
        if self.trainer is not None:
            train, length = self.trainer.task.settings, self.trainer.task.length
            total += len(self.candidates) * (
                evaluation.tokens + train.steps * train.batch_size * length
            )

        def advance(name: str) -> Callable[[int], None]:
            return lambda tokens: progress(tokens, total, name)

        evaluation.run_base(
            advance("the base" if self.settings.hold_out is None else "the reference rows")
        )
        for trainer in (None, self.trainer) if self.trainer else (None,):
            for candidate in self.candidates:
                started = time.perf_counter()
                moved = advance(candidate.name)
                plan = self.plans[candidate.name]
                self.resized.set_positions(plan)
                try:
                    with trainer.trained(self.resized, plan, moved) if trainer else nullcontext():
                        evaluation.measure(moved)
                        candidate.add(evaluation)
                except (
                    TrainingError
                ) as error:  # one failed training must not lose the other results
                    self.failures.append(f"Training failed for {candidate.name}: {error}")
                candidate.seconds += time.perf_counter() - started

    def report(self, *, complete: bool) -> Comparison:
        """Return the results so far."""
        model, train = self.resized.model, self.settings.train
        hold_out = self.settings.hold_out
        metric = NDCG if self.settings.evaluate.corpus else METRICS[model.kind]
        metric = COSINE if hold_out and model.kind == ENCODER else metric
        fields = measured_fields(self.candidates, metric, self.evaluation, self.started)
        fields["warnings"] += tuple(self.failures)
        facts = self.files.ref.source, model.model_type, model.kind, self.files.table
        comparison = Comparison(
            *(*facts, hold_out or self.files.max_len, model.max_len),
            **fields,
            skipped=self.skipped,
            hold_out=hold_out,
            is_quick=self.settings.seconds is not None,
            auto=self.auto,
            steps=train.steps if train else 0,
            trainable=str(train.trainable) if train else "positions",
            seq_len=self.trainer.task.span if self.trainer else None,
            complete=complete,
        )
        if not comparison.rows:
            return comparison
        command = self.files.ref.resize_command(to=self.to, method=comparison.recommended)
        return replace(comparison, next_command=command)


def open_comparison(opened: OpenedModel, settings: Compare, folder: Path) -> ComparisonRun:
    """Load the model, plan each method, cut the text, and tokenize the training text into a
    folder.
    """
    train = settings.train
    if settings.evaluate.data:
        check_paths(settings.evaluate.data)
    search_set = read_search_set(settings.evaluate)
    if train and train.eval_data and (shared := shared_texts(train.eval_data, train.data)):
        message = (
            f"{', '.join(map(str, shared[:3]))} is passed to both --data (training) and "
            "--eval-data (evaluation)."
        )
        raise DataError(
            message, "Remove --eval-data to evaluate on 5 % of --data, held out of training."
        )
    files = open_files(opened)
    plans, skipped = _plans(files, settings)
    hold_out = settings.hold_out
    plan = next(iter(plans.values()))
    to: int | str = plan.max_len_after
    if hold_out:
        times, rest = divmod(plan.max_len_after, hold_out)
        to = files.max_len * plan.max_len_after // hold_out if rest else f"{times}x"
    auto = method_of_auto(opened, to)
    text = (
        read_texts(files, settings.evaluate, hold_out, plan.max_len_after, auto)
        if hold_out
        else None
    )
    train, notes = (
        files.choose_trainable(train) if train else (None, ())
    )  # the same for all methods
    settings = replace(settings, train=train)
    # Training keeps weights in float32, whatever --precision is.
    base = load_eval_model(
        files, "fp32" if train else settings.evaluate.precision, settings.evaluate.device
    )
    evaluate = settings.evaluate_for(base.kind, plan.max_len_after)
    applicable_measures(base, evaluate)
    resized = open_resized(
        base, plan, shares=not (base.kind == ENCODER and train is not None and train.trains_weights)
    )
    trainer = open_trainer(files, plan, train, base, folder) if train else None
    held_out = None
    if trainer and search_set is None and not trainer.task.settings.eval_data:
        windows = [
            trainer.task.held_out.tokens[start:stop] for start, stop in trainer.task.held_out.spans
        ]
        held_out = split_documents(windows, files.tokenizer.separator)
    notes = (*base.notes, *notes, *[HELD_OUT] * (held_out is not None))
    if text is not None and hold_out is not None:
        reference = {
            table.name: resized.learned[table.name][: table.rows_after] for table in plan.stored
        }
        set_tables(resized.model.model, resized.tensors(reference))
        run = plan_held_out_rows(resized.model, hold_out, evaluate, *text)
    else:
        hint = f"Pass more text with --data, or use a smaller --to. {little_text(auto)}"
        run = plan_evaluation(
            resized.model,
            base,
            evaluate,
            held_out,
            search_set=search_set,
            short_hint=hint,
            notes=notes,
        )
    if trainer and held_out is not None:
        run.warnings += trainer.task.warnings
    check_ranked(run, little_text(auto))
    if settings.seconds is not None:
        tokens = _affordable_tokens(run, len(plans), settings.seconds)
        is_cut = tokens < evaluate.tokens
        evaluate = replace(evaluate, tokens=tokens)
        run = plan_evaluation(resized.model, base, evaluate, notes=notes)
        if is_cut and run.text.limited_by == "tokens":
            run.text = replace(run.text, limited_by="time")
        run.tasks = run.tasks[:1]
        if isinstance(task := run.tasks[0], LossTask):
            task.modes = [mode for mode in task.modes if mode.name != TRUNCATED]
    if (
        source := opened.checkpoint.source
    ).kind == "hub":  # so that recipes pin the commit that was read
        opened = replace(opened, ref=replace(opened.ref, revision=source.revision))
    resizes = {name: recorded_settings(plan) for name, plan in plans.items()}
    if hold_out:  # methods as they were named, since their settings were chosen for the cut tables
        resizes = {spec.name: replace(spec.resize, to=to) for spec in settings.methods}
    candidates = [
        Candidate(
            name,
            plan.keeps_learned_rows,
            yaml_text(recipe_values(Recipe(opened.ref, resizes[name], train))),
        )
        for name, plan in plans.items()
    ]
    return ComparisonRun(
        files, settings, resized, run, trainer, candidates, plans, skipped, to, auto
    )


def method_of_auto(opened: OpenedModel, to: int | str) -> str:
    """Return the method that `auto` takes for a resize, or ``auto`` if tables differ in it."""
    chosen = plan_model(opened, Resize(to)).choices.values()
    names = dict.fromkeys(choice.name for choice in chosen)
    return next(iter(names)) if len(names) == 1 else DEFAULT_METHOD


def check_ranked(run: EvaluationRun, advice: str = "") -> None:
    """Raise DataError, with more advice in its hint, if no task ranks encoders."""
    if not run.tasks or isinstance(run.tasks[0], PasskeyTask):
        reason = next(note for note in run.notes if note.startswith("Retrieval"))
        message = f"Encoders such as {run.model.name} are ranked by document retrieval. {reason}"
        hint = "Pass more or longer texts with --data, or a search set with --corpus."
        raise DataError(message, f"{hint} {advice}".strip())


def _affordable_tokens(run: EvaluationRun, candidates: int, seconds: float) -> int:
    """Return how many tokens of text the base and all candidates can read in a time, from one
    measured pass.
    """
    import torch

    model = run.model
    task = run.tasks[0]
    ids = torch.from_numpy(model.tokenizer.add_special_tokens(run.text.windows[0]))[None].to(
        model.model.device
    )
    with torch_threads(model.model, run.settings.threads), torch.inference_mode():
        started = time.perf_counter()
        last_states(model, ids)
        per_token = (time.perf_counter() - started) / ids.shape[1]
    read = (task.base_tokens + candidates * task.tokens) / len(
        run.text.windows
    )  # tokens per window
    return int(
        min(max(seconds / per_token / read, MIN_WINDOWS) * ids.shape[1], run.settings.tokens)
    )


def _plans(files: ModelFiles, settings: Compare) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return the plan of each method, and the reasons why methods that the user did not name are
    skipped.
    """
    to, hold_out, length = settings.to, settings.hold_out, files.max_len
    if hold_out:
        to = _held_out_length(files, to, hold_out)
    elif to is not None and (to := plan_model(files, Resize(to)).max_len_after) <= length:
        found = f"{files.ref.source} has a context length of {length} tokens"
        hint = f"Use a larger --to, such as --to {4 * length}."
        raise ResizeError(f"{found}, so --to {to} creates no new rows to compare.", hint)
    plans, skipped = dict[str, Plan](), dict[str, str]()
    for spec in settings.methods:
        try:
            plan = plan_model(files, replace(spec.resize, to=to or spec.resize.to), cut=hold_out)
            plans[spec.name] = plan
        except ResizeError as error:
            if spec.is_named:
                raise
            if spec.name != FORMULA and not isinstance(
                error, MethodError
            ):  # which no table has, or other positions
                skipped[spec.name] = error.message
    return plans, skipped


def _held_out_length(files: ModelFiles, to: int | str | None, hold_out: int) -> int:
    """Return the length to which cut tables are extended; raise if the checkpoint has no rows to
    compare with.
    """
    name = files.ref.source
    if not files.has_rows:
        scheme = files.tables[0].location.scheme
        message = (
            f"--hold-out {hold_out}: {name} has {scheme} positions, which have no rows to hold out."
        )
        raise MethodError(
            message,
            "Remove --hold-out: methods are then compared with the base, which reads in pieces.",
        )
    length = min(table.max_len_before for table in plan_model(files, Resize(files.max_len)).tables)
    if hold_out >= length:
        message = (
            f"--hold-out {hold_out}: {name} has a context length of {length}, so no rows would "
            "be held out."
        )
        raise ResizeError(message, f"Use fewer rows, such as --hold-out {length // 2}.")
    plan = plan_model(files, Resize(length if to is None else to), cut=hold_out)
    if not hold_out < plan.max_len_after <= length:
        message = (
            f"--to {plan.max_len_after} with --hold-out {hold_out}: {name} has reference rows up "
            f"to {length}."
        )
        raise ResizeError(message, f"Use a --to from {hold_out + 1} to {length}, or remove it.")
    if formulas := [table for table, choice in plan.choices.items() if choice.name == FORMULA]:
        message = (
            f"The rows of {formulas[0]} follow a formula, so the rows beyond any length are "
            "known exactly."
        )
        raise ResizeError(message, "Resize it without --method: there is nothing to compare.")
    return plan.max_len_after


def measured_fields(
    candidates: Sequence[Candidate], metric: str, run: EvaluationRun, started: float
) -> dict[str, Any]:
    """Return the fields of a `Comparison` that are measured; `run` is the evaluation of any
    candidate.
    """
    rows = rank(candidates, metric)
    evaluations = [
        outcome.evaluation for row in rows for outcome in (row.untrained, row.trained) if outcome
    ]
    base = [
        item.search.scores[CHUNKS]["nDCG@10"] for item in evaluations if item.search and item.base
    ]
    base += [item.retrieval.modes[CHUNKS].reciprocal_rank for item in evaluations if item.retrieval]
    base += [item.positions.losses[SLIDING] for item in evaluations if item.positions and item.base]
    base += [
        item.held_out_rows.scores["beyond"].reference for item in evaluations if item.held_out_rows
    ]
    values: dict[str, Any] = {
        "metric": metric,
        "rows": rows,
        "base": next(iter(base), None),
        "notes": run.notes,
    }
    values |= {
        "documents": len(run.text.documents),
        "tokens": run.text_tokens,
        "limited_by": run.text.limited_by,
    }
    values |= {
        "seed": run.settings.seed,
        "precision": str(run.model.model.dtype).removeprefix("torch."),
    }
    values["warnings"] = tuple(
        dict.fromkeys(warning for item in evaluations for warning in item.warnings)
    )
    return values | {"seconds": round(time.perf_counter() - started, 3)}


def rank(candidates: Sequence[Candidate], metric: str) -> tuple[Row, ...]:
    """Return measured candidates, best first and those without training last; deltas refer to the
    best of a stage.
    """
    sign = 1 if metric == LOSS else -1
    bounds = METRIC_BOUNDS[metric]
    change_bounds = UNBOUNDED if metric == LOSS else difference_bounds(bounds)

    def mean(scores: Sequence[NDArray[np.float64]]) -> Estimate:
        return estimate_loss(scores) if metric == LOSS else estimate(scores, bounds)

    def cost(score: float) -> float:
        return sign * score if isfinite(score) else inf  # NaN and infinity rank last

    stages = [
        [item.measured[stage] for item in candidates if len(item.measured) > stage]
        for stage in (0, 1)
    ]
    best = [
        min(stage, key=lambda measurement: cost(mean(measurement.scores).mean), default=None)
        for stage in stages
    ]

    def outcome(measured: Measurement, best: Measurement | None) -> Outcome:
        evaluation, contexts = measured.evaluation, measured.evaluation.contexts
        pairs = zip(measured.scores, best.scores if best else (), strict=True)
        delta = None
        if measured is not best:
            delta = estimate([sign * (own - other) for own, other in pairs], change_bounds)
        points = contexts.points if contexts else ()
        short = [point.against_base for point in points if point.context == evaluation.base_max_len]
        if evaluation.held_out_rows is not None:
            change = evaluation.held_out_rows.scores["short"].change
            short = [replace(change, mean=sign * change.mean)]
        return Outcome(mean(measured.scores), delta, next(iter(short), None), evaluation)

    rows = []
    for candidate in candidates:
        untrained, trained, *_ = (*map(outcome, candidate.measured, best), None, None)
        if untrained is not None:
            seconds = round(candidate.seconds, 3)
            keeps = candidate.keeps_learned_rows
            rows.append(Row(candidate.name, keeps, candidate.recipe, untrained, trained, seconds))
    return tuple(sorted(rows, key=lambda row: (row.trained is None, cost(row.final.score.mean))))
