"""The candidates of a comparison: a plan of each method, and what is measured of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.comparison_settings import read_methods
from ctxextend.errors import MethodError, ResizeError
from ctxextend.lab.eval_model import ResizableFiles
from ctxextend.lab.evaluation_result import Evaluation
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.output import plan_recipe
from ctxextend.plan import Plan, make_plan
from ctxextend.recipe import recipe_values, yaml_text
from ctxextend.settings import Compare, Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA


@dataclass(frozen=True)
class Candidate:
    """A method or a checkpoint that was measured."""

    name: str  # of a method with its settings, if any
    evaluation: Evaluation
    scores: tuple[NDArray[np.float64], ...]  # from `EvaluationRun.scores`
    seconds: float
    keeps_learned_rows: bool = False
    recipe: str = ""  # YAML that reproduces its checkpoint; empty for a checkpoint


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
    plans = {}
    skipped = {}
    for spec in read_methods(settings.method):
        resize = Resize(length, method=spec.method)
        try:
            plans[spec.name] = make_plan(files.opened, resize)
        except ResizeError as error:
            if not spec.can_be_skipped:
                raise
            # A MethodError says that a method is for another position scheme. `formula` is for
            # tables that follow one, and no learned table does so by chance.
            if spec.name != FORMULA and not isinstance(error, MethodError):
                skipped[spec.name] = error.message
    if not plans:
        auto = method_of_auto(files.opened, length)
        message = f"No method that is compared by default applies to {files.ref.source}."
        raise ResizeError(message, f"To measure what auto does, use --method {auto}.")
    return MethodPlans(plans=plans, skipped=skipped, auto=method_of_auto(files.opened, length))


def _new_length(files: ResizableFiles, settings: Compare) -> int:
    plan = make_plan(files.opened, Resize(settings.to))
    length = plan.max_len_after
    before = files.max_len
    if length <= before:
        found = f"{files.name} has a context length of {before} tokens"
        message = f"{found}, so --to {length} changes nothing to compare."
        raise ResizeError(message, f"Use a larger --to, such as --to {4 * before}.")
    return length


def method_of_auto(opened: OpenedModel, to: int | str) -> str:
    """Return the method that `auto` takes for a resize, or ``auto`` if tables differ in it."""
    names = {change.method for change in make_plan(opened, Resize(to)).extended}
    return names.pop() if len(names) == 1 else DEFAULT_METHOD


def method_recipes(methods: MethodPlans) -> dict[str, str]:
    """Return the recipe of the checkpoint of each method, by name."""
    recipes = {}
    for name, plan in methods.plans.items():
        recipes[name] = yaml_text(recipe_values(plan_recipe(plan)))
    return recipes
