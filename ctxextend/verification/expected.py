"""What a checkpoint should contain, as one value: everything that `verify` compares with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.conversion.conversion import Conversion
from ctxextend.errors import ResizeError, UnsupportedModelError
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.plan import Plan, make_plan
from ctxextend.planned import plan_conversion
from ctxextend.positions.change import ShortInputs
from ctxextend.provenance import Provenance, first_resize, trained_by

PASS_BASE = "Pass the checkpoint that was resized: --base MODEL."


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The content of an output of a resize or a conversion, and what was trained afterwards."""

    plan: Plan  # what changes in the base
    conversion: Conversion | None  # None of a resize
    # What its recipe states beyond these settings.
    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    unregistered_method: str | None = None  # None: the method is registered
    fingerprint: str | None = None  # of the weights of the base
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each table, as written
    provenance: Provenance | None = None

    @property
    def base(self) -> Checkpoint:
        """The base; of a conversion, the twin in memory."""
        return self.plan.checkpoint

    @property
    def is_trained(self) -> bool:
        """Whether a training changed any weights."""
        return bool(self.trainable or self.adapted)

    @property
    def keeps_positions(self) -> bool:
        """Whether no position of the base changes its meaning: short inputs give its outputs."""
        return not self.plan.extended or self.plan.short_inputs is ShortInputs.IDENTICAL

    @property
    def replaces_positions(self) -> bool:
        """Whether it is a conversion to positions of another scheme."""
        return self.conversion is not None and not self.conversion.twin.has_windows


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
        conversion = None
        if step.convert is not None:
            plan, conversion = plan_conversion(model, step.convert)
        else:
            plan = make_plan(model, step.settings, step.methods)
    except (ResizeError, UnsupportedModelError) as error:
        message = f"The recipe does not apply to {model.ref.source}: {error.message}"
        hint = None
        if step.fingerprint != model.checkpoint.weights.fingerprint():
            hint = PASS_BASE
        raise ResizeError(message, hint) from error
    if step.convert is None and step.rows:  # else it records no table
        for table in plan.changes:
            rows, _ = step.rows.get(table.name, (0, 0))
            if rows != table.rows_before:
                message = (
                    f"The recipe is for a table with {rows} rows, and {table.name} of "
                    f"{model.ref.source} has {table.rows_before}."
                )
                raise ResizeError(message, PASS_BASE)
    return Expected(
        plan=plan,
        conversion=conversion,
        trainable=trained_by(steps),
        adapted=frozenset().union(*(one.adapted for one in steps)),
        unregistered_method=step.unregistered,
        fingerprint=steps[0].fingerprint,
        hashes=provenance.steps[-1].written,
        provenance=provenance,
    )
