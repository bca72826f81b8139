"""A model folder: its config, its weights, and every other file, each copied to an output or left out for a reason."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from ctxextend.checkpoints.copy import Fingerprint, file_fingerprint
from ctxextend.checkpoints.filenames import NANOGPT_FILE, NOT_OURS, STALE, first_match, is_code, is_known, stays_inside
from ctxextend.checkpoints.json_edit import load_object, parse_json, read_text
from ctxextend.checkpoints.safetensors_file import TensorFile
from ctxextend.checkpoints.source import OUTSIDE, Source, holds, leads_out, not_a_file
from ctxextend.checkpoints.weights import Weights, find_weights, model_class
from ctxextend.errors import CheckpointError

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
MODULES = "modules.json"
# What PEFT writes in front of the names of the base model's modules.
ADAPTER_PREFIX = "base_model.model."

# Why files are left out of an output.
CODE = "code, which was not run"
LINKED = "a linked folder"


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config and headers were read; names of files are paths below its root."""

    source: Source
    model: PurePosixPath  # the model's own folder; "." but where sentence-transformers has the model in a sub-folder
    config: Mapping[str, Any]  # empty where there is none, as for an adapter
    stored: Weights
    made: Mapping[str, str]  # texts that the output needs and the source lacks
    copied: tuple[str, ...]  # every file but the weights that belongs to it, config.json included
    omitted: Mapping[str, str]  # files that are left out of an output, each with the reason
    fingerprints: Mapping[str, Fingerprint]  # of its files, from before they were read
    base: str | None = None  # the name of the base model, for what PEFT puts on top of one

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
    def weights(self) -> tuple[TensorFile, ...]:
        """The files that hold its weights, in the order of their names."""
        return self.stored.files

    @property
    def index(self) -> Mapping[str, Any] | None:
        """The index of its shards, parsed; None for a single file."""
        return self.stored.index

    @cached_property
    def names(self) -> Mapping[str, TensorFile]:
        """Every tensor's name with the file that holds it, in the files' order."""
        return {name: file for file in self.weights for name in file.entries}

    def holder(self, name: str) -> TensorFile:
        """Return the file that holds the tensor of exactly that name; raise KeyError if none does."""
        return self.names[name]

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path below the root."""
        return file.path.relative_to(self.root).as_posix()

    def output_name(self, file: TensorFile) -> str:
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
        """Return a text file's content."""
        return self.made[name] if name in self.made else read_text(self.root / name)

    @property
    def code(self) -> tuple[str, ...]:
        """Its files of code, which an output leaves out unless it is to keep them."""
        return tuple(name for name, why in self.omitted.items() if why == CODE)

    def with_code(self) -> "Checkpoint":
        """Return it with its code among the files that are copied."""
        omitted = {name: why for name, why in self.omitted.items() if why != CODE}
        return replace(self, copied=tuple(sorted((*self.copied, *self.code))), omitted=omitted)

    def check_unchanged(self) -> None:
        """Raise CheckpointError if one of its files changed since it was opened."""
        for name, before in self.fingerprints.items():
            if name not in self.omitted and file_fingerprint(self.root / name) != before:
                hint = "Run the command again when it is complete."
                raise CheckpointError(f"{self.root / name} changed while it was read.", hint)


def open_checkpoint(source: Source, variant: str | None = None) -> Checkpoint:
    """Read a folder's config and the headers of its weights, and decide which of its other files are copied."""
    try:
        return _open(source, variant)
    except OSError as error:
        what = error.filename or source.folder
        raise CheckpointError(f"{what} cannot be read: {error.strerror}.", "Check it and its permissions.") from error


