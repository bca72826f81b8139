"""Run small models of any model type with text inputs, through the outermost module that accepts
them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from tests.helpers import tiny

OLD = 16
NEW = 40

# Lengths for models with block attention, whose inputs must fill blocks.
LENGTHS: Mapping[str, tuple[int, int]] = {"mra": (64, 128), "led": (16, 48)}


@dataclass(frozen=True)
class Reader:
    """A module that reads a table, and its arguments."""

    path: str  # name of the module
    arguments: tuple[str, ...]  # keys of `ARGUMENTS`

    def run(self, model: Any, length: int, *, gradients: bool = False) -> torch.Tensor:
        """Return its output for a fixed input of `length` tokens."""
        module = model.get_submodule(self.path)
        inputs: dict[str, Any] = {
            name: ARGUMENTS[name](model.config, length) for name in self.arguments
        }
        if "codebook_idx" in inputs:  # audio codes have one row per codebook
            inputs["input_ids"] = inputs["input_ids"].unsqueeze(-1).expand(-1, -1, 8)
        if books := getattr(
            getattr(module, "config", None), "num_codebooks", 0
        ):  # a row of codes per codebook
            inputs["input_ids"] = inputs["input_ids"].expand(books, -1)
        if "entity_ids" in inputs:  # the length is that of entity_position_ids
            inputs["input_ids"] = inputs["input_ids"][:, :OLD]
        with torch.set_grad_enabled(gradients):
            output = module(**inputs)
        return _first_states(output)


def _text(config: Any, length: int) -> torch.Tensor:
    return 10 + torch.arange(length).unsqueeze(0) % 20


def _boxes(config: Any, length: int) -> torch.Tensor:
    """Return a bounding box per token, from the corner of the page to another point; BROS expects
    floats.
    """
    corner = torch.zeros(1, length, 2, dtype=torch.long)
    point = 1 + torch.arange(length).view(1, length, 1).expand(-1, -1, 2) % 20
    size = getattr(config, "dim_bbox", 4)
    boxes = torch.cat([corner, point] * (size // 4), dim=-1)
    return boxes / 20 if config.model_type == "bros" else boxes


def _size(config: Any, key: str) -> int:
    return next(int(getattr(part, key)) for _, part in tiny.parts(config) if hasattr(part, key))


# Arguments of forward methods for text inputs, from the model's config and the input's length.
ARGUMENTS: Mapping[str, Callable[[Any, int], torch.Tensor]] = {
    **dict.fromkeys(("input_ids", "inputs", "decoder_input_ids"), _text),
    "bbox": _boxes,
    "lang_ids": lambda config, length: torch.zeros(1, dtype=torch.long),
    "entity_ids": lambda config, length: torch.ones(1, 1, dtype=torch.long),
    "entity_position_ids": lambda config, length: torch.arange(length).view(1, 1, length),
    "attention_mask": lambda config, length: torch.ones(1, length, dtype=torch.long),
    "input_features": lambda config, length: torch.zeros(1, _size(config, "feature_size"), 20),
    "codebook_idx": lambda config, length: torch.tensor(1),
    "encoder_hidden_states": lambda config, length: torch.ones(1, 3, tiny.WIDTH),
    "visual_feats": lambda config, length: torch.zeros(1, 4, config.visual_feat_dim),
    "visual_pos": lambda config, length: torch.zeros(1, 4, 4),
}
COMBINATIONS = (
    ("input_ids",),
    ("input_ids", "decoder_input_ids"),
    ("inputs",),
    ("input_ids", "bbox"),
    ("input_ids", "attention_mask"),
    ("input_ids", "visual_feats", "visual_pos"),
    ("input_features", "input_ids"),
    ("input_ids", "lang_ids"),
    ("codebook_idx", "input_ids"),
    ("input_ids", "entity_ids", "entity_position_ids"),
    ("input_ids", "encoder_hidden_states"),
)


def _first_states(output: Any) -> torch.Tensor:
    """Return the first float output with three dimensions or more, or else the first float
    output.
    """
    values = (
        output.values()
        if isinstance(output, Mapping)
        else output
        if isinstance(output, tuple)
        else (output,)
    )
    floats = [
        value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    return next((value for value in floats if value.dim() >= 3), floats[0])


def rows_read(model: Any, table: str, reader: Reader, length: int) -> list[int]:
    """Return the rows of a table that affect the output of a module: those with a gradient."""
    weight = model.get_parameter(table)
    weight.grad = None
    with torch.enable_grad():
        output = reader.run(model, length, gradients=True)
        generator = torch.Generator().manual_seed(1)
        (
            output.double() * torch.rand(output.shape, generator=generator, dtype=torch.float64)
        ).sum().backward()  # type: ignore[no-untyped-call]
    grad = weight.grad
    model.zero_grad()
    return [] if grad is None else grad.abs().sum(1).nonzero().flatten().tolist()


def is_wave(table: torch.Tensor) -> bool:
    """Return whether each column x of a table is a wave: x[t - 1] + x[t + 1] = 2 cos(w) x[t],
    whatever its layout.
    """
    rows = table.detach().double().flatten(0, -2)[6:]  # after rows of zeros for padding
    inner = rows[1:-1]
    around = rows[:-2] + rows[2:]
    twice_cosine = (inner * around).sum(0) / inner.square().sum(0).clamp(min=1e-12)
    is_linear = bool((twice_cosine > 1.99).all())
    return not is_linear and bool((around - twice_cosine * inner).norm() < 1e-3 * inner.norm())


@contextmanager
def poisoned(table: torch.Tensor, rows: Sequence[int] | slice) -> Iterator[None]:
    """Set rows of a table to NaN meanwhile."""
    before = table.detach().clone()
    table.data[..., rows, :] = torch.nan
    yield
    table.data.copy_(before)


def find_waves_reader(model: Any, name: str, length: int) -> Reader | None:
    """Return the outermost module whose output for text inputs depends on a table, gradients
    aside.
    """
    table = tiny.find_tensor(model, name)
    for path, names in _readers(model, name):
        with suppress(Exception):
            reader = Reader(path, names)
            output = reader.run(model, length)
            if table is None:
                return reader
            with poisoned(table, slice(None)):
                if output.isfinite().all() and reader.run(model, length).isnan().any():
                    return reader
    return None


def _readers(model: Any, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the modules around a table, outermost first, with the arguments for text inputs that
    each accepts.
    """
    steps = name.split(".")
    for depth in range(len(steps)):
        path = ".".join(steps[:depth])
        parameters = inspect.signature(model.get_submodule(path).forward).parameters
        yield from (
            (path, names)
            for names in COMBINATIONS
            if all(argument in parameters for argument in names)
        )


def text_readers(model: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the arguments for text inputs that a model accepts."""
    return _readers(model, "")


def find_reader(model: Any, table: str, length: int) -> tuple[Reader, list[int]] | None:
    """Return the outermost module that reads most rows of a table from text inputs, and these
    rows.
    """
    path = table.removesuffix(".weight").split(".")
    best: tuple[Reader, list[int]] | None = None
    for depth in range(len(path) + 1):
        name = ".".join(path[:depth])
        try:
            parameters = inspect.signature(model.get_submodule(name).forward).parameters
        except AttributeError:  # the table itself
            break
        for names in COMBINATIONS:
            if all(argument in parameters for argument in names):
                reader = Reader(name, names)
                with suppress(Exception):
                    rows = rows_read(model, table, reader, length)
                    if rows and (best is None or len(rows) > len(best[1])):
                        best = reader, rows
        if best and len(best[1]) >= length - 1:
            break
    return best
