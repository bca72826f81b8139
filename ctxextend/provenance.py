"""The provenance of an output: what its recipe records about how it was created."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    RecipeError,
    ResizeError,
    one_line,
)
from ctxextend.kinds import MAX_CONTEXT, Factor
from ctxextend.recipe import YAML_ERRORS, Recipe, RecipeFile, parse_recipe, parse_yaml, yaml_text
from ctxextend.settings import TRAINABLE, CheckpointRef, Convert, Resize
from ctxextend.tables.apply import learned_rows_after
from ctxextend.tables.method_facts import TRUNCATE, MethodChoice
from ctxextend.tables.methods import METHODS, parse_method

# What the recipe of an output records of each earlier step, besides its settings.
STEP_FACTS = ("source_fingerprint", "method", "max_len_before", "tables")
TRAINED_FACTS = ("adapted", "saved_step")
SAME_LENGTH = Factor(Fraction(1))


class Step(NamedTuple):
    """What one command made of a checkpoint, according to its recipe."""

    source: CheckpointRef  # the checkpoint that was resized, converted or trained
    settings: Resize  # how it was resized; after training only, to its own length
    is_resize: bool = True  # whether it was resized or converted, and not only trained
    convert: Convert | None = None  # how it was converted, if it was
    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    method: str | None = None  # the (first) method that created rows; None if it is not known
    # The name of a method that is not registered; `settings` has another one, and rows cannot be
    # reproduced.
    unregistered: str | None = None
    methods: Mapping[str, MethodChoice] = {}  # per table, if they differ
    # Per table, before and after, if recorded.
    rows: Mapping[str, tuple[int, int]] = {}
    fingerprint: str | None = None  # of the source; see `Weights.fingerprint`
    written: Mapping[str, str] = {}  # SHA-256 of each written table
    max_len_before: Any = None  # the length before a conversion, as recorded


class Provenance(NamedTuple):
    """How an output was created since its base, according to its recipe."""

    steps: tuple[Step, ...]  # the first one read the base
    values: Mapping[str, Any]  # all values of the recipe

    @property
    def resize(self) -> Step:
        """The step that resized or converted the base; the first one if none did."""
        return first_resize(self.steps)

    @property
    def trainable(self) -> str | None:
        """What was trained since the base: one of `TRAINABLE`, or None."""
        return trained_by(self.steps)

    def steps_since(self, fingerprint: str) -> tuple[Step, ...]:
        """Return the steps since the first one whose source has a fingerprint; all if none has it.

        A resize that writes only settings keeps the fingerprint.
        """
        for index, step in enumerate(self.steps):
            if step.fingerprint == fingerprint:
                return self.steps[index:]
        return self.steps


def first_resize(steps: Sequence[Step]) -> Step:
    """Return the first step that resized or converted; the first of all if none did."""
    for step in steps:
        if step.is_resize:
            return step
    return steps[0]


def trained_by(steps: Iterable[Step]) -> str | None:
    """Return what some steps trained together, as one of `TRAINABLE`, or None."""
    trained = {step.trainable for step in steps if step.trainable}
    if len(trained) > 1 and "all-but-positions" in trained:
        return "all"
    return max(trained, key=[*TRAINABLE].index, default=None)


class BaseCheckpoint(NamedTuple):
    """The base checkpoint of a resized or trained one."""

    ref: CheckpointRef
    fingerprint: str | None = None  # the expected one of its weights
    provenance: Provenance | None = None  # None if the user named the base


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe of a checkpoint; None if it is missing or cannot be read."""
    if checkpoint.recipe is None:
        return None
    with suppress(RecipeError):
        return parse_provenance(checkpoint.recipe, RECIPE_FILE, checkpoint.root)
    return None


