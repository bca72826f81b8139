"""A comparison as it goes on: which methods there are, and what was measured of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ctxextend.comparison.extended import Extended, Table
from ctxextend.comparison.measuring import (
    Base,
    base_tokens,
    measure,
    metric_of,
    original_score,
    own_tokens,
    read_base,
)
from ctxextend.comparison.pupil import Pupil, check_training_texts
from ctxextend.comparison.ranking import Standing, rank
from ctxextend.comparison.reports import Comparison
from ctxextend.comparison.settings import Compare
from ctxextend.errors import DataError, ResizeError, TrainingError
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, ModelFiles, load_eval_model, open_files
from ctxextend.evaluation.evaluate import EvaluationRun, fitting_measures, plan_evaluation
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.recipe import Recipe
from ctxextend.recipetext import plain_text, recipe_values
from ctxextend.text_data import check_paths

__all__ = ["Contest", "open_contest"]

# Told how many tokens were read since the last call, how many there will be, and what is read them by.
Progress = Callable[[int, int, str], None]

HELD_OUT = (
    "Methods are measured on the last twentieth of what is read of --data, and trained on the rest; name other text to "
    "measure on with --eval-data."
)


@dataclass
class Contest:
    """Methods, and what was measured of them so far.

    Attributes:
        files: What is known of the model.
        settings: How methods are compared.
        extended: The model at its new length.
        run: What is measured, on what.
        pupil: How methods are trained; None where they are not.
        plans: What makes each method's tables, by the method.
        standings: The methods.
        left_out: Methods that cannot be, with why not.
        base: What the original gives.
        failures: What should be known of methods that could not be trained.
        started: Seconds of the clock when it began.
    """

    files: ModelFiles
    settings: Compare
    extended: Extended
    run: EvaluationRun
    pupil: Pupil | None
    plans: dict[str, ResizePlan]
    standings: list[Standing]
    left_out: dict[str, str]
    base: Base = field(default_factory=Base)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def tokens_to_read(self) -> int:
        """Tokens that are read and trained on in all."""
        own, learned = own_tokens(self.run), self.pupil.tokens if self.pupil else 0
        return base_tokens(self.run) + len(self.standings) * (own + (own + learned if self.pupil else 0))

    def measure(self, progress: Progress) -> None:
        """Let the original read the text, then each method as it is made, then each once it was trained."""
        total = self.tokens_to_read
        self.base = read_base(self.run, lambda tokens: progress(tokens, total, "the original"))
        for standing in self.standings:
            with self._in_turn(standing) as tables:
                standing.norms = _norms(tables[self.files.table], self.plans[standing.asked.name])
                standing.untrained = measure(self.run, self.base, _telling(progress, total, standing))
        for standing in self.standings if self.pupil else ():
            with self._in_turn(standing):
                self._train(standing, _telling(progress, total, standing))

    def _train(self, standing: Standing, progress: Callable[[int], None]) -> None:
        """Train a method and measure it; where that fails, what was measured of the others is not lost."""
        if self.pupil is None:
            return
        name, reader, names = standing.asked.name, self.extended.reader, self.extended.names
        try:
            with self.pupil.taught(reader, names, self.plans[name], progress):
                standing.trained = measure(self.run, self.base, progress)
        except TrainingError as error:
            self.failures.append(f"{name} was not trained to the end: {error}")

    @contextmanager
    def _in_turn(self, standing: Standing) -> Iterator[dict[str, Table]]:
        """Put a method's tables into the model, and count the time until the block is done."""
        began = time.perf_counter()
        tables = self.extended.made_by(self.plans[standing.asked.name])
        self.extended.put(tables)
        yield tables
        standing.seconds += time.perf_counter() - began

    def report(self, *, complete: bool) -> Comparison:
        """Return what was measured."""
        metric, train, text = metric_of(self.run), self.settings.train, self.run.text
        rows = rank(self.standings, metric)
        plan = next(iter(self.plans.values()))
        found = [outcome.evaluation for row in rows for outcome in (row.untrained, row.trained) if outcome]
        return Comparison(
            source=self.files.ref.source,
            family=self.extended.reader.family,
            kind=self.extended.reader.kind,
            table=self.files.table,
            max_len_before=self.files.max_len,
            max_len_after=self.extended.reader.max_len,
            metric=metric,
            original=original_score(self.run, self.base),
            norms=_norms(self.extended.before[self.files.table], plan),
            rows=rows,
            left_out=self.left_out,
            steps=train.steps if train else 0,
            trainable=train.trainable if train else "positions",
            seq_len=self.pupil.opened.span if self.pupil else None,
            documents=len(text.documents),
            tokens=sum(map(len, text.windows)),
            seed=self.settings.evaluate.seed,
            precision=str(self.extended.reader.model.dtype).removeprefix("torch."),
            complete=complete,
            seconds=round(time.perf_counter() - self.started, 3),
            warnings=(*dict.fromkeys(warning for one in found for warning in one.warnings), *self.failures),
            notes=self.run.notes,
        )


