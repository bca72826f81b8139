"""Rank methods by what they are worth on one model, one text and one seed."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.comparison_result import LOSS, METRICS, Comparison, Outcome, Row
from ctxextend.comparison.in_memory import InMemoryTrainer, ResizedModel, open_resized, open_trainer
from ctxextend.errors import DataError, ResizeError, TrainingError
from ctxextend.evaluation.eval_model import ENCODER, ModelFiles, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, fitting_measures, plan_evaluation
from ctxextend.evaluation.evaluation_result import CHUNKS, SLIDING, Estimate, Evaluation, estimate, estimate_loss
from ctxextend.held_out import shared_texts
from ctxextend.models.devices import running
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import MIN_LENGTH, CheckpointRef, Evaluate, Recipe, Resize, Train, accepts_settings, split_ref
from ctxextend.recipe_file import TABLE_KEYS, recipe_values, yaml_text
from ctxextend.tables.apply import read_method
from ctxextend.tables.method_facts import method_text
from ctxextend.tables.methods import METHODS
from ctxextend.tables.stats import norms_and_neighbours
from ctxextend.text_data import check_paths, path_names

HELD_OUT = (
    "Methods are measured on windows held out of --data, about 5 % of it, and trained on the rest; name other text to "
    "measure on with --eval-data."
)

ALL = "all"  # every method of the registry with its defaults

# Flags of a measurement, and those of them that a training has too.
MEASURING = ("length", "tokens", "measure", "precision", "seed", "text_field", "device", "threads")
COMMON = ("precision", "seed", "text_field", "device", "threads")
OF_OUTPUT = ("eval_every", "save_every", "save", "report_to", "dtype", "copy_code")  # what no training in memory has


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C while methods were compared; `comparison` holds those that were measured, `complete` false."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


@accepts_settings(CheckpointRef, Evaluate, Train, without=(*TABLE_KEYS, *OF_OUTPUT, "base", "no_base"))
def compare(
    reference: str | os.PathLike[str],
    to: int | str,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    methods: str | Sequence[str] = (),
    steps: int = 0,
    progress: Progress = no_progress,
    **settings: Any,
) -> Comparison:
    """Rank methods by what they are worth on one model, one text and one seed.

    The model is loaded once, and nothing but its tables changes from one method to the next; they are what `resize`
    writes, bit for bit. The base reads the same text in pieces, once. Language models are ranked by their loss on
    windows as long as the new length, encoders by the documents that they find. With `steps`, each method is measured
    as it is made and after so many steps of training, from the same weights, on the same text in the same order;
    what is measured on is never trained on.

    Args:
        reference: As in `plan_resize`.
        to: Usable token positions that each method gives, more than the model has.
        data: As in `evaluate`; with `steps` it is trained on.
        methods: Names, each with its settings where it has any: ``linear``, ``stretch:keep-first=5``; ``all`` and
            nothing are every method with its defaults.
        steps: Optimizer steps of training; 0 for none.
        progress: Told how many tokens were read since the last call, how many there will be, and what reads them.
        settings: Other fields of `Evaluate`, by name: ``length``, ``measure``, ``tokens``, …; with `steps`, those of
            `Train` too that serve no output, ``eval_data`` being what is measured on; and ``revision``, … as in
            `plan_resize`.

    Raises:
        CtxextendError: As `evaluate` and `train`; a method that was named cannot be, or `eval_data` is trained on too.
        ComparisonInterrupted: Ctrl-C; it holds what was measured.
    """
    ref, settings = split_ref(reference, settings)
    settings["eval_data"] = path_names(settings.get("eval_data") or ())
    methods = (methods,) if isinstance(methods, str) else methods
    asked = Compare.from_flags(to, path_names(data), methods, steps, **settings)
    return compare_model(open_model(ref), asked, progress)


class MethodSpec(NamedTuple):
    """A method that is to be compared with others."""

    name: str  # with its settings where any were given
    resize: Resize
    is_named: bool  # whether it was asked for by its name, and not among all


@dataclass(frozen=True)
class Compare:
    """How methods are compared."""

    to: int | str  # usable token positions that each method gives, as `Resize.to`
    evaluate: Evaluate  # how they are measured; where `train` names no text for it, on what that leaves out of its own
    methods: tuple[MethodSpec, ...]
    train: Train | None  # how each is trained then; None is not at all

    @classmethod
    def from_flags(
        cls, to: int | str, data: Sequence[str], methods: Sequence[str] = (), steps: int = 0, **flags: Any
    ) -> "Compare":
        """Return how methods are compared, from fields of `Evaluate` and `Train` by their names; None is a default."""
        given = {name: value for name, value in flags.items() if value is not None}
        measuring = {name: given[name] for name in MEASURING if name in given}
        training = {name: value for name, value in given.items() if name not in MEASURING}
        defaults = {known.name: known.default for known in fields(Train)}
        if not steps and (idle := [name for name, value in training.items() if value != defaults.get(name)]):
            raise ResizeError(f"--{idle[0].replace('_', '-')} belongs to a training.", "Add --steps, or leave it out.")
        training |= {name: measuring[name] for name in COMMON if name in measuring}
        evaluate = Evaluate(training.get("eval_data") or tuple(data), **measuring)
        to = Resize(to).to
        if isinstance(to, int) and to < MIN_LENGTH:
            wrong = f"--to {to} is shorter than any window that is measured."
            raise ResizeError(wrong, f"Give {MIN_LENGTH} or more.")
        if isinstance(to, int) and max(evaluate.length, default=0) > to:
            raise ResizeError(f"--length {max(evaluate.length)} is more than the {to} of --to.", "Give a greater --to.")
        # A method must not be measured on the text by which its best step was chosen.
        train = Train(tuple(data), steps, save="last", **training) if steps else None
        return cls(to, evaluate, read_methods(methods, to), train)

    def evaluate_for(self, kind: str, to: int) -> Evaluate:
        """Return what is measured of a model of a kind at a length: what was asked, and what ranks methods."""
        ranked_by = "retrieval" if kind == ENCODER else "position"
        length, measure = self.evaluate.length, self.evaluate.measure
        return replace(self.evaluate, length=length and (*length, to), measure=measure and (*measure, ranked_by))


def read_methods(typed: Sequence[str], to: int | str) -> tuple[MethodSpec, ...]:
    """Return the methods that were asked for, each once; ``all`` and nothing are every method with its defaults."""
    found: dict[str, MethodSpec] = {}
    for text in typed or [ALL]:
        if text.strip() == ALL:
            for name in METHODS:
                if name != "auto":  # which would be one of them twice
                    found.setdefault(name, MethodSpec(name, Resize(to, method=name), is_named=False))
        else:
            asked, (name, given, _) = Resize(to, method=text), read_method(text)
            shown = method_text(name, given)
            found[shown] = MethodSpec(shown, asked, is_named=True)
    return tuple(found.values())


def compare_model(opened: OpenedModel, settings: Compare, progress: Progress = no_progress) -> Comparison:
    """Compare methods on a checkpoint; see `compare`."""
    with tempfile.TemporaryDirectory() as folder:
        run = open_comparison(opened, settings, Path(folder))
        try:
            with running(run.resized.model.model, settings.evaluate.threads):
                run.measure(progress)
        except KeyboardInterrupt:
            raise ComparisonInterrupted(run.report(complete=False)) from None
        return run.report(complete=True)


class Measurement(NamedTuple):
    """What a candidate gives."""

    evaluation: Evaluation
    scores: tuple[NDArray[np.float64], ...]  # from `EvaluationRun.scores`


@dataclass
class Candidate:
    """A method, as far as it was measured."""

    name: str  # with its settings where any were given
    plan: ResizePlan
    recipe: str  # which makes its checkpoint, YAML
    norms: tuple[float, ...] = ()  # of the rows of its table, shape (m,)
    measured: list[Measurement] = field(default_factory=list)  # as it is made, and once it was trained
    seconds: float = 0.0


@dataclass
class ComparisonRun:
    """Candidates, and what was measured of them so far."""

    files: ModelFiles
    settings: Compare
    resized: ResizedModel
    evaluation: EvaluationRun
    trainer: InMemoryTrainer | None  # None where candidates are not trained
    candidates: list[Candidate]
    left_out: dict[str, str]  # methods that cannot be, with why not
    failures: list[str] = field(default_factory=list)  # of trainings, in words
    started: float = field(default_factory=time.perf_counter)

    def measure(self, progress: Progress) -> None:
        """Let the base read the text, then measure each candidate untrained, then each once it was trained."""
        evaluation = self.evaluation
        per_candidate = evaluation.tokens
        if self.trainer is not None:
            train = self.trainer.task.settings
            per_candidate += evaluation.tokens + train.steps * train.batch_size * self.trainer.task.length
        total = evaluation.base_tokens + len(self.candidates) * per_candidate

        def advance(name: str) -> Callable[[int], None]:
            return lambda tokens: progress(tokens, total, name)

        evaluation.read_base(advance("the base"))
        for trainer in (None, self.trainer) if self.trainer else (None,):
            for candidate in self.candidates:
                began, moved = time.perf_counter(), advance(candidate.name)
                tables = self.resized.set_tables(candidate.plan)
                candidate.norms = _norms(tables[self.files.table], candidate.plan)
                try:
                    with trainer.trained(self.resized, candidate.plan, moved) if trainer else nullcontext():
                        evaluation.measure(moved)
                        candidate.measured.append(Measurement(evaluation.report(complete=True), evaluation.scores))
                except TrainingError as error:  # what was measured of the others is not lost
                    self.failures.append(f"{candidate.name} was not trained to the end: {error}")
                candidate.seconds += time.perf_counter() - began

    def report(self, *, complete: bool) -> Comparison:
        """Return what was measured."""
        model, train, text = self.resized.model, self.settings.train, self.evaluation.text
        rows = rank(self.candidates, METRICS[model.kind])
        found = [outcome.evaluation for row in rows for outcome in (row.untrained, row.trained) if outcome]
        base: list[Estimate] = [one.positions.losses[SLIDING] for one in found if one.positions]
        base = base or [one.retrieval.modes[CHUNKS].reciprocal_rank for one in found if one.retrieval]
        return Comparison(
            source=self.files.ref.source,
            model_type=model.model_type,
            kind=model.kind,
            table=self.files.table,
            max_len_before=self.files.max_len,
            max_len_after=model.max_len,
            metric=METRICS[model.kind],
            base=next(iter(base), None),
            norms=_norms(self.resized.learned[self.files.table], self.candidates[0].plan),
            rows=rows,
            left_out=self.left_out,
            steps=train.steps if train else 0,
            trainable=train.trainable if train else "positions",
            seq_len=self.trainer.task.span if self.trainer else None,
            documents=len(text.documents),
            tokens=sum(map(len, text.windows)),
            seed=self.settings.evaluate.seed,
            precision=str(model.model.dtype).removeprefix("torch."),
            complete=complete,
            seconds=round(time.perf_counter() - self.started, 3),
            warnings=(*dict.fromkeys(warning for one in found for warning in one.warnings), *self.failures),
            notes=self.evaluation.notes,
        )


def open_comparison(opened: OpenedModel, settings: Compare, folder: Path) -> ComparisonRun:
    """Load the model, plan every method, and cut the text; that to train on goes into a folder as tokens."""
    train = settings.train
    check_paths(settings.evaluate.data)
    if train and train.eval_data and (both := shared_texts(train.eval_data, train.data)):
        raise DataError(
            f"{', '.join(map(str, both[:3]))} is named by --data, which is trained on, and by --eval-data, which is "
            "measured on.",
            "Leave --eval-data out: 5 % of --data is then measured on, and not trained on.",
        )
    files = open_files(opened)
    plans, left_out = _plans(files, settings)
    plan = next(iter(plans.values()))
    # What is trained is held in float32, whatever it is computed in.
    base = load_eval_model(files, "fp32" if train else settings.evaluate.precision, settings.evaluate.device)
    evaluate = settings.evaluate_for(base.kind, plan.max_len_after)
    fitting_measures(base, evaluate)
    trains_base = base.kind == ENCODER and train is not None and train.trainable == "all"
    resized = open_resized(base, plan, shares=not trains_base)
    trainer = open_trainer(files, plan, train, base, folder) if train else None
    held_out = trainer.held_out_documents() if trainer else None
    notes = base.notes if held_out is None else (*base.notes, HELD_OUT)
    run = plan_evaluation(resized.model, base, evaluate, held_out, notes=notes)
    if trainer and held_out is not None:
        run.warnings += trainer.task.warnings
    if base.kind == ENCODER and run.retrieval is None:
        reason = next(note for note in run.notes if note.startswith("Retrieval"))
        found = f"Encoders as {base.name} are ranked by the documents they find. {reason}"
        raise DataError(found, "Name more, or longer, text.")
    if (source := opened.checkpoint.source).kind == "hub":  # a row's recipe names the files that were read
        opened = replace(opened, ref=replace(opened.ref, revision=source.revision))
    candidates = [
        Candidate(name, plan, yaml_text(recipe_values(Recipe(opened.ref, plan.recipe_settings, train))))
        for name, plan in plans.items()
    ]
    return ComparisonRun(files, settings, resized, run, trainer, candidates, left_out)


def _plans(files: ModelFiles, settings: Compare) -> tuple[dict[str, ResizePlan], dict[str, str]]:
    """Return what makes each method's tables, and why there is none of some that were not asked for by their names."""
    to = plan_model(files, Resize(settings.to)).max_len_after
    if to <= files.max_len:
        raise ResizeError(
            f"{files.ref.source} reads {files.max_len} tokens already, so that --to {to} asks for no new rows "
            "to compare.",
            f"Compare methods at a greater length: --to {4 * files.max_len}",
        )
    plans, left_out = dict[str, ResizePlan](), dict[str, str]()
    for spec in settings.methods:
        try:
            plans[spec.name] = plan_model(files, spec.resize)
        except ResizeError as error:
            if spec.is_named:
                raise
            left_out[spec.name] = str(error)
    return plans, left_out


