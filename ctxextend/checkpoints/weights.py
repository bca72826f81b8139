"""The files that hold a checkpoint's weights: which they are, how they are read, and what they will be called."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.contents import holds
from ctxextend.checkpoints.headers import name_hash
from ctxextend.checkpoints.jsontext import load_object
from ctxextend.checkpoints.noweights import no_weights
from ctxextend.checkpoints.tensorfile import TensorFile, open_tensor_file, read_tensor
from ctxextend.checkpoints.weightnames import (
    SINGLE_FILE,
    VARIANT_FILE,
    first_weights,
    output_name,
    shard_name,
    stays_inside,
)
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    from ctxextend.checkpoints.source import Source
    from ctxextend.checkpoints.torchfile import TorchFile

__all__ = ["Names", "Weights", "WeightsFile", "find_weights", "read_floats"]


# What reads torch files is imported where there is one: most checkpoints have none.
WeightsFile: TypeAlias = "TensorFile | TorchFile"


@dataclass(frozen=True)
class Names(Collection[str]):
    """The names of the tensors in all files, in the files' order; they are read where they are asked for.

    Attributes:
        files: The files.
    """

    files: tuple[WeightsFile, ...]

    def __len__(self) -> int:
        return sum(len(file.entries) for file in self.files)

    def __iter__(self) -> Iterator[str]:
        return (name for file in self.files for name in file.entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def find(self, name: str) -> tuple[int, int] | None:
        """Return which file holds a tensor, and its number there; None where none does."""
        found = ((file, self.files[file].entries.number(name)) for file in self._candidates(name))
        return next(((file, number) for file, number in found if number is not None), None)

    def _candidates(self, name: str) -> list[int]:
        if len(self.files) == 1:
            return [0]
        hashes, files = self._index
        first, behind = (int(np.searchsorted(hashes, name_hash(name), side)) for side in ("left", "right"))
        found: list[int] = files[first:behind].tolist()
        return found

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """The hashes of all names, sorted, and the file that each is from."""
        hashes = np.concatenate([file.entries.hashes for file in self.files])
        files = np.repeat(np.arange(len(self.files)), [len(file.entries) for file in self.files])
        order = np.argsort(hashes, kind="stable")
        return hashes[order], files[order]


@dataclass(frozen=True)
class Weights:
    """The weights of one model folder.

    Attributes:
        files: Its files, in the order of their names.
        used: The names of all of them and of their index, below the folder.
        outputs: What each file will be called, by its name.
        index: The index of the shards, as the output will have it; None for a single file.
        index_name: What that is called; empty for a single file.
        index_text: Its text where the folder has none of that name; else None.
        config: A config.json for a file that has none of its own; else None.
        notes: What the user should know of how they were read.
    """

    files: tuple[WeightsFile, ...]
    used: tuple[str, ...]
    outputs: Mapping[str, str]
    index: Mapping[str, Any] | None = None
    index_name: str = ""
    index_text: str | None = None
    config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def variant(self) -> str | None:
        """The variant that its output is, such as ``fp16``; None for the plain weights."""
        found = VARIANT_FILE.fullmatch(next(iter(self.outputs.values())))
        return found["variant"] if found else None


def find_weights(
    folder: Path,
    config: Mapping[str, Any] | None,
    source: "Source",
    variant: str | None = None,
) -> Weights:
    """Find a folder's weights and read their headers; safetensors win over pickles, a single file over shards.

    Args:
        folder: The model's own folder.
        config: Its config.json, parsed; None where it has none.
        source: Where it came from; its `file` is the one to read, where it names one.
        variant: The variant to read, such as ``fp16``.

    Raises:
        CheckpointError: There are none, or they are missing, malformed, or lead out of the folder.
    """
    name = _index_of(folder, source) or source.file or first_weights(folder, variant)
    if name is None or not holds(source, folder / name):
        raise no_weights(folder, config, variant, source)
    ties = not _unties(config or {})
    if fnmatch(name, "*.index*.json"):
        return _sharded(folder, name, source, ties)
    if not name.endswith(".safetensors") and config is None:
        return _alone(folder, name)
    opened = _open(folder / name, ties)
    return Weights((opened,), (name,), {name: output_name(name)}, notes=_notes((opened,)))


def _unties(config: Mapping[str, Any]) -> bool:
    """Whether a config, or one inside it, says that transformers ties nothing again."""
    inner = (value for value in config.values() if isinstance(value, Mapping))
    return config.get("tie_word_embeddings") is False or any(map(_unties, inner))


def read_floats(file: WeightsFile, name: str) -> NDArray[Any]:
    """Read one float tensor, its dtype as `numpy_dtype` gives it.

    Raises:
        CheckpointError: It holds no floats that can be interpolated, or the file cannot be read or shrank.
    """
    if isinstance(file, TensorFile):
        return read_tensor(file, name)
    from ctxextend.checkpoints.torchfile import read_torch_tensor

    return read_torch_tensor(file, name)


def _index_of(folder: Path, source: "Source") -> str | None:
    """Return the index that lists the file that was named as one of its shards, or None."""
    known = ("model.safetensors.index*.json", "pytorch_model.bin.index*.json")
    indices = sorted(path.name for pattern in known for path in folder.glob(pattern)) if source.file else []
    maps = {name: load_object(folder / name).get("weight_map") for name in indices if holds(source, folder / name)}
    return next((name for name, map_ in maps.items() if isinstance(map_, dict) and source.file in map_.values()), None)


def _open(path: Path, ties: bool) -> WeightsFile:
    if path.suffix == ".safetensors":
        return open_tensor_file(path)
    opened, config = _open_torch(path, ties)
    if config is not None:
        raise CheckpointError(
            f"{path} is a checkpoint of nanoGPT, which says itself what a config would, and lies beside a config.json.",
            "Move it into a folder of its own.",
        )
    return opened


def _open_torch(path: Path, ties: bool) -> tuple["TorchFile", dict[str, Any] | None]:
    """Read a torch file, and the config that one of nanoGPT's stands for."""
    from ctxextend.checkpoints.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoints.pickles import load_pickle, status_of
    from ctxextend.checkpoints.torchfile import find_tensors, torch_file

    status, stored = status_of(path), load_pickle(path)
    converts = is_nanogpt(stored.content)
    config, tensors = from_nanogpt(stored) if converts else (None, find_tensors(stored.content, path))
    return torch_file(stored, tensors, status, ties=ties), config


