"""A model folder: its config, its weights in one file or in shards, and everything else in it."""

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.copying import check_stamp, stamp
from ctxextend.checkpoints.disk import walk
from ctxextend.checkpoints.filenames import NOT_OURS, STALE, matches
from ctxextend.checkpoints.jsontext import load_object, read_text
from ctxextend.checkpoints.source import Source, pickles_alone
from ctxextend.checkpoints.tensorfile import TensorEntry, TensorFile, open_tensor_file
from ctxextend.errors import CheckpointError

__all__ = ["INDEX", "SINGLE_FILE", "Checkpoint", "open_checkpoint"]

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

WEIGHTS_SUFFIXES = {".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".safetensors"}


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config and headers were read.

    Attributes:
        source: Where it came from.
        model: The model's own folder below the root, as a relative path; ``.`` but for sentence-transformers
            folders that keep their transformer in a sub-folder.
        config: The model's config.json, parsed.
        weights: Its safetensors files, in the order of their names.
        index: The index of its shards, parsed; None for a single file.
        copied: Every other file that belongs to it, config.json included, relative to the root.
        omitted: Files that are left out of an output, each with the reason.
        stamps: Size in bytes and modification time in ns of every file that belongs to it, when it was opened.
    """

    source: Source
    model: PurePosixPath
    config: Mapping[str, Any]
    weights: tuple[TensorFile, ...]
    index: Mapping[str, Any] | None
    copied: tuple[str, ...]
    omitted: Mapping[str, str]
    stamps: Mapping[str, tuple[int, int]]

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self.source.folder

    def find(self, name: str) -> tuple[TensorFile, TensorEntry] | None:
        """Return the tensor of exactly that name and the file that holds it, or None."""
        return next(((file, file.entries[name]) for file in self.weights if name in file.entries), None)

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path below the root."""
        return file.path.relative_to(self.root).as_posix()

    @property
    def files(self) -> frozenset[str]:
        """Every file that belongs to it, below the root."""
        index = [self.index_file] if self.index is not None else []
        return frozenset((*self.copied, *map(self.relative, self.weights), *index))

    @property
    def index_file(self) -> str:
        """The path of the shards' index below the root, where there is one."""
        return (self.model / INDEX).as_posix()

    @property
    def config_file(self) -> str:
        """The path of the model's config.json below the root."""
        return (self.model / "config.json").as_posix()

    def check_unchanged(self) -> None:
        """Raise CheckpointError where one of its files is no longer what it was when it was opened."""
        for name, before in self.stamps.items():
            check_stamp(self.root / name, before)


def open_checkpoint(source: Source) -> Checkpoint:
    """Read a folder's config, list its files, and read the headers of its weights.

    Raises:
        CheckpointError: Something is missing, malformed, cannot be read, or leads out of the folder.
    """
    try:
        return _open(source)
    except OSError as error:
        what = error.filename or source.folder
        raise CheckpointError(f"{what} cannot be read: {error.strerror}.", "Check it and its permissions.") from error


def _open(source: Source) -> Checkpoint:
    root = source.folder
    model = _model_folder(root)
    if not (root / model / "config.json").is_file():
        raise _no_config(root, source.notes)
    config = load_object(root / model / "config.json")
    names, index = _weights_files(root / model, config)
    used = [(model / name).as_posix() for name in (*names, *([INDEX] if index is not None else []))]
    copied, omitted = _sort_files(root, model, set(used))
    stamps = {name: found for name in (*used, *copied) if (found := stamp(root / name))}
    weights = tuple(open_tensor_file(root / model / name) for name in names)
    if index is not None:
        _check_index(root / model / INDEX, index, weights)
    _check_unique(weights)
    omitted |= {name: why for name in source.not_fetched if (why := _reason_to_omit(PurePosixPath(name), model))}
    return Checkpoint(source, model, config, weights, index, copied, omitted, stamps)


def _weights_files(folder: Path, config: Mapping[str, Any]) -> tuple[list[str], dict[str, Any] | None]:
    """Return the names of the weights files, and the parsed index where there is one; a single file wins."""
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE], None
    if not (folder / INDEX).is_file():
        raise _no_weights(folder, config)
    index = load_object(folder / INDEX)
    return _shards(folder / INDEX, index), index


