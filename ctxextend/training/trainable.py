"""The parameters that a run trains, the float32 values of its optimizer, and what they become."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.safetensors_file import numpy_dtype
from ctxextend.checkpoint.writing import Layout, plan_layouts
from ctxextend.training.rows_to_train import BoolRows

Names = Mapping[str, str]  # of parameters or layers, by tensor
# Values of a saved state per parameter: itself, AdamW's two moments, and the best so far.
SAVED_VALUES = 4
FLOAT32_BYTES = 4


class TrainableParameters:
    """The trainable parameters of a model, `names` by tensor; all others are frozen.

    `checkpoint` has the tensors before training. `rows` is a mask of the trainable rows of the
    parameter `table`, shape (rows,); None is all. `adapters` are the names of layers with an
    adapter, by the tensor of their weight.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        names: Names,
        checkpoint: Checkpoint,
        *,
        table: str,
        rows: BoolRows | None,
        adapters: Names,
    ) -> None:
        self.checkpoint = checkpoint
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

        def freeze(gradient: Tensor) -> Tensor:
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
    def masters(self) -> dict[str, Tensor]:
        """The values that an optimizer updates, by name: a float32 parameter itself, or a copy."""
        masters = dict[str, Tensor]()
        for name, value in self.parameters.items():
            masters[name] = value if value.dtype == torch.float32 else value.detach().float()
        return masters

    def value(self, name: str) -> Tensor:
        """Return the trained value of a parameter on the CPU.

        The parameter may be tied to one of another name.
        """
        parameter = self.model.get_parameter(name)
        same = (other for other, value in self.parameters.items() if value is parameter)
        return self.masters[next(same)].detach().cpu()

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor of the trained checkpoint; frozen rows are copied from the source."""
        weights = self.checkpoint.weights
        dtype = numpy_dtype(weights.entries[name].dtype)
        if name in self.adapters:
            path = self.adapters[name]
            layer: Any = self.model.get_submodule(path)
            a = self.value(f"{path}.lora_A.default.weight").double()
            b = self.value(f"{path}.lora_B.default.weight").double()
            product = b @ a
            if layer.fan_in_fan_out:  # the weight has shape (in, out)
                product = a.T @ b.T
            delta = layer.scaling["default"] * product
            merged = weights.read(name).astype(np.float64) + delta.numpy()
            return np.asarray(merged.astype(dtype))
        if name not in self.names:
            return weights.read(name)
        values = self.value(self.names[name]).numpy().astype(dtype)
        if self.rows is not None and self.names[name] == self.table:
            values[~self.rows] = weights.read(name)[~self.rows]
        return values

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file of the trained checkpoint that changes or is renamed."""
        trained = self.names.keys() | self.adapters.keys()
        shapes = dict[str, tuple[int, ...]]()
        for name, entry in self.checkpoint.weights.entries.items():
            if name in trained:
                shapes[name] = entry.shape
        return plan_layouts(self.checkpoint, shapes)

    def load(self, values: Mapping[str, Tensor]) -> None:
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
