"""A checkpoint with learned positions, and its twin, whose tensors are computed when read."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.filenames import SINGLE_FILE, with_variant
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.json_edit import edit, load_object
from ctxextend.checkpoint.safetensors_file import (
    TensorFile,
    describe_tensors,
    numpy_dtype,
)
from ctxextend.checkpoint.weights import Weights
from ctxextend.conversion import twins
from ctxextend.conversion.twins import Array, Twin, TwinHead
from ctxextend.errors import ResizeError, counted, printable
from ctxextend.families.registry import find_architecture
from ctxextend.limits.statements import TOKENIZER_CONFIG, TOKENIZER_FILES
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.settings import Convert
from ctxextend.tables.apply import nonfinite_rows

DtypeAndShape: TypeAlias = tuple[str, tuple[int, ...]]  # the dtype in safetensors' spelling


class Origin(NamedTuple):
    """How a tensor of a twin is computed."""

    tensor: str  # of the source
    how: str  # `COPIED`, `TRANSPOSED`, `BY_HEAD`, `PLUS_MEAN`, `FOR_GLOBAL` or `POSITION_ROWS`


@dataclass(frozen=True, eq=False)
class ComputedFile(TensorFile):
    """A weights file whose tensors are computed when they are read."""

    compute: Callable[[str], Array]

    def offset(self, name: str) -> None:
        """Return None: the bytes of no tensor are stored."""

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
    head: TwinHead  # the twin's class
    config: Mapping[str, Any]  # of the twin
    origins: Mapping[str, Origin]  # by the twin's tensor names
    dropped: Sequence[str]  # tensors that the twin has no place for
    missing: Sequence[str]  # tensors of the twin that the source has no values for
    tokenizer: str  # the class of tokenizer that transformers uses for the source

    @property
    def type_before(self) -> str:
        """The model type of the source."""
        return self.model.architecture.family.model_type

    @property
    def model_class(self) -> str:
        """The twin's class in transformers."""
        return self.twin.class_of(self.head)

    @property
    def added_parameters(self) -> int:
        """The number of parameters of the copies of a tensor beyond the first.

        They are those of an LM head that only the source ties, or of global attention.
        """
        entries = self.model.checkpoint.weights.entries
        uses = Counter(origin.tensor for origin in self.origins.values())
        added = 0
        for name, count in uses.items():
            copies = count - 1
            added += copies * math.prod(entries[name].shape)
        return added

    @cached_property
    def mean_row(self) -> NDArray[np.float64]:
        """The mean of all usable position rows, shape (d,).

        Raises:
            ResizeError: A row contains NaN or infinity.
        """
        table = self.model.tables[0]
        name = table.name
        values = self.model.checkpoint.weights.read_floats(name)
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

    @property
    def angles_name(self) -> str | None:
        """The name of the twin's table of angles, which is computed; None if it has none."""
        if not self.twin.has_angles:
            return None
        if self.head.end == twins.BASE_MODEL:
            return twins.ANGLES_TABLE
        return self.twin.prefix + twins.ANGLES_TABLE

    @cached_property
    def dtypes_and_shapes(self) -> Mapping[str, DtypeAndShape]:
        """The dtype and shape of every tensor of the twin, by name."""
        found = {name: self._dtype_and_shape(origin) for name, origin in self.origins.items()}
        if self.angles_name is not None:
            dtype_of_first, _ = next(iter(found.values()))
            found[self.angles_name] = (dtype_of_first, self._angles_shape)
        return found

    def _dtype_and_shape(self, origin: Origin) -> DtypeAndShape:
        """Return the dtype and shape of a tensor that is computed from one of the source."""
        entry = self.model.checkpoint.weights.entries[origin.tensor]
        shape = entry.shape
        if origin.how in (twins.BY_HEAD, twins.TRANSPOSED):  # `by_head` transposes too
            shape = shape[::-1]
        if origin.how == twins.POSITION_ROWS:
            before, after = self._reserved_rows(origin.tensor)
            shape = (shape[0] - before + after, *shape[1:])
        return entry.dtype, shape

    def _reserved_rows(self, tensor: str) -> tuple[int, int]:
        """Return the reserved rows of a position table of the source, and of the twin's."""
        (source,) = [table for table in self.model.tables if table.name == tensor]
        for location in find_architecture(self.config).locations:
            if location.part == source.part:
                return source.reserved_rows, location.reserved_rows
        raise AssertionError(tensor)  # twins of windows have the tables of their sources

    @property
    def _angles_shape(self) -> tuple[int, int]:
        head_dim = self.config["hidden_size"] // self.config["num_attention_heads"]
        return self.config["max_position_embeddings"], head_dim

    def tensor(self, name: str) -> Array:
        """Compute a tensor of the twin.

        Raises:
            CheckpointError: The source cannot be read.
            ResizeError: A position row of the source contains NaN or infinity.
        """
        if name == self.angles_name:
            dtype, _ = self.dtypes_and_shapes[name]
            return twins.angles(*self._angles_shape).astype(numpy_dtype(dtype))
        tensor, how = self.origins[name]
        values = self.model.checkpoint.weights.read_floats(tensor)
        if how == twins.BY_HEAD:
            return twins.by_head(values, self.config["num_attention_heads"])
        if how == twins.PLUS_MEAN:
            return twins.plus_mean(values, self.mean_row)
        if how == twins.TRANSPOSED:
            return values.T
        if how == twins.POSITION_ROWS:
            before, after = self._reserved_rows(tensor)
            return twins.moved_rows(values, before, after)
        return values