def find_base(
    provenance: Provenance | None, named: str | None, tokenizer: str | None = None
) -> BaseCheckpoint | None:
    """Return the base that the user named, or the one in a checkpoint's recipe.

    Args:
        provenance: What the checkpoint's recipe records, if anything.
        named: The base that the user named.
        tokenizer: The tokenizer that the user named; it replaces that of the base.
    """
    if named is not None:
        # As the first step read the base.
        read = provenance.steps[0].source if provenance else CheckpointRef(named)
        ref = CheckpointRef(
            source=named,
            tokenizer=tokenizer,
            model_type=read.model_type,
            trained_length=read.trained_length,
        )
        return BaseCheckpoint(ref)
    if provenance is None:
        return None
    first = provenance.steps[0]
    tokenizers = (tokenizer, *(step.source.tokenizer for step in provenance.steps[::-1]))
    ref = replace(first.source, tokenizer=next(filter(None, tokenizers), None))
    return BaseCheckpoint(ref, first.fingerprint, provenance)


def check_source(checkpoint: Checkpoint, ref: CheckpointRef, fingerprint: str | None) -> None:
    """Check weights against the fingerprint in a recipe, if it records one.

    Raises:
        CheckpointError: The weights differ.
    """
    if fingerprint is not None and checkpoint.weights.fingerprint() != fingerprint:
        raise CheckpointError(
            f"{ref.source} has changed since the recipe was written.",
            "Restore its weights, or use the changed ones: add --set provenance=null (run) or "
            "--base (train).",
        )


def trainings(provenance: Provenance) -> list[Mapping[str, Any]]:
    """Return which text each training run used, as far as a checkpoint's recipe records it.

    See `trained_texts` for their form.
    """
    facts = provenance.values.get("provenance") or {}
    train = provenance.values.get("train") or {}
    runs = list[Mapping[str, Any]]()
    trained = facts.get("trained")
    if isinstance(trained, Mapping):
        text = {name: trained[name] for name in ("data", "held_out") if name in trained}
        runs.append({"text_field": train.get("text_field", "text"), **text})
    earlier = facts.get("source_trainings")
    if isinstance(earlier, list):
        runs += earlier
    return runs


def earlier_steps(provenance: Provenance) -> list[dict[str, Any]]:
    """Return the steps that made a source, oldest first, as the recipe of its output lists them.

    Each has the settings in its recipe, and those of its facts that are read again.
    """
    values = dict(provenance.values)
    facts = values.pop("provenance", {})
    steps = facts.get("steps", [])
    step = {key: value for key, value in values.items() if key not in ("evaluate", "output")}
    step["provenance"] = {key: facts[key] for key in STEP_FACTS if key in facts}
    trained = facts.get("trained")
    if trained:
        kept = {key: trained[key] for key in TRAINED_FACTS if key in trained}
        step["provenance"]["trained"] = kept
    return [*steps, step]


def parse_provenance(text: str, name: str, folder: Path | None = None) -> Provenance:
    """Parse the recipe of an output, which is untrusted.

    Args:
        text: The recipe.
        name: What error messages call it.
        folder: See `parse_recipe`.

    Raises:
        RecipeError: It is not a valid recipe of an output.
    """
    try:
        file, unregistered = _parse(text, name, folder)
        steps = list[Step]()
        for values in file.provenance.get("steps", []):
            steps.append(step_of(*_parse(yaml_text(values), name)))
        steps.append(step_of(file, unregistered))
    except (*YAML_ERRORS, CtxextendError) as error:
        message = f"{name} is not a valid recipe of an output: {one_line(error)}"
        raise RecipeError(message, "Create the output again, or remove that file.") from None
    return Provenance(tuple(steps), file.values)


def _parse(text: str, name: str, folder: Path | None = None) -> tuple[RecipeFile, str | None]:
    """Parse a recipe, and return its method if that is not registered.

    Such a recipe gets a method that keeps no learned rows.
    """
    try:
        return parse_recipe(text, name, folder=folder), None
    except RecipeError as error:
        stated = dict(parse_yaml(text, name))
        for section in ("resize", "convert"):
            key = f"{section}.method"
            if key in stated:
                method = str(stated[key].value)
                with suppress(RecipeError):  # something else is wrong
                    file = parse_recipe(text, name, [f"{key}=linear"], folder=folder)
                    file.values[section]["method"] = method
                    return file, method
        raise error


