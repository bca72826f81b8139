"""A model folder: its config, its weights in one file or in shards, and everything else in it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.contents import CODE, files_below, holds, leads_out, reason_to_omit, sort_files
from ctxextend.checkpoints.copying import check_stamp, stamp
from ctxextend.checkpoints.filenames import is_known
from ctxextend.checkpoints.jsontext import check_depth, load_object, parse_json, read_text
from ctxextend.checkpoints.noweights import model_class
from ctxextend.checkpoints.source import Source
from ctxextend.checkpoints.weightnames import NANOGPT_FILE, stays_inside
from ctxextend.checkpoints.weights import Names, Weights, WeightsFile, find_weights
from ctxextend.errors import CheckpointError

__all__ = ["ADAPTER_PREFIX", "Checkpoint", "WeightsFile", "open_checkpoint"]

CONFIG = "config.json"
OTHER = "other weights, not rewritten"
ADAPTER_CONFIG = "adapter_config.json"
# What PEFT writes in front of the names of the base model's modules.
ADAPTER_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config and headers were read.

    Attributes:
        source: Where it came from.
        model: The model's own folder below the root, as a relative path; ``.`` but for sentence-transformers
            folders that keep their transformer in a sub-folder.
        config: The model's config.json, parsed; empty where there is none, as for an adapter.
        stored: The model's weights.
        made: Text files that the output needs and the source lacks, by their path below the root.
        copied: Every other file that belongs to it, config.json included, relative to the root.
        omitted: Files that are left out of an output, each with the reason.
        stamps: Of every file that belongs to it the `stamp`, from before it was read.
        base: For what PEFT puts on top of a base model, the name of that; else None.
    """

    source: Source
    model: PurePosixPath
    config: Mapping[str, Any]
    stored: Weights
    made: Mapping[str, str]
    copied: tuple[str, ...]
    omitted: Mapping[str, str]
    stamps: Mapping[str, tuple[int, int, int]]
    base: str | None = None

    @property
    def is_adapter(self) -> bool:
        """Whether it holds what PEFT puts on top of a base model."""
        return self.base is not None

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self.source.folder

    @property
    def guarded(self) -> Path:
        """What an output must not stand in: the folder, or the one file of it that is taken."""
        file = self.source.file
        return self.root if file is None or self.copied else self.root / file

    @property
    def weights(self) -> tuple[WeightsFile, ...]:
        """The files that hold its weights, in the order of their names."""
        return self.stored.files

    @property
    def index(self) -> Mapping[str, Any] | None:
        """The index of its shards, parsed; None for a single file."""
        return self.stored.index

    @cached_property
    def names(self) -> Names:
        """The names of all of its tensors."""
        return Names(self.weights)

    def holder(self, name: str) -> WeightsFile:
        """Return the file that holds the tensor of exactly that name."""
        found = self.names.find(name)
        if found is None:
            raise KeyError(name)
        return self.weights[found[0]]

    def relative(self, file: WeightsFile) -> str:
        """Return a weights file's path below the root."""
        return file.path.relative_to(self.root).as_posix()

    def output_name(self, file: WeightsFile) -> str:
        """Return the path of the file that will hold these weights, below the output."""
        name = file.path.relative_to(self.root / self.model).as_posix()
        return (self.model / self.stored.outputs[name]).as_posix()

    @property
    def files(self) -> frozenset[str]:
        """Every file that belongs to it, under the names that an output has them by."""
        index = [self.index_file] if self.index is not None else []
        return frozenset((*self.copied, *map(self.output_name, self.weights), *index)) - set(self.made)

    @property
    def index_file(self) -> str:
        """The path of the shards' index below an output, where there is one."""
        return (self.model / self.stored.index_name).as_posix()

    @property
    def config_file(self) -> str:
        """The path of the model's config.json below the root."""
        return (self.model / CONFIG).as_posix()

    @property
    def model_class(self) -> str | None:
        """The class of transformers that its config names; None where it names none."""
        return model_class(self.config)

    @property
    def has_config(self) -> bool:
        """Whether there is a config.json of its own, which must state the table's length."""
        return self.config_file in (*self.copied, *self.made)

    def text(self, name: str) -> str:
        """Return a text file's content.

        Raises:
            CheckpointError: It is missing, unreadable, or not UTF-8.
        """
        return self.made[name] if name in self.made else read_text(self.root / name)

    @property
    def code(self) -> tuple[str, ...]:
        """Its files of code, which an output leaves out unless it is to keep them."""
        return tuple(name for name, why in self.omitted.items() if why == CODE)

    def with_code(self) -> "Checkpoint":
        """Return it with its code among the files that are copied."""
        omitted = {name: why for name, why in self.omitted.items() if why != CODE}
        stamps = {name: found for name in self.code if (found := stamp(self.root / name))}
        copied = tuple(sorted((*self.copied, *self.code)))
        return replace(self, copied=copied, omitted=omitted, stamps={**self.stamps, **stamps})

    def check_unchanged(self) -> None:
        """Raise CheckpointError where one of its files is no longer what it was when it was opened."""
        for name, before in self.stamps.items():
            check_stamp(self.root / name, before)


