"""A model folder: its config, its weights, and its other files, which are copied or skipped."""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from ctxextend.checkpoint import filenames
from ctxextend.checkpoint.copy import Fingerprint, file_fingerprint, reading
from ctxextend.checkpoint.foreign_files import STALE, find_foreign
from ctxextend.checkpoint.json_edit import Edit, load_object, parse_json, read_text
from ctxextend.checkpoint.safetensors_file import TensorFile, open_remote
from ctxextend.checkpoint.source import (
    CACHED_MODEL,
    FOLDER,
    OUTSIDE,
    REGULAR,
    ConfigCheck,
    Source,
    cached_id,
    has_file,
    kind_of_path,
    points_outside,
)
from ctxextend.checkpoint.weights import Weights, open_shards, open_weights
from ctxextend.errors import CheckpointError, size_text
from ctxextend.notes import Code, Level, Note

if TYPE_CHECKING:
    from ctxextend.checkpoint.writing import Layout

CONFIG = "config.json"
DTYPE_KEYS = ("dtype", "torch_dtype")  # of transformers 5, and of older versions
ADAPTER_CONFIG = "adapter_config.json"
MODULES = "modules.json"
ADAPTER_PREFIX = "base_model.model."  # PEFT's prefix of the base model's module names

# How the names of transformers classes with an LM head end.
LM_CLASSES = (
    "LM",
    "LMHeadModel",
    "HeadsModel",
    "EncoderDecoderModel",
    "ForPreTraining",
    "ForConditionalGeneration",
)
# Parts of tensor names of LM heads, for configs that state no class.
LM_TENSORS = ("lm_head.", "predictions.", "vocab_projector.", "embed_out.")

# Why files are skipped.
LINKED = "a symlink to a folder"