def _open(source: Source, variant: str | None) -> Checkpoint:
    root = source.folder
    # A file without a config may lie anywhere, and its neighbours are not looked at.
    is_alone = source.file is not None and not any(
        os.path.lexists(root / name) for name in (CONFIG, ADAPTER_CONFIG, MODULES)
    )
    listed = [str(source.file)] if is_alone else list(_files_below(root))
    # Taken before any file is read: what changes from here on is noticed.
    early = {name: file_fingerprint(root / name) for name in listed}
    model = _model_folder(source)
    config: Mapping[str, Any] | None = None
    if holds(source, root / model / CONFIG):
        config = load_object(root / model / CONFIG)
    elif holds(source, root / ADAPTER_CONFIG):
        config = {}  # its base model lies outside of the folder, wherever the adapter says
    elif not is_alone and not holds(source, root / NANOGPT_FILE):
        raise _no_config(root, source.notes)
    stored = find_weights(root / model, config, source, variant)
    used = {(model / name).as_posix() for name in stored.used}
    reasons = {name: _why_omitted(source, model, name) for name in listed if name not in used}
    omitted = {name: why for name, why in reasons.items() if why}
    omitted |= {name: why for name in source.not_fetched if (why := _reason_by_name(PurePosixPath(name), model))}
    fingerprints = {name: early.get(name) or file_fingerprint(root / name) for name in (*sorted(used), *reasons)}
    made = {}
    if stored.config is not None:
        made[CONFIG] = json.dumps(stored.config, indent=2) + "\n"
    if stored.index_text is not None:
        made[(model / stored.index_name).as_posix()] = stored.index_text
    base = None
    if any(name.startswith("adapter_model.") for name in stored.used):
        adapter = load_object(root / ADAPTER_CONFIG) if holds(source, root / ADAPTER_CONFIG) else {}
        base = str(adapter.get("base_model_name_or_path") or "its base model")
    return Checkpoint(
        source,
        model,
        (stored.config if config is None else config) or {},
        stored,
        made,
        tuple(name for name, why in reasons.items() if why is None),
        omitted,
        {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint},
        base,
    )


def _model_folder(source: Source) -> PurePosixPath:
    """Return where sentence-transformers' modules.json puts the transformer, or the root itself."""
    root = source.folder
    if not holds(source, root / MODULES):
        return PurePosixPath(".")
    # Old folders have a config.json at the top that holds sentence-transformers' own version and no model.
    if holds(source, root / CONFIG) and "model_type" in load_object(root / CONFIG):
        return PurePosixPath(".")
    modules = load_modules(root / MODULES)
    paths = [str(module.get("path", "")) for module in modules if str(module.get("type", "")).endswith("Transformer")]
    if len(paths) != 1 or not stays_inside(paths[0]):
        raise CheckpointError(
            f"{root / MODULES} names no transformer in a sub-folder, and {root} holds no config.json.",
            "Name the folder of a transformers or sentence-transformers checkpoint.",
        )
    return PurePosixPath(paths[0])


def load_modules(path: Path) -> list[dict[str, Any]]:
    """Read sentence-transformers' list of modules."""
    modules = parse_json(read_text(path), str(path))
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Fetch the file again.")
    return modules


def _no_config(folder: Path, notes: tuple[str, ...]) -> CheckpointError:
    inside = (path for path in folder.glob(f"*/{CONFIG}") if path.is_file() and not leads_out(folder, path))
    below = sorted(path.parent.name for path in inside if "model_type" in load_object(path))
    advice = "Name the folder of a transformers checkpoint, or a weights file with --family."
    if below:
        advice = f"Choose one that is in it: {' or '.join(f'--subfolder {shlex.quote(name)}' for name in below)}."
    return CheckpointError(f"{folder} holds no config.json.", " ".join((*notes, advice)))


# ---- which files are copied


def _why_omitted(source: Source, model: PurePosixPath, name: str) -> str | None:
    """Return why a file that is there is left out of an output; None where it is copied."""
    root, path = source.folder, PurePosixPath(name)
    if path.name not in NOT_OURS and (kind := not_a_file(root / path)):
        return LINKED if (root / path).is_dir() else kind
    if why := _reason_by_name(path, model):
        return why
    if (root / path).is_symlink() and leads_out(root, root / path):
        return OUTSIDE
    if is_code(path):
        return CODE
    # A file of the kind of which the user named one.
    is_other = source.file is not None and path.suffix == PurePosixPath(source.file).suffix and len(path.parts) == 1
    return "other weights, not rewritten" if is_other and not is_known(path) else None


def _reason_by_name(path: PurePosixPath, model: PurePosixPath) -> str | None:
    """Return why a file of that name is no part of an output; None where it may be one."""
    if path.name in NOT_OURS:
        return f"{NOT_OURS[path.name]}, not part of the checkpoint"
    below = [path, *([path.relative_to(model)] if model in path.parents else [])]
    return next((STALE[pattern] for part in below if (pattern := first_match(part, STALE))), None)


def _files_below(root: Path) -> Iterator[str]:
    """Yield every file below the root, and every folder that is not walked into, in sorted order."""
    for folder, folders, files in os.walk(root, onerror=_raise):
        here = Path(folder)
        skipped = [name for name in folders if name in NOT_OURS or (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - set(skipped))
        for name in sorted([*files, *skipped]):
            yield (here / name).relative_to(root).as_posix()


def _raise(error: OSError) -> NoReturn:
    raise error
