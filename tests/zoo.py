"""Small models of every family, and one way to run any of them: the outermost module that a text alone will do for."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from tests import tiny

OLD = 16
NEW = 40

# Some attention works in blocks, and a text must fill them.
LENGTHS: Mapping[str, tuple[int, int]] = {"mra": (64, 128), "led": (16, 48)}


@dataclass(frozen=True)
class Reader:
    """The module that reads a table, and how it is called."""

    path: str  # its name in the model
    extras: tuple[str, ...]  # what it takes, keys of `EXTRAS`

    def run(self, model: Any, length: int, *, gradients: bool = False) -> torch.Tensor:
        """Return what it gives for a text of so many tokens, the same for every model."""
        module = model.get_submodule(self.path)
        given: dict[str, Any] = {name: EXTRAS[name](model.config, length) for name in self.extras}
        if "codebook_idx" in given:  # audio codes have a row for each codebook
            given["input_ids"] = given["input_ids"].unsqueeze(-1).expand(-1, -1, 8)
        if "entity_ids" in given:  # of which each position is that of a word
            given["input_ids"] = given["input_ids"][:, :OLD]
        with torch.set_grad_enabled(gradients):
            output = module(**given)
        return _states(output)


def _text(config: Any, length: int) -> torch.Tensor:
    return 10 + torch.arange(length).unsqueeze(0) % 20


def _boxes(config: Any, length: int) -> torch.Tensor:
    """Return a box for every token: from the corner of the page to another place; BROS takes them as floats."""
    corner = torch.zeros(1, length, 2, dtype=torch.long)
    place = 1 + torch.arange(length).view(1, length, 1).expand(-1, -1, 2) % 20
    size = getattr(config, "dim_bbox", 4)
    boxes = torch.cat([corner, place] * (size // 4), dim=-1)
    return boxes / 20 if config.model_type == "bros" else boxes


def _size(config: Any, key: str) -> int:
    return next(int(getattr(part, key)) for _, part in tiny.parts(config) if hasattr(part, key))


# What a forward method may take that goes with a text, from the model's config and the text's length.
EXTRAS: Mapping[str, Callable[[Any, int], torch.Tensor]] = {
    **dict.fromkeys(("input_ids", "inputs", "decoder_input_ids"), _text),
    "bbox": _boxes,
    "lang_ids": lambda config, length: torch.zeros(1, dtype=torch.long),
    "entity_ids": lambda config, length: torch.ones(1, 1, dtype=torch.long),
    "entity_position_ids": lambda config, length: torch.arange(length).view(1, 1, length),
    "attention_mask": lambda config, length: torch.ones(1, length, dtype=torch.long),
    "input_features": lambda config, length: torch.zeros(1, _size(config, "feature_size"), 20),
    "codebook_idx": lambda config, length: torch.tensor(1),
    "visual_feats": lambda config, length: torch.zeros(1, 4, config.visual_feat_dim),
    "visual_pos": lambda config, length: torch.zeros(1, 4, 4),
}
TRIES = (
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
)


def _states(output: Any) -> torch.Tensor:
    """Return the first output of floats that has a place for every token, or else the first of floats."""
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
    floats = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return next((value for value in floats if value.dim() >= 3), floats[0])


def rows_read(model: Any, table: str, reader: Reader, length: int) -> list[int]:
    """Return which rows of a table have a part in what a module gives for a text: those with a gradient."""
    weight = model.get_parameter(table)
    weight.grad = None
    with torch.enable_grad():
        output = reader.run(model, length, gradients=True)
        generator = torch.Generator().manual_seed(1)
        (output.double() * torch.rand(output.shape, generator=generator, dtype=torch.float64)).sum().backward()  # type: ignore[no-untyped-call]
    grad = weight.grad
    model.zero_grad()
    return [] if grad is None else grad.abs().sum(1).nonzero().flatten().tolist()


def find_reader(model: Any, table: str, length: int) -> tuple[Reader, list[int]] | None:
    """Return the outermost module that reads most of a table when it is given a text, and the rows that it read."""
    path = table.removesuffix(".weight").split(".")
    best: tuple[Reader, list[int]] | None = None
    for depth in range(len(path) + 1):
        name = ".".join(path[:depth])
        try:
            taken = inspect.signature(model.get_submodule(name).forward).parameters
        except AttributeError:  # the table itself
            break
        for names in TRIES:
            if all(extra in taken for extra in names):
                reader = Reader(name, names)
                with suppress(Exception):
                    rows = rows_read(model, table, reader, length)
                    if rows and (best is None or len(rows) > len(best[1])):
                        best = reader, rows
        if best and len(best[1]) >= length - 1:
            break
    return best
