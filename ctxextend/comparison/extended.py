"""One loaded model at its new length, whose tables are made by one method after the other."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.weights import read_floats
from ctxextend.errors import CheckpointError
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.models.extend import lengthen, set_tables, to_tensor
from ctxextend.plan.configedits import config_changes
from ctxextend.plan.plan import ResizePlan

__all__ = ["Extended"]

Table = NDArray[Any]


@dataclass(frozen=True)
class Extended:
    """A model beside its original, of which it takes everything but its tables.

    Attributes:
        reader: The model; its tables are those of the method that was last put in.
        names: The parameter that holds each tensor of the checkpoint's files, by the tensor's name.
        before: The learned tables as the files have them, by name, each of shape (rows, d).
    """

    reader: EvalModel
    names: Mapping[str, str]
    before: Mapping[str, Table]

    @classmethod
    def of(cls, original: EvalModel, plan: ResizePlan, *, shares: bool = True) -> "Extended":
        """Return the model at its new length, with the tables that a plan makes.

        Args:
            original: The model as it is.
            plan: What makes its tables.
            shares: Whether it may share the original's tensors; it must not where all of them are trained while the
                original is read.

        Raises:
            CheckpointError: The model does not hold the tables of its files.
            ResizeError: As `extend_model`.
        """
        from ctxextend.training.parameters import match_parameters

        files = plan.checkpoint.weights
        names = match_parameters(
            original.model, {name: file.entries[name].shape for file in files for name in file.entries}
        )
        if missing := [table.name for table in plan.tables if table.name not in names]:
            raise CheckpointError(
                f"The model of {original.name} holds no table of the shape of {missing[0]}.", "Use evaluate instead."
            )
        shared = {id(value): value for value in original.model.parameters()} if shares else {}
        model = copy.deepcopy(original.model, shared)
        before = {table.name: read_floats(plan.checkpoint.holder(table.name), table.name) for table in plan.tables}
        found = cls(replace(original, model=model, max_len=plan.max_len_after), names, before)
        stated = {**model.config.to_dict(), "model_type": model.config.model_type}
        edits = config_changes(stated, plan.architecture, plan.tables)
        lengthen(model, found._tensors(found.made_by(plan)), edits)
        return found

    def made_by(self, plan: ResizePlan) -> dict[str, Table]:
        """Return the tables that a method makes, in the files' dtype, as `resize` writes them.

        Raises:
            ResizeError: They do not fit in memory.
        """
        return {table.name: plan.resized(table, self.before[table.name]) for table in plan.tables}

    def put(self, tables: Mapping[str, Table]) -> None:
        """Give the model the tables of a method; nothing else changes."""
        set_tables(self.reader.model, self._tensors(tables))

    def _tensors(self, tables: Mapping[str, Table]) -> dict[str, Any]:
        """Return tables by the parameters that hold them, in the dtype in which the model was loaded."""
        held = {name: self.reader.model.get_parameter(self.names[name]) for name in tables}
        return {
            self.names[name]: to_tensor(table).to(held[name].device, held[name].dtype) for name, table in tables.items()
        }