def open_contest(opened: OpenedModel, settings: Compare, folder: Path) -> Contest:
    """Load the model, plan every method, and cut the text.

    Args:
        opened: The model.
        settings: How methods are compared.
        folder: Where the text to train on goes as tokens.

    Raises:
        CtxextendError: As `compare`.
    """
    check_paths(settings.evaluate.data)
    if settings.train is not None:
        check_training_texts(settings.train)
    files = open_files(opened)
    plans, left_out = _plans(files, settings)
    plan = next(iter(plans.values()))
    # What is trained is held in float32, whatever it is computed in.
    original = load_eval_model(files, "fp32" if settings.train else settings.evaluate.precision)
    measured = settings.measured(original.kind)
    fitting_measures(original, measured)
    is_taught = original.kind == ENCODER and settings.train is not None and settings.train.trainable == "all"
    extended = Extended.of(original, plan, shares=not is_taught)
    pupil = Pupil.of(files, plan, settings.train, original, folder) if settings.train else None
    notes = (*original.notes, *([HELD_OUT] if pupil and not pupil.opened.settings.eval_data else []))
    run = plan_evaluation(extended.reader, original, measured, pupil.left_out if pupil else None, notes=notes)
    _check_ranked(run, original)
    standings = [
        Standing(asked, _recipe(made, settings), keeps_learned_rows=made.keeps_learned_rows)
        for asked in settings.asked
        if (made := plans.get(asked.name)) is not None
    ]
    return Contest(files, settings, extended, run, pupil, plans, standings, left_out)


def _plans(files: ModelFiles, settings: Compare) -> tuple[dict[str, ResizePlan], dict[str, str]]:
    """Return what makes each method's tables, and why there is none of some that were not asked for by their names.

    Raises:
        ResizeError: The length is none that any method could give, or a method that was named cannot give it.
    """
    name = files.ref.source
    if settings.to <= files.max_len:
        raise ResizeError(
            f"{name} reads {files.max_len} tokens already, so that --to {settings.to} asks for no new rows to compare.",
            f"Compare methods at a greater length: --to {4 * files.max_len}",
        )
    plans, left_out = dict[str, ResizePlan](), dict[str, str]()
    for asked in settings.asked:
        try:
            plans[asked.name] = plan_model(files.opened, asked.resize)
        except ResizeError as error:
            if asked.is_named:
                raise
            left_out[asked.name] = str(error)
    if not plans:
        raise ResizeError(next(iter(left_out.values())))
    return plans, left_out


def _check_ranked(run: EvaluationRun, original: EvalModel) -> None:
    """Refuse a comparison in which nothing would tell methods apart.

    Raises:
        DataError: Documents are too few or too short for an encoder.
    """
    if run.losses is None and run.retrieval is None:
        why = next((note for note in run.notes if note.startswith("Retrieval")), "Retrieval cannot be measured.")
        raise DataError(
            f"Encoders as {original.name} are ranked by the documents they find. {why}", "Name more, or longer, text."
        )


def _recipe(plan: ResizePlan, settings: Compare) -> str:
    """Return the recipe by which `run` makes a method's checkpoint."""
    source, ref = plan.checkpoint.source, plan.ref
    if source.kind == "hub":
        ref = replace(ref, revision=source.revision)
    return plain_text(recipe_values(Recipe(ref, plan.settings, settings.train)))


def _norms(table: Table, plan: ResizePlan) -> tuple[float, ...]:
    """Return the norms of a table's rows from position 0 on."""
    rows = table[plan.tables[0].offset :].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return tuple(np.linalg.norm(rows, axis=1).tolist())


def _telling(progress: Progress, total: int, standing: Standing) -> Callable[[int], None]:
    return lambda tokens: progress(tokens, total, standing.asked.name)