def count_origins(conversion: Conversion, without: Collection[str] = ()) -> Mapping[str, int]:
    """Return the number of tensors but some by how they are computed."""
    return Counter(origin.how for name, origin in conversion.origins.items() if name not in without)


def twin_checkpoint(conversion: Conversion) -> Checkpoint:
    """Return the twin as a checkpoint in memory, with the source's other files.

    Raises:
        CheckpointError: The tokenizer's config cannot be read.
        ResizeError: The twin would have tensors of 2^63 bytes or more.
    """
    source = conversion.model.checkpoint.without_mistral_files()
    path = source.weights.first_file.path
    name = (source.model / with_variant(SINGLE_FILE, source.weights.variant)).as_posix()
    header, entries = describe_tensors(conversion.dtypes_and_shapes)
    file = ComputedFile(
        path=path, header=header, entries=entries, data_start=0, compute=conversion.tensor
    )
    if file.tensor_bytes >= 2**63:
        length = conversion.settings.length
        raise ResizeError(f"--to {length:,} is too large.", "Use a smaller --to.")
    generated = {source.config_file: json.dumps(conversion.config, indent=2) + "\n"}
    return replace(
        source,
        config=conversion.config,
        weights=Weights(files={name: file}),
        generated=generated | _tokenizer_config(conversion),
    )


def _tokenizer_config(conversion: Conversion) -> dict[str, str]:
    """Return tokenizer_config.json with the class of the source's tokenizer, by path.

    Without a class, transformers would choose one by the twin's model type. The result is empty if
    the source has no tokenizer, or if its tokenizer_config.json states a class.
    """
    source = conversion.model.checkpoint
    if not _has_tokenizer(source):
        return {}
    path = (source.model / TOKENIZER_CONFIG).as_posix()
    stated = load_object(source.root / path) if path in source.copied else {}
    if stated.get("tokenizer_class"):
        return {}
    text = source.text(path) if stated else "{}\n"
    tokenizer = source.config.get("tokenizer_class") or conversion.tokenizer
    return {path: edit(text, {("tokenizer_class",): tokenizer})}


def _has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Whether the model's folder has a file that a tokenizer is loaded from."""
    files = {(checkpoint.model / name).as_posix() for name in TOKENIZER_FILES}
    return not files.isdisjoint(checkpoint.copied)