def step_of(file: RecipeFile, unregistered: str | None = None) -> Step:
    """Return what a recipe records.

    Args:
        file: The recipe.
        unregistered: Its method, if that is not registered.

    Raises:
        RecipeError: Its provenance is malformed.
    """
    recipe = file.recipe
    facts = file.provenance
    settings = recipe.resize
    if recipe.convert is not None:
        settings = Resize(recipe.convert.to or SAME_LENGTH, method=recipe.convert.method)
    methods = dict[str, MethodChoice]()
    rows = dict[str, tuple[int, int]]()
    written = dict[str, str]()
    try:
        # The recipe's method may have been changed since.
        is_current = recipe.resize is not None and (
            stated_method(recipe.resize.method) == facts.get("method")
        )
        for table in facts.get("tables", []):
            name = str(table["name"])
            rows[name] = (table["rows_before"], table["rows_after"])
            if not all(type(count) is int and 0 <= count <= MAX_CONTEXT for count in rows[name]):
                raise ValueError("rows_before and rows_after must be numbers of rows")
            if is_current and "method" in table:
                methods[name] = parse_method(str(table["method"]))
            if "sha256" in table:
                written[name] = str(table["sha256"])
        trainable, adapted = _trained_parts(recipe, facts.get("trained") or {})
        method: str | None = str(facts.get("method")).partition(":")[0]
        if not unregistered and method not in (*METHODS, TRUNCATE):
            method = next((choice.name for choice in methods.values()), None)
        fingerprint = None
        if facts.get("source_fingerprint") is not None:
            fingerprint = str(facts["source_fingerprint"])
        return Step(
            source=recipe.checkpoint,
            settings=settings or Resize(SAME_LENGTH),
            is_resize=settings is not None,
            convert=recipe.convert,
            trainable=trainable,
            adapted=adapted,
            method=method,
            unregistered=unregistered,
            methods=methods,
            rows=rows,
            fingerprint=fingerprint,
            written=written,
            max_len_before=facts.get("max_len_before"),
        )
    except YAML_ERRORS as error:
        raise RecipeError(f"its provenance is malformed: {one_line(error)}") from None


def stated_method(method: MethodChoice | None) -> str | None:
    """Return a method as recipes state it."""
    if method is None:
        return None
    return method.text


def _trained_parts(recipe: Recipe, trained: Mapping[str, Any]) -> tuple[str | None, frozenset[str]]:
    if recipe.train is None:
        return None, frozenset()
    adapted = frozenset[str]()
    if recipe.train.lora:
        adapted = frozenset(map(str, trained.get("adapted", ())))
    if trained.get("saved_step") == 0:  # no step was better than the untrained weights
        return None, adapted
    trainable = recipe.train.trainable or "positions"
    if adapted and trainable == "all-but-positions":
        return None, adapted
    return trainable, adapted


def learned_before(
    provenance: Provenance | None, table: str, reserved: int, maximum: int
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows that were learned before a resize, shape (positions,).

    Args:
        provenance: How the checkpoint was created.
        table: The name of the table.
        reserved: Its number of reserved rows.
        maximum: Its number of rows now.

    Returns:
        The mask; None if the recipe does not record it.
    """
    if provenance is None:
        return None
    step = provenance.resize
    before, after = step.rows.get(table, (0, 0))
    if step.unregistered or reserved >= min(before, after) or max(before, after) > maximum:
        return None
    method = step.methods.get(table, step.settings.method)
    try:
        choice = replace(step.settings, method=method).choice
        return learned_rows_after(before - reserved, after - reserved, choice)
    except ResizeError:  # an impossible resize
        return None
