"""What a checkpoint should contain, as one value: everything that `verify` compares with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.conversion.conversion import Conversion
from ctxextend.errors import MethodError, ResizeError, UnsupportedModelError
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.plan import Plan, make_plan
from ctxextend.planned import Planned, planned_conversion, planned_resize
from ctxextend.positions.change import ShortInputs
from ctxextend.provenance import (
    Provenance,
    Step,
    first_resize,
    trained_by,
)
from ctxextend.settings import Resize


@dataclass(frozen=True)
class Recorded:
    """What the recipe of a checkpoint states beyond the settings of its resize or conversion."""

    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    unregistered_method: str | None = None  # None: the method is registered
    fingerprint: str | None = None  # of the weights of the base
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each table, as written
    provenance: Provenance | None = None

    @property
    def is_trained(self) -> bool:
        """Whether a training changed any weights."""
        return bool(self.trainable or self.adapted)

    @property
    def keeps_old_weights(self) -> bool:
        """Whether no training changed weights that short inputs use: only new rows, if any."""
        return not self.adapted and self.trainable in (None, "new")


@dataclass(frozen=True)
class Expected:
    """The content of an output of a resize or a conversion, and what was trained afterwards."""

    planned: Planned
    basis: str  # where its settings are from, such as ``from the recipe``
    recorded: Recorded = field(default_factory=Recorded)

    @property
    def plan(self) -> Plan:
        """What changes in the base."""
        return self.planned.plan

    @property
    def base(self) -> Checkpoint:
        """The base; of a conversion, the twin in memory."""
        return self.plan.checkpoint

    @property
    def conversion(self) -> Conversion | None:
        """The conversion; None of a resize."""
        return self.planned.conversion

    @property
    def keeps_positions(self) -> bool:
        """Whether no position of the base changes its meaning: short inputs give its outputs."""
        return not self.plan.extended or self.plan.short_inputs is ShortInputs.IDENTICAL

    @property
    def replaces_positions(self) -> bool:
        """Whether it is a conversion to positions of another scheme."""
        return self.conversion is not None and not self.conversion.twin.has_windows

    @property
    def windows(self) -> Conversion | None:
        """The conversion to attention windows, which keeps positions; None if it is none."""
        if self.conversion is not None and self.conversion.twin.has_windows:
            return self.conversion
        return None

    @property
    def has_rope_changes(self) -> bool:
        """Whether any rotary setting changes."""
        return any(change.settings for change in self.plan.changes)

    @property
    def stale_files(self) -> frozenset[str]:
        """Files in Mistral's own format, which an output of trained weights must not have."""
        if not self.recorded.is_trained:
            return frozenset()
        return frozenset(self.base.mistral_files)

    @property
    def kind(self) -> str:
        """What creates the checkpoint from its base, as a noun."""
        return "conversion" if self.conversion else "resize"


def expect_recorded(model: OpenedModel, provenance: Provenance) -> Expected:
    """Return what the recipe of a checkpoint makes of a base.

    Args:
        model: The base: the source of any step in the recipe.
        provenance: The recipe.

    Raises:
        ResizeError: The recipe does not apply to the base.
        CheckpointError: A file of the base is malformed.
    """
    steps = provenance.steps
    if len(steps) > 1:
        steps = provenance.steps_since(model.checkpoint.weights.fingerprint())
    step = first_resize(steps)
    try:
        planned = _plan_step(model, step)
    except (ResizeError, UnsupportedModelError) as error:
        message = f"The recipe does not apply to {model.ref.source}: {error.message}"
        hint = None
        if step.fingerprint != model.checkpoint.weights.fingerprint():
            hint = "Pass the checkpoint that was resized: --base MODEL."
        raise ResizeError(message, hint) from error
    if step.convert is None:
        _check_rows(planned.plan, step)
    recorded = Recorded(
        trainable=trained_by(steps),
        adapted=frozenset().union(*(one.adapted for one in steps)),
        unregistered_method=step.unregistered,
        fingerprint=steps[0].fingerprint,
        hashes=provenance.steps[-1].written,
        provenance=provenance,
    )
    return Expected(planned, "from the recipe", recorded)


def _plan_step(model: OpenedModel, step: Step) -> Planned:
    if step.convert is not None:
        return planned_conversion(model, step.convert)
    return planned_resize(make_plan(model, step.settings, step.methods, checks_width=False))


def _check_rows(plan: Plan, step: Step) -> None:
    """Raise ResizeError if a recipe was written for tables with other numbers of rows."""
    if not step.rows:  # recorded by no table
        return
    for table in plan.changes:
        rows, _ = step.rows.get(table.name, (0, 0))
        if rows != table.rows_before:
            raise ResizeError(
                f"The recipe is for a table with {rows} rows, and {table.name} of "
                f"{plan.model.ref.source} has {table.rows_before}.",
                "Pass the checkpoint that was resized: --base MODEL.",
            )


def expect_resize(model: OpenedModel, resized: Checkpoint, settings: Resize) -> Expected:
    """Return what a resize makes of a base, for a checkpoint without a recipe.

    Raises:
        MethodError: The checkpoint is a conversion, or the method does not apply to the base.
        ResizeError: Another setting does not apply to it.
        CheckpointError: A file of the base is malformed.
    """
    before = str(model.checkpoint.config.get("model_type"))
    after = str(resized.config.get("model_type"))
    if before != after:
        message = f"The base is a {before} model, and {resized.source.reference} a {after} model."
        hint = f"A conversion is verified only with its recipe, {RECIPE_FILE}."
        raise MethodError(message, hint)
    plan = make_plan(model, settings, checks_width=False)
    return Expected(planned_resize(plan), "as given")
