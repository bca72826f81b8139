"""Which parameters of a model are trained, and proof that nothing else changed."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.errors import TrainingError

__all__ = ["Trained", "match_parameters"]

# How old checkpoints of TensorFlow's time call the scale and shift of a layer norm.
OLD_NAMES = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class Trained:
    """What of a model is trained.

    Attributes:
        model: The model; from `Trained.of` on, its other parameters take no gradient.
        names: For each tensor of the checkpoint's files that is trained the parameter that holds it.
        table: The parameter that is the position table.
        rows: Which of its rows are trained, shape (rows,).
        frozen: SHA-256 of everything else, as it was at first.
    """

    model: torch.nn.Module
    names: Mapping[str, str]
    table: str
    rows: NDArray[np.bool_]
    frozen: str

    @classmethod
    def of(
        cls, model: torch.nn.Module, names: Mapping[str, str], table: str, rows: NDArray[np.bool_] | None
    ) -> "Trained":
        """Freeze what is not trained.

        Args:
            model: The model.
            names: What is trained: tensors of the files, and the parameters that hold them.
            table: The parameter that is the position table, one of `names`.
            rows: Which of its rows are trained; None is all.
        """
        trained = set(names.values())
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name not in trained:
                parameter.requires_grad_(False)
        for name in trained:  # behind the others: a parameter may have several names
            model.get_parameter(name).requires_grad_(True)
        weight = model.get_parameter(table)
        if rows is None:
            rows = np.ones(len(weight), np.bool_)
        if not rows.all():
            still = torch.from_numpy(~rows)[:, None].to(weight.device)
            weight.register_hook(lambda gradient: gradient.masked_fill(still, 0))  # type: ignore[no-untyped-call]
        return cls(model, names, table, rows, _hash(model, table, rows))

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, each once, by their names."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @property
    def count(self) -> int:
        """Numbers that are trained."""
        others = sum(value.numel() for name, value in self.parameters.items() if value is not self._weight)
        return others + int(self.rows.sum()) * self._weight.shape[1]

    @property
    def save_bytes(self) -> int:
        """Bytes of a save: each parameter and AdamW's two moments of it, in float32."""
        return 3 * 4 * sum(value.numel() for value in self.parameters.values())

    @property
    def _weight(self) -> torch.nn.Parameter:
        return self.model.get_parameter(self.table)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer leave the rows that are not trained as they are, whatever its update does.

        A gradient of 0 is not enough: weight decay and the moments of Adam move a row without one.
        """
        if self.rows.all():
            return
        places = torch.from_numpy(np.flatnonzero(~self.rows)).to(self._weight.device)
        kept = self._weight.detach()[places].clone()

        def restore(*_: object) -> None:
            with torch.no_grad():
                self._weight[places] = kept

        optimizer.register_step_post_hook(restore)

    def check(self) -> None:
        """Raise TrainingError where something changed that was not to be trained."""
        if _hash(self.model, self.table, self.rows) != self.frozen:
            raise TrainingError(
                "Weights changed that were not to be trained; nothing was written.",
                "Please report this with the command: it must not happen.",
            )


def _hash(model: torch.nn.Module, table: str, rows: NDArray[np.bool_]) -> str:
    """Return the SHA-256 of all parameters that are not trained, and of the table's rows that are not."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            found.update(name.encode())
            found.update(_bytes(parameter))
    found.update(_bytes(model.get_parameter(table)[torch.from_numpy(~rows)]))
    return found.hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().reshape(-1).data


def match_parameters(model: torch.nn.Module, names: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Find the parameters that hold the tensors of a checkpoint's files.

    Args:
        model: The model that transformers made of them.
        names: The tensors' shapes by their names.

    Returns:
        The parameter's name of each tensor that has one of its shape; tensors that are no parameters are left out.
    """
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    found = {}
    for name, shape in names.items():
        fitting = (candidate for candidate in _candidates(name, prefix) if shapes.get(candidate) == tuple(shape))
        if (parameter := next(fitting, None)) is not None:
            found[name] = parameter
    return found


def _candidates(name: str, prefix: str) -> Iterator[str]:
    """Yield what transformers may call a tensor of a file: models with and without a head name the rest differently."""
    stem, _, last = name.rpartition(".")
    for known in dict.fromkeys((name, f"{stem}.{OLD_NAMES.get(last, last)}")):
        yield from (known, f"{prefix}{known}", known.removeprefix(prefix))
