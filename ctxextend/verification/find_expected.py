"""Find the resize or conversion that should have created a checkpoint from its base."""

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import ResizeError, UnsupportedModelError
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.plan.table_plan import TablePlan
from ctxextend.planned import Planned, prepare_convert, prepare_plan
from ctxextend.provenance import Provenance
from ctxextend.verification.expected import Expected, FoundBy, Recorded, expect
from ctxextend.verification.try_methods import detect_resize


def find_expected(
    model: OpenedModel, resized: Checkpoint, recipe: Provenance | None, why_unusable: str = ""
) -> Expected:
    """Find what a checkpoint should contain: from its recipe, or by trying each method.

    The newest recipe in the chain that applies to the base counts.

    Args:
        model: The base.
        resized: The checkpoint to verify.
        recipe: Its recipe; None if there is none that can be read.
        why_unusable: Why the recipe in the folder was not read, as a sentence.

    Raises:
        ResizeError: No resize creates the tables of the checkpoint.
        CheckpointError: A file of the base is malformed.
    """
    if recipe is None:
        return detect_resize(model, resized, Recorded(), why_unusable or "No recipe found.")
    reasons = list[str]()
    for index, step in enumerate(recipe.chain):
        recorded = Recorded(
            trainable=step.trainable,
            adapted=step.adapted,
            unregistered_method=step.unregistered,
            chain=recipe.chain[index:],
            hashes=recipe.written,
        )
        try:
            planned = _plan_step(model, step)
        except (ResizeError, UnsupportedModelError) as error:
            reasons.append(f"The recipe does not apply to {model.ref.source}: {error.message}")
            continue
        other_rows = _other_rows(planned.plan, step)
        if other_rows is None:
            return expect(planned, FoundBy.RECIPE, recorded)
        reasons.append(f"The recipe is for a table with {other_rows} rows.")
    return detect_resize(model, resized, Recorded(hashes=recipe.written), reasons[0])


def _plan_step(model: OpenedModel, step: Provenance) -> Planned:
    """Plan the resize or conversion of a recipe again.

    Raises:
        ResizeError: It does not apply to the base, for example since its rows do not equal the
            recorded formula.
        UnsupportedModelError: The base cannot be converted.
    """
    if step.convert is not None:
        return prepare_convert(model, step.convert)
    plan = plan_model(model, step.settings, step.methods, checks_width=False)
    return prepare_plan(plan)


def _other_rows(plan: Plan, step: Provenance) -> int | None:
    """Return the number of rows for which a recipe was written, if the base has another number."""
    if step.convert is not None:
        return None
    for table in plan.tables:
        recorded = _recorded_rows(step, table)
        if recorded != table.rows_before:
            return recorded
    return None


def _recorded_rows(step: Provenance, table: TablePlan) -> int:
    """Return the number of rows before the resize, according to its recipe; 0 if it has others."""
    if not step.rows:  # recorded by no table
        return table.rows_before
    before, _ = step.rows.get(table.name, (0, 0))
    return before