def _alone(folder: Path, name: str) -> Weights:
    """Read a torch file that lies beside no config."""
    from ctxextend.checkpoints.nanogpt import NOTE

    opened, config = _open_torch(folder / name, ties=True)
    notes = (NOTE,) if config is not None else ()
    return Weights((opened,), (name,), {name: output_name(name)}, config=config, notes=(*notes, *_notes((opened,))))


def _notes(files: tuple[WeightsFile, ...]) -> tuple[str, ...]:
    read = [file for file in files if not isinstance(file, TensorFile) and not file.stored.is_mapped]
    size = sum(file.size for file in read)
    names = ", ".join(file.path.name for file in read)
    why = "is from before torch 1.6, or in another byte order, and cannot be mapped"
    return (f"{names} {why}: reading it takes {size:,} bytes of memory.",) if read else ()


def _sharded(folder: Path, name: str, source: "Source", ties: bool) -> Weights:
    index = load_object(folder / name)
    names = _shards(folder / name, index, source)
    files = tuple(_open(folder / shard, ties) for shard in names)
    _check_index(folder / name, index, files)
    _check_unique(files)
    outputs = {shard: shard_name(shard) for shard in names}
    if len(set(outputs.values())) < len(outputs):
        raise CheckpointError(
            f"{folder / name}: {', '.join(names)} would get one name as safetensors.", "Give the shards other names."
        )
    if all(isinstance(file, TensorFile) for file in files):
        return Weights(files, (*names, name), outputs, index, name)
    index = _converted(index, dict(zip(outputs.values(), files, strict=True)))
    text = json.dumps(index, indent=2) + "\n"
    index_name = name.replace("pytorch_model.bin", SINGLE_FILE)
    return Weights(files, (*names, name), outputs, index, index_name, text, notes=_notes(files))


def _converted(index: Mapping[str, Any], files: Mapping[str, WeightsFile]) -> dict[str, Any]:
    """Return the index of shards that were pickles, as it is once they are safetensors."""
    metadata = index.get("metadata")
    size = sum(file.entries.size for file in files.values())
    weight_map = {tensor: name for name, file in files.items() for tensor in file.entries}
    return {
        "metadata": (metadata if isinstance(metadata, dict) else {}) | {"total_size": size},
        "weight_map": dict(sorted(weight_map.items())),
    }


def _shards(path: Path, index: Mapping[str, Any], source: "Source") -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map.", "Fetch or save the checkpoint again.")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not stays_inside(name):
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name!r}, which is not inside the folder.",
                "Do not use this checkpoint before you know who wrote that.",
            )
    names = sorted({_normal(name) for name in weight_map.values()})
    for name in names:
        if not holds(source, path.parent / name):
            raise CheckpointError(f"{path} names {name}, which is missing.", "Fetch or copy that shard too.")
    return names


@lru_cache(1 << 14)
def _normal(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _check_index(path: Path, index: Mapping[str, Any], files: tuple[WeightsFile, ...]) -> None:
    by_name = {file.path.relative_to(path.parent).as_posix(): file for file in files}
    for tensor, name in index["weight_map"].items():
        file = by_name[_normal(name)]
        # Torch files are listed by names that are tied or changed on reading; their index is made anew.
        if tensor not in file.entries and isinstance(file, TensorFile):
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name}, where it is not.", "Fetch the index again."
            )


def _check_unique(files: tuple[WeightsFile, ...]) -> None:
    hashes = np.sort(np.concatenate([file.entries.hashes for file in files]))
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    seen: dict[str, WeightsFile] = {}
    for file in files if repeated.size else ():
        for name in file.entries:
            if name in seen:
                raise CheckpointError(
                    f"{name!r} stands in {seen[name].path.name} and in {file.path.name}.", "Save the checkpoint again."
                )
            seen[name] = file
