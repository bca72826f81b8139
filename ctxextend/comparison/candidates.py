"""The candidates of a comparison: a plan of each method, and what is measured of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.comparison_result import TuningSteps
from ctxextend.comparison.comparison_settings import CandidateRequest, Compare
from ctxextend.comparison.tuning_settings import check_tunable
from ctxextend.errors import MethodError, ResizeError
from ctxextend.evaluation.eval_model import ResizableFiles
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.evaluation.evaluation_run import EvaluationRun
from ctxextend.output.record import pinned_ref, recorded_settings
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.recipe import Recipe, Resize, Train
from ctxextend.recipe_text import recipe_values, yaml_text
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA
from ctxextend.tables.method_parser import split_tuned


class Measurement(NamedTuple):
    """The evaluation of a candidate at one stage."""

    evaluation: Evaluation
    scores: tuple[NDArray[np.float64], ...]  # from `EvaluationRun.scores`


@dataclass
class Candidate:
    """A method or a checkpoint, and its measurements so far."""

    name: str  # of a method with its settings, if any
    keeps_learned_rows: bool = False
    # YAML that reproduces its checkpoint; empty for a tuned one until its steps are known
    recipe: str = ""
    # Untrained, then trained; a tuned one is measured once.
    measured: list[Measurement] = field(default_factory=list)
    seconds: float = 0.0
    tuned: TuningSteps | None = None  # None if it is not tuned, or not yet

    def add(self, run: EvaluationRun) -> None:
        """Add what a run has measured."""
        self.measured.append(Measurement(run.report(complete=True), run.scores))

    @property
    def untrained(self) -> Measurement | None:
        """The measurement without training; None if it was not measured yet."""
        return self.measured[0] if self.measured else None

    @property
    def trained(self) -> Measurement | None:
        """The measurement after training; None without one."""
        return self.measured[1] if len(self.measured) > 1 else None


@dataclass(frozen=True)
class MethodPlans:
    """The methods that are compared, all for the same new length."""

    plans: Mapping[str, Plan]  # by name of the method, with its settings
    skipped: Mapping[str, str]  # methods that do not apply, with the reason
    auto: str  # the method that `auto` takes for this resize

    @property
    def first(self) -> Plan:
        """The plan of any method."""
        return next(iter(self.plans.values()))

    @property
    def max_len(self) -> int:
        """The new context length in positions."""
        return self.first.max_len_after


def plan_methods(files: ResizableFiles, settings: Compare) -> MethodPlans:
    """Plan each method that applies; skip the others if they can be skipped.

    Raises:
        ResizeError: The new length creates no rows, or no method applies.
        CtxextendError: A method that cannot be skipped does not apply.
    """
    length = _new_length(files, settings)
    plans = dict[str, Plan]()
    skipped = dict[str, str]()
    for spec in settings.methods:
        resize = spec.resize(length)
        try:
            plan = plan_model(files.opened, resize)
            if spec.is_tuned:
                check_tunable(plan, f"Use --method {spec.method}.")
            plans[spec.name] = plan
        except ResizeError as error:
            if not spec.can_be_skipped:
                raise
            if not _is_for_others(spec, error):
                skipped[spec.name] = error.message
    if not plans:
        auto = method_of_auto(files.opened, length)
        message = f"No method that is compared by default applies to {files.ref.source}."
        raise ResizeError(message, f"To measure what auto does, use --method {auto}.")
    return MethodPlans(plans=plans, skipped=skipped, auto=method_of_auto(files.opened, length))


def _is_for_others(spec: CandidateRequest, error: ResizeError) -> bool:
    """Whether a method is for other checkpoints, so that no reason is shown for skipping it.

    A MethodError says that it is for another position scheme. `formula` is for tables that follow
    one, and no learned table does so by chance.
    """
    return spec.name == FORMULA or isinstance(error, MethodError)


def _new_length(files: ResizableFiles, settings: Compare) -> int:
    """Return the context length to resize to.

    Raises:
        ResizeError: It creates no rows.
    """
    plan = plan_model(files.opened, Resize(settings.to))
    length = plan.max_len_after
    before = files.max_len
    if length <= before:
        found = f"{files.name} has a context length of {before} tokens"
        nothing = "creates no new rows to compare"
        if not plan.has_rows:
            nothing = "changes no settings to compare"
        message = f"{found}, so --to {length} {nothing}."
        raise ResizeError(message, f"Use a larger --to, such as --to {4 * before}.")
    return length


def method_of_auto(opened: OpenedModel, to: int | str) -> str:
    """Return the method that `auto` takes for a resize, or ``auto`` if tables differ in it."""
    chosen = plan_model(opened, Resize(to)).choices.values()
    names = {choice.name for choice in chosen}
    return names.pop() if len(names) == 1 else DEFAULT_METHOD


def open_candidates(
    opened: OpenedModel, settings: Compare, methods: MethodPlans
) -> list[Candidate]:
    """Return an unmeasured candidate for each method, with the recipe of its checkpoint."""
    candidates = list[Candidate]()
    for name, plan in methods.plans.items():
        candidate = Candidate(name=name, keeps_learned_rows=plan.keeps_learned_rows)
        if not split_tuned(name)[1]:
            candidate.recipe = recipe_text(opened, recorded_settings(plan), settings.train)
        candidates.append(candidate)
    return candidates


def recipe_text(opened: OpenedModel, resize: Resize, train: Train | None) -> str:
    """Return the recipe that resizes a checkpoint, and then trains it if it is trained."""
    ref = pinned_ref(opened.ref, opened.checkpoint)
    return yaml_text(recipe_values(Recipe(ref, resize=resize, train=train)))