@dataclass(frozen=True)
class Checkpoint:
    """A model folder with its config and the headers of its weights.

    File names are relative to its root.
    """

    source: Source
    model: PurePosixPath  # the model's folder: "." or sentence-transformers' subfolder
    config: Mapping[str, Any]  # empty if there is none, as for adapters
    weights: Weights
    generated: Mapping[str, str]  # text files that an output needs but the source lacks
    copied: tuple[str, ...]  # all files to copy, config.json included, except the weights
    omitted: Mapping[str, str]  # skipped files, each with the reason
    fingerprints: Mapping[str, Fingerprint]  # of its files, taken before they are read
    adapter_of: str | None  # the base model of a PEFT adapter; None for other checkpoints
    # Parsed JSON files by name, so that a plan reads each only once, before anything is written.
    objects: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    config_name: str = CONFIG  # or that of a GGUF file, which states its config itself
    is_gguf: bool = False  # whether it consists of a GGUF file
    engine: str | None = None  # the only engine that reads it, as ``--for`` names it; None: many do
    # Of a checkpoint that is one file, and so is an output: its layout by edits of its config, the
    # shapes of changed tensors by name, and the recipe, which it contains.
    layout_of: "Callable[[Sequence[Edit], Mapping[str, tuple[int, ...]], bytes], Layout] | None" = (
        None
    )
    root: Path = field(init=False)  # the folder
    config_file: str = field(init=False)  # the file that states the config
    params_file: str = field(init=False)  # Mistral's params.json, where a folder has one
    # Whether it has a config.json, which must state the table's length.
    has_config: bool = field(init=False)
    model_class: str | None = field(init=False)  # the transformers class in its config, if any
    # All source files that an output contains, by their names in it.
    files: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        config_file = (self.model / self.config_name).as_posix()
        weights = self.weights
        files = {*self.copied, *weights.files}
        if weights.index is not None and weights.index_file not in self.generated:
            files.add(weights.index_file)
        values = {
            "root": self.source.folder,
            "config_file": config_file,
            "params_file": (self.model / filenames.PARAMS_FILE).as_posix(),
            "has_config": config_file in (*self.copied, *self.generated),
            "model_class": stated_class(self.config),
            "files": frozenset(files),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path relative to the root."""
        return file.path.relative_to(self.root).as_posix()

    def text(self, name: str) -> str:
        """Return the content of a text file.

        Raises:
            CheckpointError: The file cannot be read, or is not UTF-8 text.
        """
        if name in self.generated:
            return self.generated[name]
        return read_text(self.root / name)

    def read_object(self, name: str) -> Mapping[str, Any]:
        """Return the content of a small file that contains one JSON object.

        Raises:
            CheckpointError: The file cannot be read, or contains something else.
        """
        if name not in self.objects:
            self.objects[name] = load_object(self.root / name)
        return self.objects[name]

    def check_unchanged(self) -> None:
        """Check that no file changed since the checkpoint was opened.

        Raises:
            CheckpointError: A file changed.
        """
        for name, before in self.fingerprints.items():
            if name in self.omitted or name in self.source.headers:
                continue
            now = file_fingerprint(self.root / name)
            is_same = (before.size, before.modified) == (now.size, now.modified)
            # A new or removed hard link changes the change time too, but not the content.
            if max(before.names, now.names) > 1:
                is_same = is_same and before.inode == now.inode
            else:
                is_same = is_same and before.changed == now.changed
            if not is_same:
                message = f"{self.root / name} changed while it was read."
                raise CheckpointError(message, "Run the command again once the file is complete.")


def stated_class(config: Mapping[str, Any]) -> str | None:
    """Return the transformers class that a config states; None if it states none."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name is untrusted, and is shown in commands that users paste.
    if isinstance(first, str) and first.isidentifier() and first.isascii():
        return first
    return None


def protected_paths(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """Return the paths that an output must not overlap.

    They are the folder, unless only a single file is read, and that file.
    """
    file = checkpoint.source.file
    paths = list[Path]()
    if file is None or checkpoint.copied:
        paths.append(checkpoint.root)
    if file is not None:
        paths.append(checkpoint.root / file)
    return tuple(paths)


# What to say about a checkpoint


def source_notes(checkpoint: Checkpoint) -> tuple[Note, ...]:
    """Return notes on how the source was resolved and its weights are read."""
    notes = list(checkpoint.source.notes)
    in_memory = [file.path for file in checkpoint.weights.files.values() if file.is_in_memory]
    if in_memory:
        size = sum(path.stat().st_size for path in in_memory)
        names = ", ".join(path.name for path in in_memory)
        text = (
            f"{names} is from before torch 1.6 or in another byte order and cannot be "
            f"memory-mapped: reading it needs {size_text(size)} of memory."
        )
        notes.append(Note(Code.SOURCE, Level.NOTE, text))
    wrappers = checkpoint.weights.wrappers
    if wrappers:
        text = (
            f"Tensor names are read without {', '.join(wrappers)}, which a wrapper added: an "
            "output has plain names."
        )
        notes.append(Note(Code.SOURCE, Level.NOTE, text))
    return tuple(notes)


def no_lm(checkpoint: Checkpoint) -> str:
    """Say why a checkpoint is not a language model, as a clause; empty if it is one."""
    if MODULES in checkpoint.copied:
        return "it is a sentence encoder, and copies retrieve best on long texts"
    if checkpoint.model_class is None:
        for name in checkpoint.weights.entries:
            if any(part in name for part in LM_TENSORS):
                return ""
    return no_lm_head(checkpoint.model_class)


def no_lm_head(model_class: str | None) -> str:
    """Say that a transformers class has no LM head, or that none is stated; empty if it has one."""
    if model_class is None:
        return f"{CONFIG} states no model class, and the weights have no LM head"
    if model_class.endswith(LM_CLASSES):
        return ""
    return f"{model_class} has no LM head"


# Opening a folder


def open_checkpoint(
    source: Source, variant: str | None = None, check: ConfigCheck = lambda *_: None
) -> Checkpoint:
    """Read a folder's config and its weights' headers, and list the other files to copy.

    Args:
        source: The folder and its origin.
        variant: The variant of the weights, such as ``fp16``; None for plain weights.
        check: Is called with the config, and may raise.

    Raises:
        CheckpointError: A file is missing, malformed or unreadable.
    """
    root = source.folder
    with reading(root):
        listed = _list_files(source)
        # Before any file is read.
        fingerprints = {name: file_fingerprint(root / name) for name in listed}
        model = _model_folder(source)
        config = _read_config(source, model, listed)
        if config:
            check(config)
        path = _find_weights(source, root / model, variant)
        if path is None:
            check(config or {}, False)
            _refuse_without_weights(source, root / model, listed, variant)
        weights, own_config = _open_weights(source, model, path, config)
        read = {path.relative_to(root).as_posix()}
        read |= {file.path.relative_to(root).as_posix() for file in weights.files.values()}
        for name in read - fingerprints.keys():
            fingerprints[name] = file_fingerprint(root / name)
        for name, header in source.headers.items():
            fingerprints[name] = Fingerprint(size=header.size)
        copied = list[str]()
        omitted = dict[str, str]()
        for name in (*listed, *source.not_downloaded):
            if name in read:
                continue
            reason = _reason_omitted(source, model, name)
            if reason:
                omitted[name] = reason
            elif name not in source.not_downloaded:
                copied.append(name)
        weights = weights.without_wrappers(root / model, model)
        generated = dict[str, str]()
        if weights.is_index_new:
            generated[weights.index_file] = json.dumps(weights.index, indent=2) + "\n"
        if own_config is not None:
            from ctxextend.checkpoint.nanogpt import ASSUMED_ACTIVATION

            config = own_config
            generated[CONFIG] = json.dumps(config, indent=2) + "\n"
            source = source._replace(notes=(*source.notes, ASSUMED_ACTIVATION))
        adapter_of = None
        if path.name.startswith("adapter_model."):
            adapter_config: Mapping[str, Any] = {}
            if has_file(source, root / ADAPTER_CONFIG):
                adapter_config = load_object(root / ADAPTER_CONFIG)
            adapter_of = str(adapter_config.get("base_model_name_or_path") or "its base model")
        return Checkpoint(
            source=source,
            model=model,
            config=config or {},
            weights=weights,
            generated=generated,
            copied=tuple(copied),
            omitted=omitted,
            fingerprints=fingerprints,
            adapter_of=adapter_of,
            engine=_only_engine(config or {}),
        )


def _only_engine(config: Mapping[str, Any]) -> str | None:
    """Return the only engine that reads the weights of a config; None if many do.

    Weights that mlx-lm quantises have other shapes and dtypes: ``quantize_model`` of its utils.py.
    """
    quantization = config.get("quantization")
    if isinstance(quantization, Mapping) and {"group_size", "bits"} <= quantization.keys():
        return "mlx"
    return None


def open_config(source: Source) -> Mapping[str, Any]:
    """Read only the config of a folder.

    Raises:
        CheckpointError: It is missing, malformed or unreadable.
    """
    with reading(source.folder):
        listed = [name for name in _list_files(source) if name not in source.not_downloaded]
        config = _read_config(source, _model_folder(source), listed)
        if not config:
            _refuse_without_config(source, listed)
        return config


def _open_weights(
    source: Source,
    model: PurePosixPath,
    path: Path,
    config: Mapping[str, Any] | None,
) -> tuple[Weights, Mapping[str, Any] | None]:
    # A model ties tensors unless its config, or one in it, says that it does not.
    values = config or {}
    nested = [value for value in values.values() if isinstance(value, Mapping)]
    ties = not any(item.get("tie_word_embeddings") is False for item in (values, *nested))
    if fnmatch(path.name, "*.index*.json"):
        return open_shards(path, source, model, ties=ties), None
    own_config = None
    if path.name in source.headers:
        file: TensorFile = open_remote(path, *source.headers[path.name])
    else:
        file, own_config = open_weights(path, ties=ties, is_only_file=config is None)
    # A name that transformers and PEFT read.
    name = filenames.SINGLE_FILE
    stem = path.name.rpartition(".")[0].removeprefix("pytorch_")
    if re.fullmatch(r"model|model\.[^.]+|adapter_model", stem):
        name = f"{stem}.safetensors"
    return Weights(files={(model / name).as_posix(): file}), own_config


def _refuse_without_config(source: Source, listed: Sequence[str]) -> NoReturn:
    folder = source.folder
    if folder.name.startswith(CACHED_MODEL):
        message = f"{folder} is a folder of the Hub cache, and its checkpoints are below."
        raise CheckpointError(message, f"Pass the Hub id: {cached_id(folder.name)}")
    message = f"{folder} has no config.json"
    subfolders = sorted(shlex.quote(path.parent.name) for path in folder.glob("*/config.json"))
    if subfolders:
        hint = f"Found checkpoints in: {', '.join(subfolders)}. Pass one with --subfolder."
        raise CheckpointError(f"{message}.", hint)
    hint = "Pass the folder of a transformers checkpoint, or a weights file with --model-type."
    _refuse_incomplete(message, hint, (*listed, *source.not_downloaded))


def _refuse_without_weights(
    source: Source, folder: Path, listed: Sequence[str], variant: str | None
) -> NoReturn:
    names = list[str]()
    for name in (*listed, *source.not_downloaded):
        path = source.folder / name
        if folder in path.parents:
            names.append(path.relative_to(folder).as_posix())
    variants = dict.fromkeys(filter(None, map(filenames.variant_of, names)))
    readable = list[str]()
    for name in names:
        is_local = name.endswith(filenames.READABLE) and (folder / name).is_file()
        if is_local and "/" not in name and find_foreign((name,)) is None:
            readable.append(name)
    single = filenames.with_variant(filenames.SINGLE_FILE, variant)
    pytorch = filenames.with_variant("pytorch_model.bin", variant)
    message = f"{folder} has no {single}, {pytorch} or shard index"
    if readable:
        message += f", only {', '.join(readable)}"
    if variant is not None and filenames.first_weights(folder, None):
        raise CheckpointError(f"{message}.", "Remove --variant, or download the missing file.")
    if variants:
        flags = " or ".join(f"--variant {name}" for name in variants)
        raise CheckpointError(f"{message}.", f"Choose one: {flags}.")
    if readable:
        hint = f"Pass the file itself, {folder / readable[0]}, or download the missing one."
        raise CheckpointError(f"{message}.", hint)
    hint = (
        "Download the missing file. If --edit-only wrote the folder, run the command that it "
        "printed."
    )
    _refuse_incomplete(message, hint, names)


def _refuse_incomplete(message: str, hint: str, names: Sequence[str]) -> NoReturn:
    foreign = find_foreign(names)
    if foreign is None:
        raise CheckpointError(f"{message}.", hint)
    name, row = foreign
    raise CheckpointError(f"{message}, only {name}: {row.kind}.", row.hint)


def _list_files(source: Source) -> list[str]:
    """Return the names of the files that belong to a checkpoint.

    They are every file below the root, and every ignored or linked folder, sorted per folder.
    """
    if source.file is not None:
        foreign = find_foreign((source.file,))
        if foreign is not None:
            _, row = foreign
            raise CheckpointError(f"{source.reference} is {row.kind}.", row.hint)
        # Without a config, it may be in any folder, so other files there are ignored.
        if _is_single_file(source):
            return [source.file]
    names = list[str]()
    folders = [source.folder]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or path.name in filenames.IGNORED_NAMES or not path.is_dir():
                names.append(path.relative_to(source.folder).as_posix())
            else:
                folders.append(path)
    return names


def _is_single_file(source: Source) -> bool:
    configs = (CONFIG, ADAPTER_CONFIG, MODULES)
    has_config = any(os.path.lexists(source.folder / name) for name in configs)
    return source.file is not None and not has_config


def _read_config(
    source: Source, model: PurePosixPath, listed: Sequence[str]
) -> Mapping[str, Any] | None:
    root = source.folder
    path = root / model / CONFIG
    if has_file(source, path):
        return load_object(path)
    if has_file(source, root / ADAPTER_CONFIG):
        return {}  # the adapter's base model is elsewhere
    if _is_single_file(source) or has_file(source, root / filenames.NANOGPT_FILE):
        return None
    _refuse_without_config(source, listed)


def _find_weights(source: Source, folder: Path, variant: str | None) -> Path | None:
    name = source.file
    if name is not None:
        # An index that lists the file as a shard.
        for path in sorted(folder.glob("*.index*.json")):
            if has_file(source, path):
                weight_map = load_object(path).get("weight_map")
                if isinstance(weight_map, dict) and source.file in weight_map.values():
                    name = path.name
                    break
    else:
        name = filenames.first_weights(folder, variant)
        if name is None and source.headers:
            name = filenames.with_variant(filenames.SINGLE_FILE, variant)
    if name is None:
        return None
    is_remote = folder == source.folder and name in source.headers
    if not is_remote and not has_file(source, folder / name):
        return None
    return folder / name


def _model_folder(source: Source) -> PurePosixPath:
    root = source.folder
    if not has_file(source, root / MODULES):
        return PurePosixPath(".")
    # In old folders, the config.json in the root contains only sentence-transformers' version.
    if has_file(source, root / CONFIG) and "model_type" in load_object(root / CONFIG):
        return PurePosixPath(".")
    paths = list[str]()
    for module in load_modules(root / MODULES):
        if str(module.get("type", "")).endswith("Transformer"):
            paths.append(str(module.get("path", "")))
    if len(paths) != 1 or not filenames.stays_inside(paths[0]):
        message = (
            f"{root / MODULES} lists no Transformer module in a subfolder, and {root} has no "
            "config.json."
        )
        raise CheckpointError(
            message, "Pass the folder of a transformers or sentence-transformers checkpoint."
        )
    return PurePosixPath(paths[0])


def load_modules(path: Path) -> list[dict[str, Any]]:
    """Read sentence-transformers' modules.json.

    Raises:
        CheckpointError: The file cannot be read, or is not a list of modules.
    """
    modules = parse_json(read_text(path), str(path))
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Download the file again.")
    return modules


def _reason_omitted(source: Source, model: PurePosixPath, name: str) -> str | None:
    path = PurePosixPath(name)
    local = source.folder / name
    is_local = name not in source.not_downloaded
    for part in path.parts:
        if part in filenames.IGNORED_NAMES:
            return f"{filenames.IGNORED_NAMES[part]}, not part of the checkpoint"
    if is_local:
        kind = kind_of_path(local)
        if kind == FOLDER:
            return LINKED
        if kind != REGULAR:
            return kind
    paths = [path]
    if model in path.parents:
        paths.append(path.relative_to(model))
    for relative in paths:
        pattern = filenames.first_match(relative, STALE)
        if pattern is not None:
            return STALE[pattern]
    if is_local and points_outside(source.folder, local):
        return OUTSIDE
    # Next to a weights file that was passed, other ones may be of any model.
    is_alike = source.file is not None and path.suffix == PurePosixPath(source.file).suffix
    if is_alike and len(path.parts) == 1 and not filenames.is_known(path):
        return "other weights, not rewritten"
    return None