def _model_folder(root: Path) -> PurePosixPath:
    """Return where sentence-transformers' modules.json puts the transformer, or the root itself."""
    if not (root / "modules.json").is_file():
        return PurePosixPath(".")
    # Old folders have a config.json at the top that holds sentence-transformers' own version and no model.
    if (root / "config.json").is_file() and "model_type" in load_object(root / "config.json"):
        return PurePosixPath(".")
    modules = load_modules(root / "modules.json")
    paths = [str(module.get("path", "")) for module in modules if str(module.get("type", "")).endswith("Transformer")]
    if len(paths) != 1 or not _stays_inside(paths[0]):
        raise CheckpointError(
            f"{root / 'modules.json'} names no transformer in a sub-folder, and {root} holds no config.json.",
            "Name the folder of a transformers or sentence-transformers checkpoint.",
        )
    return PurePosixPath(paths[0])


def load_modules(path: Path) -> list[dict[str, Any]]:
    """Read sentence-transformers' list of modules.

    Raises:
        CheckpointError: It is not a JSON list of objects.
    """
    try:
        modules = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.", "Fetch the file again.") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Fetch the file again.")
    return modules


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and not path.is_absolute() and ".." not in path.parts and ":" not in name


def _shards(path: Path, index: Mapping[str, Any]) -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map.", "Fetch or save the checkpoint again.")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _stays_inside(name):
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name!r}, which is not inside the folder.",
                "Do not use this checkpoint before you know who wrote that.",
            )
    names = sorted({_normal(name) for name in weight_map.values()})
    for name in names:
        if not (path.parent / name).is_file():
            raise CheckpointError(f"{path} names {name}, which is missing.", "Fetch or copy that shard too.")
    return names


def _normal(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _check_index(path: Path, index: Mapping[str, Any], weights: tuple[TensorFile, ...]) -> None:
    files = {file.path.relative_to(path.parent).as_posix(): file for file in weights}
    for tensor, name in index["weight_map"].items():
        if tensor not in files[_normal(name)].entries:
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name}, where it is not.", "Fetch the index again."
            )


def _check_unique(weights: tuple[TensorFile, ...]) -> None:
    seen: dict[str, TensorFile] = {}
    for file in weights:
        for name in file.entries:
            if name in seen:
                raise CheckpointError(
                    f"{name!r} stands in {seen[name].path.name} and in {file.path.name}.", "Save the checkpoint again."
                )
            seen[name] = file


def _no_config(folder: Path, notes: tuple[str, ...]) -> CheckpointError:
    if (folder / "adapter_config.json").is_file():
        return CheckpointError(
            f"{folder} holds a PEFT adapter.", "Resize its base model, then load the adapter onto that."
        )
    hint = " ".join((*notes, "Name the folder of a transformers checkpoint."))
    return CheckpointError(f"{folder} holds no config.json.", hint)


def _no_weights(folder: Path, config: Mapping[str, Any]) -> CheckpointError:
    if not any(folder.glob("pytorch_model*.bin")):
        others = sorted(path.name for path in folder.iterdir() if path.suffix in WEIGHTS_SUFFIXES)
        found = f", only {', '.join(others)}" if others else ""
        return CheckpointError(
            f"{folder} holds neither {SINGLE_FILE} nor {INDEX}{found}.",
            "Fetch the missing file, or load the model in transformers and save it with save_pretrained.",
        )
    return pickles_alone(str(folder), str(folder), folder.name, config)


def _sort_files(root: Path, model: PurePosixPath, used: set[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Part the folder's other files into those that are copied and those that are left out, with the reason."""
    copied, omitted = [], {}
    for name, mode in _walk(root):
        if name in used:
            continue
        regular = stat.S_ISREG(mode) or PurePosixPath(name).name in NOT_OURS
        reason = _reason_to_omit(PurePosixPath(name), model) if regular else _what_it_is(mode)
        if reason:
            omitted[name] = reason
        else:
            copied.append(name)
    return tuple(copied), omitted


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Yield every file below the root, and every folder that is not walked into, with its mode, in sorted order."""
    for folder, folders, files in walk(root):
        here = Path(folder)
        skipped = [name for name in folders if name in NOT_OURS or (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - set(skipped))
        for name in sorted([*files, *skipped]):
            path = here / name
            try:
                mode = path.stat().st_mode
            except OSError:
                mode = 0
            yield path.relative_to(root).as_posix(), mode


def _what_it_is(mode: int) -> str:
    return "a linked folder" if stat.S_ISDIR(mode) else "not a regular file"


def _reason_to_omit(path: PurePosixPath, model: PurePosixPath) -> str | None:
    if path.name in NOT_OURS:
        return f"{NOT_OURS[path.name]}, not part of the checkpoint"
    below = [path, *([path.relative_to(model)] if model in path.parents else [])]
    return next((why for pattern, why in STALE.items() if any(matches(part, pattern) for part in below)), None)
