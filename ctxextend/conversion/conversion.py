"""A checkpoint with learned positions, and its twin, whose tensors are computed when read."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint, Weights
from ctxextend.checkpoint.filenames import SINGLE_FILE, with_variant
from ctxextend.checkpoint.json_edit import edit, load_object
from ctxextend.checkpoint.safetensors_file import (
    TensorFile,
    describe_tensors,
    numpy_dtype,
)
from ctxextend.conversion import twins
from ctxextend.conversion.source_types import SOURCE_TYPES
from ctxextend.conversion.twins import Array, Twin, TwinHead
from ctxextend.errors import ResizeError, counted, printable
from ctxextend.limits.statements import TOKENIZER_CONFIG, TOKENIZER_FILES
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.settings import Convert
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.layouts import sinusoidal_rows


class Origin(NamedTuple):
    """How a tensor of a twin is computed."""

    tensor: str  # of the source
    how: str  # `COPIED`, `TRANSPOSED`, `BY_HEAD`, `PLUS_MEAN`, `FOR_GLOBAL` or `POSITION_ROWS`
    # Reserved rows of a position table that the twin has and the source lacks; negative if the twin
    # has fewer.
    rows: int = 0


@dataclass(frozen=True, eq=False)
class ComputedFile(TensorFile):
    """A weights file whose tensors are computed when they are read."""

    compute: Callable[[str], Array]

    def offset(self, name: str) -> None:
        """Return None: the bytes of no tensor are stored."""

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Compute the bytes of a tensor, shape (size,)."""
        return np.ascontiguousarray(self.compute(name)).view(np.uint8).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class ComputedWeights(Weights):
    """Weights that are computed from those of another checkpoint."""

    source: Weights

    def fingerprint(self) -> str:
        """Return the fingerprint of the source, by which a recipe knows it again."""
        return self.source.fingerprint()


@dataclass(frozen=True)
class Conversion:
    """How the tensors of a twin are computed from a checkpoint with learned positions."""

    model: OpenedModel  # the source
    settings: Convert  # with the length as a number, and theta if the twin has one
    max_len_before: int  # usable positions of the source
    twin: Twin
    head: TwinHead  # the twin's class
    config: Mapping[str, Any]  # of the twin
    origins: Mapping[str, Origin]  # by the twin's tensor names
    dropped: Sequence[str]  # tensors that the twin has no place for
    missing: Sequence[str]  # tensors of the twin that the source has no values for

    @property
    def type_before(self) -> str:
        """The model type of the source."""
        return self.model.architecture.family.model_type

    @cached_property
    def mean_row(self) -> NDArray[np.float64]:
        """The mean of all usable position rows, shape (d,).

        Raises:
            ResizeError: A row contains NaN or infinity.
        """
        table = self.model.tables[0]
        name = table.name
        values = self.model.checkpoint.weights.read(name)
        rows = values[table.reserved_rows :]
        bad = nonfinite_rows(rows)
        if bad:
            message = (
                f"{name} has {counted(len(bad), 'row')} with NaN or infinity, which the mean row "
                "would contain."
            )
            hint = f"Find them with: ctxextend inspect {printable(self.model.ref.source)}"
            raise ResizeError(message, hint)
        return np.asarray(rows.astype(np.float64).mean(axis=0))

    def dtypes_and_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype, in safetensors' spelling, and the shape of every tensor, by name."""
        entries = self.model.checkpoint.weights.entries
        described = dict[str, tuple[str, tuple[int, ...]]]()
        for name, origin in self.origins.items():
            entry = entries[origin.tensor]
            shape = entry.shape
            if origin.how in (twins.BY_HEAD, twins.TRANSPOSED):  # `by_head` transposes too
                shape = shape[::-1]
            elif origin.rows:
                shape = (shape[0] + origin.rows, *shape[1:])
            described[name] = (entry.dtype, shape)
        if self.twin.has_angles:
            name = twins.ANGLES_TABLE
            if self.head.end != twins.BASE_MODEL:
                name = self.twin.prefix + name
            dtype, _ = next(iter(described.values()))
            head_dim = self.config["hidden_size"] // self.config["num_attention_heads"]
            described[name] = (dtype, (self.settings.length, head_dim))
        return described

    def compute(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Compute a tensor of the twin.

        Raises:
            CheckpointError: The source cannot be read.
            ResizeError: A position row of the source contains NaN or infinity.
        """
        if name not in self.origins:  # the table of angles, with theta 10,000
            angles = sinusoidal_rows(np.arange(shape[0]), shape[1], "halves")
            return angles.astype(np.float32).astype(numpy_dtype(dtype))
        tensor, how, rows = self.origins[name]
        values = self.model.checkpoint.weights.read(tensor)
        if how == twins.BY_HEAD:
            return twins.by_head(values, self.config["num_attention_heads"])
        if how == twins.PLUS_MEAN:
            # The sum is computed in float64, block by block, and rounded once.
            total = np.empty_like(values)
            np.add(values, self.mean_row, dtype=np.float64, casting="unsafe", out=total)
            return total
        if how == twins.TRANSPOSED:
            return values.T
        if rows > 0:  # only padding has their positions
            return np.concatenate([np.zeros((rows, values.shape[1]), values.dtype), values])
        return values[-rows:]


def count_origins(conversion: Conversion) -> Mapping[str, int]:
    """Return the number of tensors by how they are computed."""
    return Counter(origin.how for origin in conversion.origins.values())


def twin_checkpoint(conversion: Conversion) -> Checkpoint:
    """Return the twin as a checkpoint in memory, with the source's other files.

    Raises:
        CheckpointError: The tokenizer's config cannot be read.
        ResizeError: The twin would have tensors of 2^63 bytes or more.
    """
    source = conversion.model.checkpoint
    described = conversion.dtypes_and_shapes()
    header, entries = describe_tensors(described)
    file = ComputedFile(
        path=source.weights.first_file.path,
        header=header,
        entries=entries,
        data_start=0,
        compute=lambda name: conversion.compute(name, *described[name]),
    )
    if file.tensor_bytes >= 2**63:
        length = conversion.settings.length
        raise ResizeError(f"--to {length:,} is too large.", "Use a smaller --to.")
    name = (source.model / with_variant(SINGLE_FILE, source.weights.variant)).as_posix()
    generated = {source.config_file: json.dumps(conversion.config, indent=2) + "\n"}
    return replace(
        source,
        config=conversion.config,
        weights=ComputedWeights(files={name: file}, source=source.weights),
        generated=generated | _tokenizer_config(conversion),
    )


def _tokenizer_config(conversion: Conversion) -> dict[str, str]:
    """Return tokenizer_config.json with the class of the source's tokenizer, by path.

    Without a class, transformers would choose one by the twin's model type. The result is empty if
    the source has no tokenizer, or if its tokenizer_config.json states a class.
    """
    source = conversion.model.checkpoint
    tokenizer_files = {(source.model / name).as_posix() for name in TOKENIZER_FILES}
    if tokenizer_files.isdisjoint(source.copied):
        return {}
    path = (source.model / TOKENIZER_CONFIG).as_posix()
    stated = load_object(source.root / path) if path in source.copied else {}
    if stated.get("tokenizer_class"):
        return {}
    text = source.text(path) if stated else "{}\n"
    tokenizer = source.config.get("tokenizer_class")
    if not tokenizer:
        tokenizer = f"{SOURCE_TYPES[conversion.type_before].class_name}Tokenizer"
    return {path: edit(text, {("tokenizer_class",): tokenizer})}
