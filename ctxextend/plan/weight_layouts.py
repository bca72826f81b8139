"""The weights files that a plan changes."""

from collections.abc import Mapping

from ctxextend.checkpoints.rewrite import Layout, plan_layouts
from ctxextend.plan.plan import Plan


def weight_layouts(plan: Plan) -> Mapping[str, Layout]:
    """Return the new layout of every weights file that changes or is renamed, by its new name.

    Raises:
        CheckpointError: A header would exceed the limit of safetensors.
    """
    shapes = {buffer.name: buffer.shape for buffer in plan.rebuilt_buffers}
    for table in plan.stored:
        if table.is_changed:
            shapes[table.name] = (table.rows_after, table.hidden_size)
    return plan_layouts(plan.checkpoint, shapes, plan.dropped)