def _norms(table: NDArray[Any], plan: ResizePlan) -> tuple[float, ...]:
    """Return the norms of a table's rows from position 0 on."""
    return tuple(norms_and_neighbours(table[plan.tables[0].reserved_rows :])[0].tolist())


def rank(candidates: Sequence[Candidate], metric: str) -> tuple[Row, ...]:
    """Return the candidates that were measured, the best first; those that were not trained yet come last.

    Each is set beside the best of its stage, as it was made or once it was trained.
    """
    mean, sign = (estimate_loss, 1) if metric == LOSS else (estimate, -1)

    def cost(score: Estimate) -> float:
        return sign * score.mean if isfinite(score.mean) else inf  # what is no number comes last

    stages = [[one.measured[stage] for one in candidates if len(one.measured) > stage] for stage in (0, 1)]
    best = [min(stage, key=lambda one: cost(mean(one.scores)), default=None) for stage in stages]

    def outcome(one: Measurement, other: Measurement | None) -> Outcome:
        evaluation, contexts = one.evaluation, one.evaluation.contexts
        pairs = zip(one.scores, other.scores if other else (), strict=True)
        delta = None if one is other else estimate([sign * (own - minimum) for own, minimum in pairs])
        points = contexts.points if contexts else ()
        short = (point.against_base for point in points if point.context == evaluation.base_max_len)
        return Outcome(mean(one.scores), delta, next(short, None), evaluation)

    rows = []
    for one in candidates:
        untrained, trained, *_ = (*map(outcome, one.measured, best), None, None)
        if untrained is not None:
            seconds, keeps = round(one.seconds, 3), one.plan.keeps_learned_rows
            rows.append(Row(one.name, keeps, one.recipe, one.norms, untrained, trained, seconds))
    return tuple(sorted(rows, key=lambda row: (row.trained is None, cost(row.final.score))))
