"""The weights files of a checkpoint: open them, and find their tensors by name."""

import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoint import filenames
from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.json_edit import load_object
from ctxextend.checkpoint.safetensors_file import (
    COMPILED,
    FLOATS,
    MODULE,
    TensorEntry,
    TensorFile,
    open_safetensors,
    plain_names,
    read_tensor,
)
from ctxextend.checkpoint.source import Source, has_file
from ctxextend.errors import CheckpointError

SAMPLE = 4096  # bytes per sample of a fingerprint: the start, the middle and the end of a tensor
HALF_DTYPES = ("BF16", "F16")


@dataclass(frozen=True)
class Weights:
    """The weights files of a source, and the names and the index that an output gives them."""

    files: Mapping[str, TensorFile]  # by their names in an output, in source order
    index: Mapping[str, Any] | None = None  # shard index of an output; None for a single file
    index_file: str = ""  # the name of this index
    is_index_new: bool = False  # whether the source has another index, or none
    # The file and the header entry of every tensor by name, in file order.
    file_of: Mapping[str, TensorFile] = field(init=False)
    entries: Mapping[str, TensorEntry] = field(init=False)
    is_remote: bool = field(init=False)  # whether only headers of its files were downloaded
    # What was removed from tensor names, such as ``_orig_mod.``, in order: transformers loads none.
    wrappers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        file_of = dict[str, TensorFile]()
        entries = dict[str, TensorEntry]()
        removed = dict[str, None]()
        for file in self.files.values():
            file_of |= dict.fromkeys(file.entries, file)
            entries |= file.entries
            for stored, name in file.names.items():
                for prefix in (f"{COMPILED}.", MODULE):
                    if stored.count(prefix) > name.count(prefix):
                        removed[prefix] = None
        values = {
            "file_of": file_of,
            "entries": entries,
            "is_remote": any(file.is_remote for file in self.files.values()),
            "wrappers": tuple(removed),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def read_floats(self, name: str) -> NDArray[Any]:
        """Read a float tensor, in its shape and with the `numpy_dtype` of the file.

        Raises:
            CheckpointError: It cannot be read, or has another dtype.
        """
        return read_tensor(self.file_of[name], name, FLOATS)

    @property
    def first_file(self) -> TensorFile:
        """The only file, or the first shard."""
        return next(iter(self.files.values()))

    @property
    def variant(self) -> str | None:
        """The variant, such as ``fp16``; None for plain weights."""
        first_name = next(iter(self.files))
        return filenames.variant_of(PurePosixPath(first_name).name)

    @property
    def is_half(self) -> bool:
        """Whether most values are in half precision."""
        total = 0
        half = 0
        for entry in self.entries.values():
            count = math.prod(entry.shape)
            total += count
            if entry.dtype in HALF_DTYPES:
                half += count
        return 2 * half > total

    def without_wrappers(self, folder: Path, model: PurePosixPath) -> "Weights":
        """Return weights with the plain names of tensors, and an index of these if there is one.

        Args:
            folder: The model's folder, for messages.
            model: The same, relative to the checkpoint's.

        Raises:
            CheckpointError: Two names become one.
        """
        joined = "\n".join(self.file_of)  # one search in a text is faster than one in each name
        if COMPILED not in joined and not joined.startswith(MODULE):
            return self
        plain = plain_names(self.file_of, str(folder))
        if all(stored == name for stored, name in plain.items()):
            return self
        files = {path: file.with_names(plain) for path, file in self.files.items()}
        if self.index is None:
            return replace(self, files=files)
        weight_map = dict[str, str]()
        for path, file in files.items():
            shard = PurePosixPath(path).relative_to(model).as_posix()
            weight_map |= dict.fromkeys(file.entries, shard)
        index = {**self.index, "weight_map": dict(sorted(weight_map.items()))}
        return replace(self, files=files, index=index, is_index_new=True)

    def fingerprint(self) -> str:
        """Return a SHA-256 of the headers and of the start, middle and end of every tensor.

        Each of the three has 4 KiB. Tensors of up to 12 KiB are read in full. In larger ones, a
        change between the samples is not detected.

        Raises:
            CheckpointError: A file cannot be read.
        """
        import hashlib  # imported at use: planning needs no hash, and loading OpenSSL is slow

        digest = hashlib.sha256()
        for file in self.files.values():
            digest.update(json.dumps(file.header).encode())
            with open_source(file.path) as opened, reading(file.path):
                for name, entry in file.entries.items():
                    size = entry.size
                    starts = [0]
                    if size > 3 * SAMPLE:
                        last = size - SAMPLE
                        starts = [0, last // 2, last]
                        size = SAMPLE
                    offset = file.offset(name)
                    if offset is None:
                        content = file.read_bytes(name).data
                        for start in starts:
                            digest.update(content[start : start + size])
                        continue
                    for start in starts:
                        opened.seek(offset + start)
                        digest.update(opened.read(size))
        return digest.hexdigest()


def open_weights(
    path: Path, *, ties: bool, is_only_file: bool
) -> tuple[TensorFile, dict[str, Any] | None]:
    """Open a weights file.

    Args:
        path: The file.
        ties: Whether the model ties tensors, so that only one of them is an output's.
        is_only_file: Whether no config and no index belongs to it, so that it may be a nanoGPT
            checkpoint, which contains its config.

    Returns:
        The file, and the config that a nanoGPT checkpoint contains; None for others.

    Raises:
        CheckpointError: The file is malformed, contains no model, or a second config.
    """
    with open_source(path) as opened, reading(path):
        start = opened.read(8)
    if start == b"version ":
        message = f"{path} is a Git LFS pointer, not the file itself."
        raise CheckpointError(message, "Run `git lfs pull` in its folder.")
    if path.suffix == ".safetensors":
        return open_safetensors(path), None
    from ctxextend.checkpoint.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoint.pytorch_file import as_tensor_file, find_tensors, unpickle

    content = unpickle(path)
    if not is_nanogpt(content):
        tensors, names = find_tensors(content, path)
        return as_tensor_file(path, tensors, names, ties=ties), None
    if not is_only_file:
        contains = "which contains its config and all tensors"
        message = f"{path} is a nanoGPT checkpoint, {contains}: no config or index belongs to it."
        raise CheckpointError(message, "Move it to a separate folder.")
    config, tensors = from_nanogpt(content, path)
    return as_tensor_file(path, tensors, {}, ties=ties), config


def open_shards(path: Path, source: Source, model: PurePosixPath, *, ties: bool) -> Weights:
    """Open the shards in an index, sorted by name, and check that they contain its tensors.

    PyTorch shards have the names of the safetensors files that they become, and a new index.

    Args:
        path: The index.
        source: The checkpoint that it belongs to.
        model: The model's folder, relative to the checkpoint's.
        ties: As in `open_weights`.

    Raises:
        CheckpointError: The index or a shard is malformed or missing, or they contradict.
    """
    index = load_object(path)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} has no weight_map.", "Download or save the checkpoint again."
        )
    shard_of = dict[str, str]()
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not filenames.stays_inside(name):
            message = f"{path} maps {tensor!r} to {name!r}, which is not a file inside the folder."
            raise CheckpointError(
                message, "Do not use this checkpoint unless you trust its source."
            )
        shard_of[tensor] = PurePosixPath(name).as_posix()
    shards = _open_each(path, source, sorted(set(shard_of.values())), ties=ties)
    _check_listed(path, shard_of, shards)
    files = dict[str, TensorFile]()
    for name, shard in shards.items():
        files[(model / filenames.shard_name(name)).as_posix()] = shard
    if all(name.endswith(".safetensors") for name in shards):
        return Weights(files=files, index=index, index_file=(model / path.name).as_posix())

    metadata = index.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    total_size = sum(file.tensor_bytes for file in shards.values())
    new_map = dict[str, str]()
    for name, file in shards.items():
        new_map |= dict.fromkeys(file.entries, filenames.shard_name(name))
    new_index = {
        "metadata": metadata | {"total_size": total_size},
        "weight_map": dict(sorted(new_map.items())),
    }
    output_index = path.name.replace("pytorch_model.bin", filenames.SINGLE_FILE)
    return Weights(
        files=files,
        index=new_index,
        index_file=(model / output_index).as_posix(),
        is_index_new=True,
    )


