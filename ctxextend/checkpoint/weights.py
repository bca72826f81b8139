"""The weights files of a checkpoint: open them, and find their tensors by name."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.filenames import SAFETENSORS, SINGLE_FILE, stays_inside, variant_of
from ctxextend.checkpoint.json_edit import load_object
from ctxextend.checkpoint.safetensors_file import (
    COMPILED,
    FLOATS,
    MODULE,
    TensorEntry,
    TensorFile,
    check_dtype,
    numpy_dtype,
    open_safetensors,
    plain_names,
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
    config: Mapping[str, Any] | None = None  # that a nanoGPT file contains
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

    def read(self, name: str, dtypes: Collection[str] = FLOATS) -> NDArray[Any]:
        """Read a tensor, in its shape and with the `numpy_dtype` of the file.

        Raises:
            CheckpointError: It cannot be read, or has another dtype than these.
        """
        file = self.file_of[name]
        entry = file.entries[name]
        check_dtype(file, name, dtypes)
        return file.read_bytes(name).view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    @property
    def first_file(self) -> TensorFile:
        """The only file, or the first shard."""
        return next(iter(self.files.values()))

    @property
    def variant(self) -> str | None:
        """The variant, such as ``fp16``; None for plain weights."""
        first_name = next(iter(self.files))
        return variant_of(PurePosixPath(first_name).name)

    @property
    def is_half(self) -> bool:
        """Whether most values are in half precision."""
        counts = Counter[bool]()
        for entry in self.entries.values():
            counts[entry.dtype in HALF_DTYPES] += math.prod(entry.shape)
        return counts[True] > counts[False]

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
    source: Source, path: Path, model: PurePosixPath, config: Mapping[str, Any] | None
) -> Weights:
    """Open a weights file, or the shards in an index, and read their headers.

    Files of PyTorch have the names of the safetensors files that they become, and tensors the names
    that transformers loads; then shards get a new index.

    Args:
        source: The checkpoint that they belong to.
        path: The file or the index.
        model: The model's folder, relative to the checkpoint's.
        config: The model's config; None if there is none, so that a single file may be a nanoGPT
            checkpoint, which contains its config.

    Raises:
        CheckpointError: The index or a file is malformed or missing, or they contradict.
    """
    # A model ties tensors unless its config, or one in it, says that it does not.
    configs = [config or {}, *(config or {}).values()]
    ties = all(
        item.get("tie_word_embeddings") is not False
        for item in configs
        if isinstance(item, Mapping)
    )
    index = None
    names = [path.name]
    if fnmatchcase(path.name, "*.index*.json"):
        index = load_object(path)
        names = _shard_names(path, index)
    files = dict[str, TensorFile]()
    own_config = None
    for name in names:
        stored = path.parent / name
        if name in source.remote:
            file: TensorFile = source.remote[name]
        elif index is not None and not has_file(source, stored):
            message = f"{path} lists {name}, which is missing."
            raise CheckpointError(message, "Download or copy that shard too.")
        else:
            is_only_file = config is None and index is None
            file, own_config = _open_file(stored, ties=ties, is_only_file=is_only_file)
        # The names that transformers and PEFT read.
        output_name = name
        if index is None or not name.endswith(SAFETENSORS):
            stem = stored.stem.removeprefix("pytorch_")
            output_name = PurePosixPath(name).with_name(f"{stem}{SAFETENSORS}").as_posix()
            if index is None and not re.fullmatch(r"model|model\.[^.]+|adapter_model", stem):
                output_name = SINGLE_FILE
        if output_name in files:
            message = f"{path} lists a shard in two formats."
            raise CheckpointError(message, "Save the checkpoint again.")
        files[output_name] = file
    if index is not None:
        _check_shards(path, index, files)

    tensors = [name for file in files.values() for name in file.entries]
    joined = "\n".join(tensors)  # one search in a text is faster than one in each name
    if COMPILED in joined or joined.startswith(MODULE):
        plain = plain_names(tensors, str(path.parent))
        if any(name != stored_name for stored_name, name in plain.items()):
            files = {name: file.with_names(plain) for name, file in files.items()}
    is_renamed = any(
        file.path != path.parent / name or any(old != new for old, new in file.names.items())
        for name, file in files.items()
    )
    index_file = ""
    if index is not None:
        if is_renamed:
            index = _new_index(index, files)
        index_name = path.name.replace("pytorch_model.bin", SINGLE_FILE)
        index_file = (model / index_name).as_posix()
    return Weights(
        files={(model / name).as_posix(): file for name, file in files.items()},
        index=index,
        index_file=index_file,
        is_index_new=is_renamed and index is not None,
        config=own_config,
    )


def _open_file(
    path: Path, *, ties: bool, is_only_file: bool
) -> tuple[TensorFile, dict[str, Any] | None]:
    """Return a weights file, and the config that a nanoGPT checkpoint contains.

    Args:
        path: The file.
        ties: Whether the model ties tensors, so that only one of them is an output's.
        is_only_file: Whether no config and no index belongs to it, so that it may be nanoGPT's.

    Raises:
        CheckpointError: The file is malformed, contains no model, or a second config.
    """
    with open_source(path) as opened, reading(path):
        start = opened.read(8)
    if start == b"version ":
        message = f"{path} is a Git LFS pointer, not the file itself."
        raise CheckpointError(message, "Run `git lfs pull` in its folder.")
    if path.suffix == SAFETENSORS:
        return open_safetensors(path), None
    from ctxextend.checkpoint.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoint.pytorch_file import as_tensor_file, find_tensors, unpickle

    content, mapped = unpickle(path)
    if not is_nanogpt(content):
        tensors, names = find_tensors(content, path)
        return as_tensor_file(path, tensors, names, mapped, ties=ties), None
    if not is_only_file:
        contains = "which contains its config and all tensors"
        message = f"{path} is a nanoGPT checkpoint, {contains}: no config or index belongs to it."
        raise CheckpointError(message, "Move it to a separate folder.")
    config, tensors = from_nanogpt(content, path)
    return as_tensor_file(path, tensors, {}, mapped, ties=ties), config


def _shard_names(path: Path, index: Mapping[str, Any]) -> list[str]:
    """Return the shards that an index lists.

    Raises:
        CheckpointError: It lists none, or a file that may be outside the folder.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        message = f"{path} has no weight_map."
        raise CheckpointError(message, "Download or save the checkpoint again.")
    names = set[str]()
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not stays_inside(name):
            message = f"{path} maps {tensor!r} to {name!r}, which is not a file inside the folder."
            hint = "Do not use this checkpoint unless you trust its source."
            raise CheckpointError(message, hint)
        names.add(PurePosixPath(name).as_posix())
    return sorted(names)


