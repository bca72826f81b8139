"""A checkpoint with learned positions, and its twin, whose tensors are computed when read."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import SINGLE_FILE, with_variant
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit, load_object
from ctxextend.checkpoints.safetensors_file import (
    TensorFile,
    describe_tensors,
    numpy_dtype,
)
from ctxextend.checkpoints.weights import Weights
from ctxextend.conversion import twins
from ctxextend.conversion.twins import Array, Twin
from ctxextend.errors import ResizeError, counted, printable
from ctxextend.limits.side_files import TOKENIZER_FILES
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.recipe import Convert
from ctxextend.tables.apply import nonfinite_rows


class Origin(NamedTuple):
    """How a tensor of a twin is computed."""

    tensor: str  # of the source
    how: str  # `COPIED`, `TRANSPOSED`, `BY_HEAD` or `PLUS_MEAN`


@dataclass(frozen=True, eq=False)
class ComputedFile(TensorFile):
    """A weights file whose tensors are computed when they are read."""

    compute: Callable[[str], Array]

    def offset(self, name: str) -> None:
        """Return None: the bytes of no tensor are stored."""

    stored_range = offset

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Compute the bytes of a tensor, shape (size,)."""
        return np.ascontiguousarray(self.compute(name)).view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class Conversion:
    """How the tensors of a twin are computed from a checkpoint with learned positions."""

    model: OpenedModel  # the source
    settings: Convert  # with the length as a number, and theta if the twin has one
    max_len_before: int  # usable positions of the source
    twin: Twin
    model_class: str  # of the twin, in transformers
    config: Mapping[str, Any]  # of the twin
    origins: Mapping[str, Origin]  # by the twin's tensor names
    dropped: Sequence[str]  # tensors that the twin has no place for
    tokenizer: str  # the class of tokenizer that transformers uses for the source

    @property
    def type_before(self) -> str:
        """The model type of the source."""
        return self.model.architecture.family.model_type

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tensors by how they are computed."""
        return Counter(origin.how for origin in self.origins.values())

    @property
    def added_parameters(self) -> int:
        """The number of parameters that the source ties and the twin does not.

        They are those of its LM head.
        """
        entries = self.model.checkpoint.weights.entries
        uses = Counter(origin.tensor for origin in self.origins.values())
        return sum(math.prod(entries[name].shape) * (count - 1) for name, count in uses.items())

    @cached_property
    def mean_row(self) -> NDArray[np.float64]:
        """The mean of all usable position rows, shape (d,).

        Raises:
            ResizeError: A row contains NaN or infinity.
        """
        table = self.model.tables[0]
        name = table.name
        values = self.model.checkpoint.weights.read_floats(name)
        rows = values[table.location.reserved_rows :]
        bad = nonfinite_rows(rows)
        if bad:
            message = (
                f"{name} has {counted(len(bad), 'row')} with NaN or infinity, which the mean row "
                "would contain."
            )
            hint = f"Find them with: ctxextend inspect {printable(self.model.ref.source)}"
            raise ResizeError(message, hint)
        return np.asarray(rows.astype(np.float64).mean(axis=0))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every tensor of the twin."""
        shapes = dict[str, tuple[str, tuple[int, ...]]]()
        for name, (tensor, how) in self.origins.items():
            entry = self.model.checkpoint.weights.entries[tensor]
            shape = entry.shape
            if how in (twins.BY_HEAD, twins.TRANSPOSED):
                shape = shape[::-1]
            shapes[name] = (entry.dtype, shape)
        if self.twin.has_angles:
            size = self.config["hidden_size"] // self.config["num_attention_heads"]
            is_base = self.model_class.endswith(twins.BASE_MODEL)
            prefix = "" if is_base else self.twin.prefix
            dtype, _ = next(iter(shapes.values()))
            shapes[prefix + twins.ANGLES_TABLE] = (
                dtype,
                (self.config["max_position_embeddings"], size),
            )
        return shapes

    def tensor(self, name: str) -> Array:
        """Compute a tensor of the twin.

        Raises:
            CheckpointError: The source cannot be read.
            ResizeError: A position row of the source contains NaN or infinity.
        """
        if name not in self.origins:
            dtype, shape = self.shapes[name]
            return twins.angles(*shape).astype(numpy_dtype(dtype))
        tensor, how = self.origins[name]
        values = self.model.checkpoint.weights.read_floats(tensor)
        if how == twins.BY_HEAD:
            return twins.by_head(values, self.config["num_attention_heads"])
        if how == twins.PLUS_MEAN:
            return twins.plus_mean(values, self.mean_row)
        if how == twins.TRANSPOSED:
            return values.T
        return values


def twin_checkpoint(conversion: Conversion) -> Checkpoint:
    """Return the twin as a checkpoint in memory, with the source's other files.

    Raises:
        CheckpointError: The tokenizer's config cannot be read.
        ResizeError: The twin would have tensors of 2^63 bytes or more.
    """
    source = conversion.model.checkpoint
    path = source.weights.first_file.path
    name = (source.model / with_variant(SINGLE_FILE, source.weights.variant)).as_posix()
    try:
        described = describe_tensors(conversion.shapes)
        file = ComputedFile(path, *described, 0, conversion.tensor)
    except ValueError:
        length = conversion.config["max_position_embeddings"]
        raise ResizeError(f"--to {length:,} is too large.", "Lower --to.") from None
    generated = {source.config_file: json.dumps(conversion.config, indent=2) + "\n"}
    return replace(
        source,
        config=conversion.config,
        weights=Weights(files={name: file}),
        generated=generated | _tokenizer_config(conversion),
    )


def _tokenizer_config(conversion: Conversion) -> dict[str, str]:
    """Return tokenizer_config.json with the class of the source's tokenizer, by path.

    Without a class, the model type would decide. Empty without a tokenizer, or if it has a class.
    """
    source = conversion.model.checkpoint
    config = (source.model / "tokenizer_config.json").as_posix()
    files = {(source.model / name).as_posix() for name in TOKENIZER_FILES}
    if not {config, *files} & set(source.copied):
        return {}
    stated = load_object(source.root / config) if config in source.copied else {}
    if stated.get("tokenizer_class"):
        return {}
    text = source.text(config) if stated else "{}\n"
    tokenizer = source.config.get("tokenizer_class") or conversion.tokenizer
    return {config: edit(text, {("tokenizer_class",): tokenizer})}
