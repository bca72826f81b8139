"""One loaded model that gets the positions of one plan after another."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from ctxextend.lab.eval_model import EvalModel
from ctxextend.limits.edits import config_changes
from ctxextend.models.extend import set_config, set_length, set_tables, to_tensor
from ctxextend.models.load import match_parameters
from ctxextend.plan import Plan
from ctxextend.positions.positions import nested

TableRows = NDArray[Any]  # shape (rows, d)
ROPE_KEY = "rope_parameters"  # of rotary settings in configs of transformers


@dataclass(frozen=True)
class InMemoryResizer:
    """Gives a loaded model the positions of one plan after another, all of one length."""

    model: EvalModel  # of the new length; it shares all but its positions with the base
    config: Mapping[str, Any]  # of the base, as plain values
    names: Mapping[str, str]  # parameter names by tensor names of the checkpoint's files
    learned: Mapping[str, TableRows]  # tables of the checkpoint by tensor name

    def set_positions(self, plan: Plan) -> None:
        """Give the model the tables and settings of a plan, as `resize` writes them."""
        if any(change.settings for change in plan.changes):
            self.set_length(plan)
        else:  # plans of one length differ only in tables
            set_tables(self.model.model, self._parameters(plan))

    def set_length(self, plan: Plan) -> None:
        """Give the model the tables, the settings and the length of a plan."""
        edits = config_changes(
            self.config,
            plan.model.architecture,
            plan.changes,
            fix_limits=plan.settings.fix_limits,
        )
        config = copy.deepcopy(self.config)
        set_config(config, edits)
        # All rotary settings, and all lengths: those of another plan must not remain.
        paths = set[tuple[str, ...]]()
        for path in edits:
            end = path.index(ROPE_KEY) + 1 if ROPE_KEY in path else len(path)
            paths.add(path[:end])
        for change in plan.changes:
            if change.settings:
                paths.update(change.positions.length_paths)
        values = {path: nested(config, path) for path in paths}
        set_length(self.model.model, self._parameters(plan), values)

    def _parameters(self, plan: Plan) -> dict[str, Any]:
        parameters = dict[str, Any]()
        for change in plan.stored:
            name = self.names[change.name]
            current = self.model.model.get_parameter(name)
            rows = change.positions.resized(change, self.learned[change.name])
            parameters[name] = to_tensor(rows).to(current)
        return parameters


def open_resizer(base: EvalModel, plan: Plan) -> InMemoryResizer:
    """Copy a model and give the copy the positions of a plan.

    The copy shares all other tensors with the base.
    """
    stored = [table.name for table in plan.stored]
    shared = {id(value): value for value in base.model.parameters()}
    model = copy.deepcopy(base.model, shared)
    resizer = InMemoryResizer(
        model=replace(base, model=model, max_len=plan.max_len_after),
        config={**model.config.to_dict(), "model_type": model.config.model_type},
        names=match_parameters(base.model, plan.checkpoint, stored),
        learned={name: plan.checkpoint.weights.read(name) for name in stored},
    )
    resizer.set_length(plan)
    return resizer
