"""A comparison of methods on one loaded model: what it needs, and its results so far."""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.comparison.candidates import (
    Candidate,
    MethodPlans,
    open_candidates,
    plan_methods,
    recipe_text,
)
from ctxextend.comparison.comparison_result import Comparison, SettingsSearch, TuningSteps
from ctxextend.comparison.comparison_settings import Compare, TunedText
from ctxextend.comparison.in_memory import (
    InMemoryResizer,
    InMemoryTrainer,
    open_resizer,
    open_trainer,
    open_training,
)
from ctxextend.comparison.metrics import choose_metric
from ctxextend.comparison.ranking import check_ranked, measured_comparison
from ctxextend.comparison.search_settings import (
    SearchRequest,
    UnseenWindows,
    free_settings,
    read_windows,
    search_on_windows,
)
from ctxextend.comparison.tuning_settings import (
    open_tuning,
    rows_to_tune,
    tuning_settings,
)
from ctxextend.comparison.yarn_search import FEWEST_WINDOWS
from ctxextend.errors import DataError, ResizeError, TrainingError
from ctxextend.evaluation.embedding import last_states
from ctxextend.evaluation.eval_model import (
    ENCODER,
    EvalModel,
    ResizableFiles,
    load_eval_model,
    open_files,
)
from ctxextend.evaluation.evaluate import check_start
from ctxextend.evaluation.evaluation_result import TRUNCATED, little_text
from ctxextend.evaluation.evaluation_run import (
    EvaluationRun,
    applicable_measures,
    plan_evaluation,
)
from ctxextend.evaluation.losses import LossTask
from ctxextend.evaluation.search_set import read_search_set
from ctxextend.held_out import Ids, shared_texts, split_documents
from ctxextend.models.devices import torch_threads
from ctxextend.output.record import recorded_settings
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Resize
from ctxextend.tables.method_parser import split_tuned
from ctxextend.tables.open_settings import OPEN_IN
from ctxextend.training.training_source import check_libraries

if TYPE_CHECKING:
    from ctxextend.training.training_task import TrainingTask

HELD_OUT_NOTE = (
    "Methods are evaluated on windows held out of --data, about 5 % of it, and trained on the "
    "rest. Pass --eval-data to evaluate on other text."
)
TUNED_NOTE = (
    "All methods are evaluated on windows held out of --data, and those with +tuned are trained on "
    "the rest. Pass --eval-data to evaluate on other text."
)
MIN_WINDOWS = 2  # of a quick comparison


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C during a comparison; `comparison` has the results so far, with `complete` False."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


