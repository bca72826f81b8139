"""What is measured: checkpoints as they are, or methods on one loaded model.

A method is a virtual checkpoint: the loaded model with the tables and settings that `resize` would
write, bit for bit.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.checkpoint.source import public_name
from ctxextend.errors import (
    CheckpointError,
    MethodError,
    ResizeError,
    UnsupportedModelError,
    one_line,
)
from ctxextend.lab import eval_model
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, ModelFiles, ResizableFiles
from ctxextend.lab.evaluation import ModelFacts
from ctxextend.lab.stated_files import StatedFiles
from ctxextend.limits.edits import config_changes
from ctxextend.models.extend import set_config, set_length, to_tensor
from ctxextend.models.load import match_parameters
from ctxextend.output import plan_recipe
from ctxextend.plan import Plan, make_plan
from ctxextend.positions.change import ShortInputs
from ctxextend.positions.positions import nested
from ctxextend.recipe import recipe_values, yaml_text
from ctxextend.settings import Candidates, Evaluate, Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA, MethodChoice
from ctxextend.tables.methods import METHODS, parse_method
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

KIND_NAMES = {
    CAUSAL: "a causal language model",
    MASKED: "a masked language model",
    ENCODER: "an encoder without an LM head",
}
LoadedModel = tuple[ModelFacts, EvalModel]
ROPE_KEY = "rope_parameters"  # of rotary settings in configs of transformers

# ---- checkpoints


def load_checkpoints(files: Sequence[ModelFiles], settings: Evaluate) -> Iterator[LoadedModel]:
    """Load one checkpoint after another.

    Raises:
        CtxextendError: A checkpoint cannot be loaded, or is of another kind than the first.
    """
    kind = ""
    names = short_names([one.name for one in files])
    for one, name in zip(files, names, strict=True):
        model = eval_model.load_eval_model(one, settings.precision, settings.device)
        if kind and model.kind != kind:
            message = (
                f"{one.name} is {KIND_NAMES[model.kind]}, but {files[0].name} is "
                f"{KIND_NAMES[kind]}."
            )
            raise CheckpointError(message, "Evaluate models of one kind together.")
        kind = model.kind
        yield model_facts(name, one, model), model
        model.model.to("meta")  # frees its weights, whatever still refers to it


def short_names(sources: Sequence[str]) -> list[str]:
    """Return names without folders; equal ones are numbered."""
    names = [public_name(source) for source in sources]
    numbered = []
    for index, name in enumerate(names):
        if names.count(name) > 1:
            name = f"{name} ({names[: index + 1].count(name)})"
        numbered.append(name)
    return numbered


def base_name(source: str, names: Collection[str]) -> str:
    """Return the name of a base next to models, or methods, of these names."""
    name = public_name(source)
    return f"{name} (base)" if name in names else name


def model_facts(name: str, files: ModelFiles, model: EvalModel) -> ModelFacts:
    """Return what a loaded checkpoint is."""
    return ModelFacts(
        name=name,
        source=files.name,
        model_type=model.model_type,
        kind=model.kind,
        max_len=model.max_len,
        parameters=model.model.num_parameters(),
    )


@contextmanager
def length_errors(files: ModelFiles | None, length: int) -> Iterator[None]:
    """Convert any error of a block that reads windows with a model that cannot be resized.

    Nothing is known about the positions of such a model, so they may end before the length that is
    stated.

    Raises:
        UnsupportedModelError: The block failed.
    """
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        if not isinstance(files, StatedFiles):
            raise
        message = (
            f"{files.name} cannot read windows of {length} tokens: {type(error).__name__}: "
            f"{one_line(error)}"
        )
        raise UnsupportedModelError(message, "Pass a shorter one: --length N.") from error


# ---- methods


@dataclass(frozen=True)
class MethodPlans:
    """The methods that are measured, all for the same new length."""

    plans: Mapping[str, Plan]  # by name of the method, with its settings
    skipped: Mapping[str, str]  # methods that do not apply, with the reason
    auto: str  # the method that `auto` takes for this resize

    @property
    def max_len(self) -> int:
        """The new context length in positions."""
        return next(iter(self.plans.values())).max_len_after


def plan_methods(files: ResizableFiles, candidates: Candidates) -> MethodPlans:
    """Plan each method that applies; those that were not named are skipped if they do not.

    Raises:
        ResizeError: The new length creates no rows, or no method applies.
        CtxextendError: A named method does not apply.
    """
    to = candidates.to
    assert to is not None
    auto = make_plan(files.opened, Resize(to))
    length = auto.max_len_after
    if length <= files.max_len:
        message = (
            f"{files.name} has a context length of {files.max_len} tokens, so --to {length} "
            "changes nothing to measure."
        )
        raise ResizeError(message, f"Use a larger --to, such as --to {4 * files.max_len}.")
    of_auto = {change.method for change in auto.extended}
    name_of_auto = of_auto.pop() if len(of_auto) == 1 else DEFAULT_METHOD
    named = {str(one): one for one in candidates.method if isinstance(one, MethodChoice)}
    requested = dict(named)
    if len(named) < len(candidates.method) or not named:  # all methods of the registry
        for name in (*METHODS, *ROTARY_METHOD_NAMES):
            if name != DEFAULT_METHOD:  # which chooses one of the others
                requested.setdefault(name, parse_method(name))
    plans = dict[str, Plan]()
    skipped = dict[str, str]()
    for name, method in requested.items():
        try:
            plans[name] = make_plan(files.opened, Resize(length, method=method))
        except ResizeError as error:
            if name in named:
                raise
            # A MethodError says that a method is for another position scheme. `formula` is for
            # tables that follow one, and no learned table does so by chance.
            if name != FORMULA and not isinstance(error, MethodError):
                skipped[name] = error.message
    if not plans:
        message = f"No method that is measured by default applies to {files.ref.source}."
        raise ResizeError(message, f"To measure what auto does, use --method {name_of_auto}.")
    return MethodPlans(plans=plans, skipped=skipped, auto=name_of_auto)


def load_methods(base: ModelFacts, model: EvalModel, methods: MethodPlans) -> Iterator[LoadedModel]:
    """Give a copy of a loaded model the positions of one plan after another.

    The copy shares all but its positions with the model.
    """
    first = next(iter(methods.plans.values()))
    stored = [table.name for table in first.stored]
    names = match_parameters(model.model, first.checkpoint, stored)
    learned = {name: first.checkpoint.weights.read(name) for name in stored}
    shared = {id(value): value for value in model.model.parameters()}
    resized = copy.deepcopy(model.model, shared)
    config = {**resized.config.to_dict(), "model_type": resized.config.model_type}
    for name, plan in methods.plans.items():
        parameters = {}
        for change in plan.stored:
            rows = change.positions.resized(change, learned[change.name])
            current = resized.get_parameter(names[change.name])
            parameters[names[change.name]] = to_tensor(rows).to(current)
        set_length(resized, parameters, _config_values(config, plan))
        facts = replace(
            base,
            name=name,
            max_len=plan.max_len_after,
            keeps_learned_rows=plan.short_inputs is ShortInputs.IDENTICAL,
            recipe=yaml_text(recipe_values(plan_recipe(plan))),
        )
        yield facts, replace(model, model=resized, max_len=plan.max_len_after)


def _config_values(config: Mapping[str, Any], plan: Plan) -> dict[tuple[str, ...], Any]:
    """Return what a plan sets in a model's config, by path of keys.

    All rotary settings and lengths are among them: those of another plan must not remain.
    """
    edits = config_changes(
        config, plan.model.architecture, plan.changes, fix_limits=plan.settings.fix_limits
    )
    edited = copy.deepcopy(dict(config))
    set_config(edited, edits)
    values = dict[tuple[str, ...], Any]()
    for path in edits:  # in their order: transformers sets `rope_parameters` with `rope_scaling`
        end = path.index(ROPE_KEY) + 1 if ROPE_KEY in path else len(path)
        values[path[:end]] = nested(edited, path[:end])
    for change in plan.changes:
        if change.settings:
            for path in change.positions.length_paths:
                values[path] = nested(edited, path)
    return values
