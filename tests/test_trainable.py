from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.models.load import match_parameters
from ctxextend.training.setup import Trainable

NEW = np.array([False, False, True, False, True])


class Model(torch.nn.Module):
    """A table of five rows, and something else."""

    base_model_prefix = "base"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base: Any = torch.nn.ModuleDict({"table": torch.nn.Embedding(5, 3), "other": torch.nn.Linear(3, 2)})
        self.head: Any = torch.nn.Linear(3, 2, bias=False)
        self.head.weight = self.base["other"].weight  # type: ignore[assignment]


TABLE = {"table.weight": "base.table.weight"}


def test_trainable_freezes_all_but_what_it_is_told_and_counts_it() -> None:
    model = Model()
    assert set(Trainable(model, TABLE, "base.table.weight", NEW).parameters) == {"base.table.weight"}
    assert Trainable(model, TABLE, "base.table.weight", NEW).count == 2 * 3
    both = TABLE | {"head.weight": "head.weight", "other.bias": "base.other.bias"}
    trained = Trainable(model, both, "base.table.weight", None)
    # A parameter that has two names is one.
    assert set(trained.parameters) == {"base.table.weight", "base.other.weight", "base.other.bias"}
    assert trained.count == 15 + 6 + 2


def file_of(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    """As much of a checkpoint as says which tensors its file holds."""
    entries = {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}
    return cast(Checkpoint, SimpleNamespace(entries=entries, root="there"))


def test_match_parameters_finds_names_with_and_without_the_base_and_of_old_times() -> None:
    model = Model()
    model.base["norm"] = torch.nn.LayerNorm(3)
    names = {"table.weight": (5, 3), "base.other.bias": (2,), "norm.gamma": (3,), "norm.beta": (3,)}
    others = {"base.table.weight_": (5, 3), "base.other.weight": (3, 2), "mask": (1,)}
    assert match_parameters(model, file_of(names | others), ["table.weight"]) == {
        "table.weight": "base.table.weight",
        "base.other.bias": "base.other.bias",
        "norm.gamma": "base.norm.weight",
        "norm.beta": "base.norm.bias",
    }
    assert match_parameters(model, file_of({"head.weight": (2, 3)}), []) == {"head.weight": "head.weight"}
    with pytest.raises(CheckpointError, match=r"holds no table of the shape of base\.table\.weight"):
        match_parameters(model.base, file_of({"base.table.weight": (5, 3)}), ["base.table.weight"])