def _open_each(
    path: Path, source: Source, names: Sequence[str], *, ties: bool
) -> dict[str, TensorFile]:
    for name in names:
        if name not in source.remote and not has_file(source, path.parent / name):
            raise CheckpointError(
                f"{path} lists {name}, which is missing.", "Download or copy that shard too."
            )
    output_names = {filenames.shard_name(name) for name in names}
    if len(output_names) < len(names):
        raise CheckpointError(f"{path} lists a shard in two formats.", "Save the checkpoint again.")
    shards = dict[str, TensorFile]()
    for name in names:
        shard = path.parent / name
        if name in source.remote:
            shards[name] = source.remote[name]
        else:
            shards[name], _ = open_weights(shard, ties=ties, is_only_file=False)
    return shards


def _check_listed(path: Path, stated: Mapping[str, str], shards: Mapping[str, TensorFile]) -> None:
    """Check that each tensor is in one shard, and that shards contain those that the index lists.

    A safetensors shard must contain those that the index maps to it. PyTorch shards may contain
    each other's, since they get a new index.
    """
    shard_of = dict[str, str]()
    for name, file in shards.items():
        for tensor in file.entries:
            other = shard_of.setdefault(tensor, name)
            if other != name:
                message = f"{tensor!r} is in both {other} and {name}."
                raise CheckpointError(message, "Save the checkpoint again.")
    names_in = {name: file.names.keys() for name, file in shards.items()}
    names_in_any = set[str]().union(*names_in.values())
    for tensor, shard in stated.items():
        found: Set[str] = names_in_any
        if shard.endswith(".safetensors"):
            found = names_in[shard]
        if tensor not in found:
            message = f"{path} maps {tensor!r} to {shard}, which does not contain it."
            raise CheckpointError(message, "Download the index again.")


def layer_pattern(name: str) -> str:
    """Return a tensor name with ``*`` for the numbers of its layers, as recipes list names."""
    return re.sub(r"\b[0-9]+\b", "*", name)