def _check_shards(path: Path, index: Mapping[str, Any], files: Mapping[str, TensorFile]) -> None:
    """Check that no tensor is in two shards, and that shards have those that the index lists.

    PyTorch shards may contain each other's, since they get other names and a new index.
    """
    entries = set[str]()
    for file in files.values():
        twice = entries & file.entries.keys()
        if twice:
            message = f"{min(twice)!r} is in both {file.path.name} and another shard."
            raise CheckpointError(message, "Save the checkpoint again.")
        entries |= file.entries.keys()
    names_in = {name: file.names.keys() for name, file in files.items()}
    names_in_any = set[str]().union(*names_in.values())
    for tensor, name in index["weight_map"].items():
        if tensor not in names_in.get(PurePosixPath(name).as_posix(), names_in_any):
            message = f"{path} maps {tensor!r} to {name}, which does not contain it."
            raise CheckpointError(message, "Download the index again.")


def _new_index(index: Mapping[str, Any], files: Mapping[str, TensorFile]) -> dict[str, Any]:
    metadata = index.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    weight_map = dict[str, str]()
    for name, file in files.items():
        weight_map |= dict.fromkeys(file.entries, name)
    total_size = sum(file.tensor_bytes for file in files.values())
    return {
        "metadata": metadata | {"total_size": total_size},
        "weight_map": dict(sorted(weight_map.items())),
    }


def layer_pattern(name: str) -> str:
    """Return a tensor name with ``*`` for the numbers of its layers, as recipes list names."""
    return re.sub(r"\b[0-9]+\b", "*", name)