def open_checkpoint(source: Source, variant: str | None = None) -> Checkpoint:
    """Read a folder's config, list its files, and read the headers of its weights.

    Args:
        source: From `resolve_source`.
        variant: Which copy of the weights, such as ``fp16``.

    Raises:
        CheckpointError: Something is missing, malformed, cannot be read, or leads out of the folder.
    """
    try:
        return _open(source, variant)
    except OSError as error:
        what = error.filename or source.folder
        raise CheckpointError(f"{what} cannot be read: {error.strerror}.", "Check it and its permissions.") from error


def _open(source: Source, variant: str | None) -> Checkpoint:
    root, early = source.folder, _stamps(source)
    model = _model_folder(source)
    config: Mapping[str, Any] | None = None
    if holds(source, root / model / CONFIG):
        config = load_object(root / model / CONFIG)
    if config is None and holds(source, root / ADAPTER_CONFIG):
        config = {}  # its base model lies outside of the folder, wherever the adapter says
    alone = config is None and source.file is not None
    if config is None and not alone and not holds(source, root / NANOGPT_FILE):
        raise _no_config(root, source.notes)
    stored = find_weights(root / model, config, source, variant)
    used = {(model / name).as_posix() for name in stored.used}
    copied, omitted = ((), {}) if alone else sort_files(source, model, used)
    if source.file is not None:
        others = {name: OTHER for name in copied if _is_alike(PurePosixPath(name), PurePosixPath(source.file))}
        copied, omitted = tuple(name for name in copied if name not in others), omitted | others
    omitted |= {name: why for name in source.not_fetched if (why := reason_to_omit(PurePosixPath(name), model))}
    stamps = {name: early.get(name) or _stamp(root / name) for name in (*sorted(used), *copied)}
    made = _made(model, stored)
    known = stored.config if config is None else config
    base = _base(source) if any(name.startswith("adapter_model.") for name in stored.used) else None
    return Checkpoint(source, model, known or {}, stored, made, copied, omitted, stamps, base)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return the stamp of a file that came while its folder was read."""
    if found := stamp(path):
        return found
    raise CheckpointError(f"{path} went away while its folder was read.", "Run the command again.")


def _stamps(source: Source) -> dict[str, tuple[int, int, int]]:
    """Return the stamp of every file in a folder, taken before any is read: what changes from here on is noticed."""
    if source.file is not None and not (source.folder / CONFIG).exists():
        return {}  # it may lie anywhere, and its neighbours are not looked at
    names = (name for name, _ in files_below(source.folder))
    return {name: found for name in names if (found := stamp(source.folder / name))}


def _is_alike(path: PurePosixPath, file: PurePosixPath) -> bool:
    """Whether a file is another of the kind of which the user named one."""
    return len(path.parts) == 1 and path.suffix == file.suffix and not is_known(path)


def _made(model: PurePosixPath, stored: Weights) -> dict[str, str]:
    made = {}
    if stored.config is not None:
        made[CONFIG] = json.dumps(stored.config, indent=2) + "\n"
    if stored.index_text is not None:
        made[(model / stored.index_name).as_posix()] = stored.index_text
    return made


def _base(source: Source) -> str:
    """Return the name of an adapter's base model."""
    path = source.folder / ADAPTER_CONFIG
    adapter = load_object(path) if holds(source, path) else {}
    return str(adapter.get("base_model_name_or_path") or "its base model")


def _model_folder(source: Source) -> PurePosixPath:
    """Return where sentence-transformers' modules.json puts the transformer, or the root itself."""
    root = source.folder
    if not holds(source, root / "modules.json"):
        return PurePosixPath(".")
    # Old folders have a config.json at the top that holds sentence-transformers' own version and no model.
    if holds(source, root / CONFIG) and "model_type" in load_object(root / CONFIG):
        return PurePosixPath(".")
    modules = load_modules(root / "modules.json")
    paths = [str(module.get("path", "")) for module in modules if str(module.get("type", "")).endswith("Transformer")]
    if len(paths) != 1 or not stays_inside(paths[0]):
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
    modules = parse_json(read_text(path), str(path))
    check_depth([modules], str(path))
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Fetch the file again.")
    return modules


def _no_config(folder: Path, notes: tuple[str, ...]) -> CheckpointError:
    inside = (path for path in folder.glob(f"*/{CONFIG}") if path.is_file() and not leads_out(folder, path))
    below = sorted(path.parent.name for path in inside if "model_type" in load_object(path))
    advice = (
        f"Choose one that is in it: {' or '.join(f'--subfolder {shlex.quote(name)}' for name in below)}."
        if below
        else "Name the folder of a transformers checkpoint, or a weights file with --family."
    )
    hint = " ".join((*notes, advice))
    return CheckpointError(f"{folder} holds no config.json.", hint)
