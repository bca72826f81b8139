"""The parameters that a run trains, and the float32 values that its optimizer updates."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from ctxextend.training.rows_to_train import BoolRows

Names = Mapping[str, str]  # of parameters or layers, by tensor
# Values of a saved state per parameter: itself, AdamW's two moments, and the best so far.
SAVED_VALUES = 4
FLOAT32_BYTES = 4


class TrainableParameters:
    """The trainable parameters of a model, `names` by tensor; all others are frozen.

    `rows` is a mask of the trainable rows of the parameter `table`, shape (rows,); None is all.
    `adapters` are the names of layers with an adapter, by the tensor of their weight.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Names,
        table: str,
        rows: BoolRows | None,
        adapters: Names,
    ) -> None:
        self.model = model
        self.names = names
        self.table = table
        self.rows = rows
        self.adapters = adapters
        model.requires_grad_(False)
        for name in names.values():
            model.get_parameter(name).requires_grad_(True)
        if rows is None:
            return
        frozen = torch.from_numpy(~rows)[:, None]

        def freeze(gradient: torch.Tensor) -> torch.Tensor:
            return gradient.masked_fill(frozen.to(gradient.device), 0)

        model.get_parameter(table).register_hook(freeze)  # type: ignore[no-untyped-call]

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name, tied ones once."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def count(self) -> int:
        """The number of trainable parameters, in values."""
        count = sum(value.numel() for value in self.parameters.values())
        if self.rows is not None:
            width = self.model.get_parameter(self.table).shape[1]
            count -= int((~self.rows).sum()) * width
        return count

    @property
    def save_bytes(self) -> int:
        """Bytes of a saved state, which is in float32."""
        values = sum(value.numel() for value in self.parameters.values())
        return SAVED_VALUES * FLOAT32_BYTES * values

    @cached_property
    def masters(self) -> dict[str, torch.Tensor]:
        """The values that an optimizer updates, by name: a float32 parameter itself, or a copy."""
        masters = dict[str, torch.Tensor]()
        for name, value in self.parameters.items():
            masters[name] = value if value.dtype == torch.float32 else value.detach().float()
        return masters

    def value(self, name: str) -> torch.Tensor:
        """Return the trained value of a parameter on the CPU.

        The parameter may be tied to one of another name.
        """
        parameter = self.model.get_parameter(name)
        same = (other for other, value in self.parameters.items() if value is parameter)
        return self.masters[next(same)].detach().cpu()

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set the values of parameters by name."""
        with torch.no_grad():
            for name, value in values.items():
                self.masters[name].copy_(value)
                self.model.get_parameter(name).copy_(self.masters[name])

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer of the parameters update `masters`, and copy them after each step.

        Frozen rows are restored: weight decay and Adam's moments change rows without a gradient
        too.

        Source: the float32 copy of Micikevicius et al. 2018, section 3.1, arXiv:1710.03740.
        """
        parameters = self.parameters
        masters = {id(value): self.masters[name] for name, value in parameters.items()}
        for group in optimizer.param_groups:
            group["params"] = [masters[id(value)] for value in group["params"]]
        copied = []
        for name, value in parameters.items():
            if self.masters[name] is not value:
                copied.append((self.masters[name], value))
        if self.rows is not None:
            table = self.masters[self.table]
            frozen = torch.from_numpy(np.flatnonzero(~self.rows)).to(table.device)
            kept = table.detach()[frozen].clone()

        def before(*_: object) -> None:
            for master, parameter in copied:
                gradient = parameter.grad
                master.grad = None if gradient is None else gradient.float()

        def after(*_: object) -> None:
            with torch.no_grad():
                if self.rows is not None:
                    table[frozen] = kept
                for master, parameter in copied:
                    parameter.copy_(master)
                    master.grad = None

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def gather(self, *, keep: bool) -> None:
        """Replace sharded `masters` by whole ones on the CPU, or drop them.

        All processes call it.
        """
        for name, value in self.masters.items():
            if isinstance(value, DTensor):
                whole = value.full_tensor()
                self.masters[name] = whole.to("cpu") if keep else whole.new_empty(0)
