"""Which parameters and rows of a model are trained; all others are frozen."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError


@dataclass(frozen=True)
class Trainable:
    """The parameters of a model that are trained. From `freeze` on, all others are frozen.

    Attributes:
        model: The model.
        names: For each tensor of the checkpoint that is trained the parameter that holds it.
        table: The parameter that is the position table, one of `names`.
        rows: Which of its rows are trained, shape (rows,).
    """

    model: torch.nn.Module
    names: Mapping[str, str]
    table: str
    rows: NDArray[np.bool_]

    @classmethod
    def freeze(
        cls, model: torch.nn.Module, names: Mapping[str, str], table: str, rows: NDArray[np.bool_] | None
    ) -> "Trainable":
        """Freeze all parameters of a model but those to train.

        Args:
            model: The model.
            names: As above.
            table: As above.
            rows: As above; None is all.
        """
        trained = set(names.values())
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name not in trained:
                parameter.requires_grad_(False)
        for name in trained:  # after the others: a tied parameter has several names
            model.get_parameter(name).requires_grad_(True)
        weight = model.get_parameter(table)
        if rows is None:
            rows = np.ones(len(weight), np.bool_)
        if not rows.all():
            frozen = torch.from_numpy(~rows)[:, None].to(weight.device)
            weight.register_hook(lambda gradient: gradient.masked_fill(frozen, 0))  # type: ignore[no-untyped-call]
        return cls(model, names, table, rows)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, each once, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def count(self) -> int:
        """The number of trainable values."""
        weight = self.model.get_parameter(self.table)
        others = sum(value.numel() for value in self.parameters.values() if value is not weight)
        return others + int(self.rows.sum()) * weight.shape[1]

    @property
    def save_bytes(self) -> int:
        """Bytes of a save: each parameter and AdamW's two moments, float32."""
        return 3 * 4 * sum(value.numel() for value in self.parameters.values())

    def keep_frozen_rows(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore frozen rows after each step of an optimizer.

        A gradient of 0 is not enough: weight decay and Adam's moments move a row without one.
        """
        if self.rows.all():
            return
        weight = self.model.get_parameter(self.table)
        frozen = torch.from_numpy(np.flatnonzero(~self.rows)).to(weight.device)
        kept = weight.detach()[frozen].clone()

        def restore(*_: object) -> None:
            with torch.no_grad():
                weight[frozen] = kept

        optimizer.register_step_post_hook(restore)


def select_trainable(
    model: torch.nn.Module, found: Mapping[str, str], table: str, trainable: str, name: str
) -> Mapping[str, str]:
    """Return which tensors of a checkpoint are trained, with the parameters that hold them.

    Args:
        model: The model.
        found: From `match_parameters`.
        table: The tensor of the position table.
        trainable: ``new``, ``positions`` or ``all``.
        name: What to call the checkpoint.

    Raises:
        CheckpointError: With ``all`` a parameter is not found in the checkpoint's files.
    """
    if trainable != "all":
        return {table: found[table]}
    # A pooler is not trained: vectors of texts and language modeling do without it.
    found = {tensor: parameter for tensor, parameter in found.items() if "pooler." not in parameter}
    held = {id(model.get_parameter(parameter)) for parameter in found.values()}
    missing = [name for name, value in model.named_parameters() if id(value) not in held and "pooler." not in name]
    if missing:
        raise CheckpointError(
            f"{', '.join(missing[:3])} of the model {name} cannot be found in its files, nor written back.",
            "Train the table alone: --trainable positions.",
        )
    return found