def compare_model(
    opened: OpenedModel, settings: Compare, progress: Progress = no_progress
) -> Comparison:
    """Compare methods on an opened checkpoint.

    Raises:
        CtxextendError: As `compare`.
        ComparisonInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = open_comparison(opened, settings, Path(folder))
        try:
            with torch_threads(run.resizer.model.model, settings.evaluate.threads):
                run.measure(progress)
        except KeyboardInterrupt:
            raise ComparisonInterrupted(run.report(complete=False)) from None
        return run.report(complete=True)


@dataclass
class ComparisonRun:
    """Candidates and their results so far."""

    files: ResizableFiles
    settings: Compare  # with what is trained filled in
    methods: MethodPlans
    resizer: InMemoryResizer
    evaluation: EvaluationRun
    trainer: InMemoryTrainer | None  # None: no training
    tuner: InMemoryTrainer | None  # of tuned candidates; None: there are none
    candidates: list[Candidate]
    search_windows: Sequence[Ids] = ()  # that search settings and rank nothing
    searches: list[SettingsSearch] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # messages of failed training runs
    tuning_tokens: int = 0  # that the tuned candidates so far have been trained on
    started: float = field(default_factory=time.perf_counter)

    @property
    def tokens(self) -> int:
        """The number of tokens that the base, all candidates and their training read."""
        each = self.evaluation.tokens
        if self.trainer is not None:
            each += self.evaluation.tokens + self.trainer.tokens
        total = self.evaluation.base_tokens + len(self.candidates) * each
        return total + self.tuning_tokens

    def measure(self, progress: Progress) -> None:
        """Search settings, run the base, then evaluate each candidate untrained, then trained.

        Tuned candidates come last: they take longest.
        """
        self._search_settings(progress)
        total = self.tokens

        def advance(name: str) -> Callable[[int], None]:
            return lambda tokens: progress(tokens, total + self.tuning_tokens, name)

        self.evaluation.run_base(advance("the base"))
        for candidate in self.candidates:
            if not _is_tuned(candidate):
                self._measure_untrained(candidate, advance(candidate.name))
        if self.trainer is not None:
            for candidate in self.candidates:
                self._measure_trained(candidate, self.trainer, advance(candidate.name))
        for candidate in self.candidates:
            if _is_tuned(candidate):
                self._measure_tuned(candidate, advance(candidate.name))

    def _search_settings(self, progress: Progress) -> None:
        """Search settings that methods leave open; what is better becomes a candidate too."""
        seconds = self.settings.search_seconds
        if seconds is None:
            return
        plans = [plan for plan in self.methods.plans.values() if _is_searched(plan)]
        for plan in plans:
            progress(0, self.tokens, f"settings of {plan.method}")
            request = SearchRequest(plan=plan, budget=seconds, available=seconds / len(plans))
            found = search_on_windows(
                request, self.resizer, lambda count: self.search_windows[:count]
            )
            self.searches.append(found)
            if found.is_better and found.method not in self.methods.plans:
                self._add(found.method)

    def _add(self, method: str) -> None:
        """Add a method with settings to the candidates."""
        opened = self.files.opened
        plan = plan_model(opened, Resize(self.methods.max_len, method=method))
        added = replace(self.methods, plans={method: plan})
        self.candidates += open_candidates(opened, self.settings, added)
        self.methods = replace(self.methods, plans={**self.methods.plans, method: plan})

    def _measure_untrained(self, candidate: Candidate, advance: Callable[[int], None]) -> None:
        started = time.perf_counter()
        self.resizer.set_positions(self.methods.plans[candidate.name])
        self.evaluation.measure(advance)
        candidate.add(self.evaluation)
        candidate.seconds += time.perf_counter() - started

    def _measure_trained(
        self, candidate: Candidate, trainer: InMemoryTrainer, advance: Callable[[int], None]
    ) -> None:
        started = time.perf_counter()
        plan = self.methods.plans[candidate.name]
        self.resizer.set_positions(plan)
        try:
            with trainer.trained(self.resizer, plan, advance):
                self.evaluation.measure(advance)
                candidate.add(self.evaluation)
        except TrainingError as error:  # one failed training must not lose the other results
            self.failures.append(f"Training failed for {candidate.name}: {error}")
        candidate.seconds += time.perf_counter() - started

    def _measure_tuned(self, candidate: Candidate, advance: Callable[[int], None]) -> None:
        """Train the table of a candidate for the time of the budget, and evaluate it."""
        from ctxextend.training.time_limit import TimeTooShortError

        tuned = self.settings.tuned
        assert tuned is not None
        assert self.tuner is not None

        def advance_training(tokens: int) -> None:
            self.tuning_tokens += tokens  # how many there will be is not known before
            advance(tokens)

        started = time.perf_counter()
        plan = self.methods.plans[candidate.name]
        trainer = self.tuner.of_rows(rows_to_tune(plan))
        self.resizer.set_positions(plan)
        deadline = started + tuned.seconds
        try:
            with trainer.trained(self.resizer, plan, advance_training, deadline) as train:
                seconds = time.perf_counter() - started
                candidate.tuned = TuningSteps(
                    steps=train.steps, seconds=round(seconds, 3), budget=tuned.seconds
                )
                resize = recorded_settings(plan)
                candidate.recipe = recipe_text(self.files.opened, resize, train)
                self.evaluation.measure(advance)
                candidate.add(self.evaluation)
        except TimeTooShortError as error:
            needed = math.ceil(time.perf_counter() - started + error.seconds)
            self.failures.append(
                f"{candidate.name} was not measured: training takes {needed:,} seconds or more, "
                f"and --budget is {tuned.seconds:,}."
            )
        except TrainingError as error:  # one failed training must not lose the other results
            self.failures.append(f"Training failed for {candidate.name}: {error}")
        candidate.seconds += time.perf_counter() - started

    def report(self, *, complete: bool) -> Comparison:
        """Return the results so far."""
        model = self.resizer.model
        settings = self.settings
        comparison = measured_comparison(
            self.candidates,
            choose_metric(model.kind, settings.evaluate),
            self.evaluation,
            self.started,
            source=self.files.name,
            model_type=model.model_type,
            table=self.files.table_name,
            max_len_before=self.files.max_len,
            max_len_after=model.max_len,
        )
        comparison = replace(
            comparison,
            is_quick=settings.is_quick,
            auto=self.methods.auto,
            skipped=self.methods.skipped,
            complete=complete,
            searches=tuple(self.searches),
            warnings=(*comparison.warnings, *self.failures),
        )
        if settings.train is not None and self.trainer is not None:
            comparison = replace(
                comparison,
                steps=settings.train.steps,
                trainable=str(settings.train.trainable),
                seq_len=self.trainer.task.span,
            )
        if comparison.rows:
            comparison = replace(comparison, next_command=self._next_command(comparison))
        return comparison

    def _next_command(self, comparison: Comparison) -> str:
        """Return the command that resizes the checkpoint by the recommended method."""
        method, is_tuned = split_tuned(comparison.recommended)
        to = self.methods.max_len
        tuned = self.settings.tuned
        if is_tuned and tuned is not None:
            return self.files.ref.resize_command(
                to=to, method=method, data=tuned.data, budget=tuned.seconds
            )
        return self.files.ref.resize_command(to=to, method=method)


def open_comparison(opened: OpenedModel, settings: Compare, folder: Path) -> ComparisonRun:
    """Plan each method, load the model, cut the text, and tokenize training text into a folder.

    Raises:
        CtxextendError: As `compare`.
    """
    _check_text(settings)
    search_set = read_search_set(settings.evaluate)
    files = open_files(opened)
    methods = plan_methods(files, settings)
    _check_search(settings, methods)
    settings, notes = _choose_trainable(files, settings)
    tuning_task = None
    if settings.tuned is not None:
        tuning_task = _open_tuning(files, settings.tuned, methods, folder)

    base = _load_base(files, settings)
    evaluate = settings.evaluate_for(base.kind, methods.max_len)
    applicable_measures(base, evaluate)
    resizer = open_resizer(base, methods.first, shares=not _is_trained_teacher(base, settings))
    trainer = None
    if settings.train is not None:
        task = open_training(files, methods.first, settings.train, folder)
        trainer = open_trainer(task, base, folder)
    tuner = None
    if tuning_task is not None:
        tuner = open_trainer(tuning_task, base, folder)

    documents: Sequence[Ids] | None = None
    in_use = trainer or tuner
    if in_use is not None and search_set is None and not in_use.task.settings.eval_data:
        documents = split_documents(in_use.held_out_windows, files.tokenizer.separator)
        notes = (*notes, HELD_OUT_NOTE if tuner is None else TUNED_NOTE)
    search_windows: Sequence[Ids] = ()
    unseen: UnseenWindows | None = None
    if settings.search_seconds is not None:
        unseen = read_windows(files, evaluate, methods.max_len, 2 * FEWEST_WINDOWS)
        search_windows = unseen.text.windows[1::2]
        documents = unseen.text.windows[::2]
    notes = (*base.notes, *notes)
    advice = little_text(methods.auto)
    evaluation = plan_evaluation(
        resizer.model,
        base,
        evaluate,
        documents,
        search_set=search_set,
        short_hint=f"Pass more text with --data, or use a smaller --to. {advice}",
        notes=notes,
    )
    if unseen is not None:
        evaluation.warnings += unseen.warnings
        evaluation.text = replace(unseen.text, windows=evaluation.text.windows)
    if in_use is not None and documents is not None:
        evaluation.warnings += in_use.task.warnings
    check_ranked(evaluation, advice)

    if settings.seconds is not None:
        tokens = _affordable_tokens(evaluation, len(methods.plans), settings.seconds)
        evaluation = _plan_quick_evaluation(evaluation, tokens, notes)
    return ComparisonRun(
        files=files,
        settings=settings,
        methods=methods,
        resizer=resizer,
        evaluation=evaluation,
        trainer=trainer,
        tuner=tuner,
        candidates=open_candidates(opened, settings, methods),
        search_windows=search_windows,
    )


def _check_search(settings: Compare, methods: MethodPlans) -> None:
    """Raise ResizeError if settings are to be searched, and no method leaves any open."""
    if settings.search_seconds is None:
        return
    if not any(_is_searched(plan) for plan in methods.plans.values()):
        names = " and ".join(OPEN_IN)
        message = f"--tune searches settings of {names}, and none is compared without its settings."
        raise ResizeError(message, f"Add --method {next(iter(OPEN_IN))}, or remove --tune.")


def _is_searched(plan: Plan) -> bool:
    """Whether settings of a method are searched: those that are given are compared as they are."""
    return plan.method in OPEN_IN and free_settings(plan) == OPEN_IN[plan.method]


def _check_text(settings: Compare) -> None:
    """Check text and libraries before any library is imported.

    Raises:
        DataError: Text does not exist, or is both trained on and evaluated on.
        TrainingError: A library that training needs is not installed.
        CtxextendError: As `check_start`.
    """
    check_start(settings.evaluate)
    trained = settings.train or settings.tuned
    if trained is None:
        return
    check_libraries(settings.train)
    if not trained.eval_data:
        return
    shared = shared_texts(trained.eval_data, trained.data)
    if shared:
        names = ", ".join(map(str, shared[:3]))
        message = f"{names} is passed to both --data (training) and --eval-data (evaluation)."
        hint = "Remove --eval-data to evaluate on 5 % of --data, held out of training."
        raise DataError(message, hint)


def _choose_trainable(files: ResizableFiles, settings: Compare) -> tuple[Compare, tuple[str, ...]]:
    """Fill in what is trained, the same for all methods; also return notes."""
    from ctxextend.training.trainable_setting import choose_trainable

    if settings.train is None:
        return settings, ()
    train, notes = choose_trainable(files, settings.train)
    return replace(settings, train=train), notes


def _open_tuning(
    files: ResizableFiles, tuned: TunedText, methods: MethodPlans, folder: Path
) -> "TrainingTask":
    """Tokenize the text that tables are trained on, before the model is loaded.

    Raises:
        TrainingError: Tables cannot be trained.
        DataError: The text cannot be read, or is too short.
    """
    plans = [plan for name, plan in methods.plans.items() if split_tuned(name)[1]]
    train = replace(
        tuning_settings(plans[0], tuned.data, files.stated_kind),
        eval_data=tuned.eval_data,
        device=tuned.device,
        threads=tuned.threads,
    )
    return open_tuning(files, plans[0], train, folder)


def _is_tuned(candidate: Candidate) -> bool:
    return split_tuned(candidate.name)[1]


def _load_base(files: ResizableFiles, settings: Compare) -> EvalModel:
    # Training keeps weights in float32, whatever --precision is.
    is_training = settings.train is not None or settings.tuned is not None
    precision = "fp32" if is_training else settings.evaluate.precision
    return load_eval_model(files, precision, settings.evaluate.device)


def _is_trained_teacher(base: EvalModel, settings: Compare) -> bool:
    """Whether training changes weights of the base while an encoder is distilled from it."""
    return base.kind == ENCODER and settings.train is not None and settings.train.trains_weights


def _affordable_tokens(run: EvaluationRun, candidates: int, seconds: float) -> int:
    """Return how much text the base and all candidates can read in a time, from one pass."""
    import torch

    model = run.model
    task = run.tasks[0]
    windows = len(run.text.windows)
    ids = model.tokenizer.add_special_tokens(run.text.windows[0])
    inputs = torch.from_numpy(ids)[None].to(model.model.device)
    with torch_threads(model.model, run.settings.threads), torch.inference_mode():
        started = time.perf_counter()
        last_states(model, inputs)
        seconds_per_token = (time.perf_counter() - started) / len(ids)
    tokens_per_window = (task.base_tokens + candidates * task.tokens) / windows
    affordable = max(seconds / seconds_per_token / tokens_per_window, MIN_WINDOWS)
    return int(min(affordable * len(ids), run.settings.tokens))


def _plan_quick_evaluation(full: EvaluationRun, tokens: int, notes: Sequence[str]) -> EvaluationRun:
    """Return an evaluation with so many tokens of text that only measures what ranks methods."""
    settings = replace(full.settings, tokens=tokens)
    run = plan_evaluation(full.model, full.base, settings, notes=notes)
    if tokens < full.settings.tokens and run.text.limited_by == "tokens":
        run.text = replace(run.text, limited_by="time")
    task = run.tasks[0]
    if isinstance(task, LossTask):
        task.modes = [mode for mode in task.modes if mode.key.name != TRUNCATED]
    run.tasks = (task,)
    return run
