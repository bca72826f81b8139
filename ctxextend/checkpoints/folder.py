"""A model folder: its config, its weights, and every other file, each copied to an output or left out for a reason."""

import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.copy import Fingerprint, file_fingerprint, open_source, reading
from ctxextend.checkpoints.filenames import (
    IGNORED_NAMES,
    NANOGPT_FILE,
    READABLE,
    SINGLE_FILE,
    STALE,
    VARIANT_FILE,
    first_match,
    first_weights,
    is_code,
    is_known,
    output_name,
    shard_name,
    stays_inside,
    with_variant,
)
from ctxextend.checkpoints.json_edit import load_object, parse_json, read_text
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile, open_safetensors
from ctxextend.checkpoints.source import OUTSIDE, ConfigCheck, Source, has_file, leads_out, not_a_file
from ctxextend.errors import CheckpointError, size_text

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
MODULES = "modules.json"
ADAPTER_PREFIX = "base_model.model."  # what PEFT writes in front of the names of the base model's modules

WEIGHTS_SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}
# What other frameworks call their weights, and how transformers 4, the last that could, is told to read them.
FOREIGN = {"tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"), "flax_model*.msgpack*": ("flax", "from_flax=True")}

SAMPLE = 4096  # bytes that a fingerprint takes at the start, in the middle and at the end of a tensor

# Why files are left out of an output.
CODE = "code, which was not run"
LINKED = "a linked folder"


@dataclass(frozen=True)
class Checkpoint:
    """A model folder whose config and headers were read; names of files are paths below its root."""

    source: Source
    model: PurePosixPath  # the model's own folder; "." but where sentence-transformers has the model in a sub-folder
    config: Mapping[str, Any]  # empty where there is none, as for an adapter
    weights: Mapping[str, TensorFile]  # by the names that an output has them by, in the order of the source's
    index: Mapping[str, Any] | None  # of the shards, as an output has it; None for a single file
    index_file: str  # what that is called
    generated: Mapping[str, str]  # texts that the output needs and the source lacks
    copied: tuple[str, ...]  # every file but the weights that belongs to it, config.json included
    omitted: Mapping[str, str]  # files that are left out of an output, each with the reason
    fingerprints: Mapping[str, Fingerprint]  # of its files, from before they were read
    adapter_of: str | None  # the name of the base model, for what PEFT puts on top of one

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self.source.folder

    @property
    def guarded(self) -> tuple[Path, ...]:
        """What an output must not overlap: the folder, unless one file of it is all that is read, and a named file."""
        file = self.source.file
        return (*((self.root,) if file is None or self.copied else ()), *((self.root / file,) if file else ()))

    @property
    def variant(self) -> str | None:
        """The variant that its output is, such as ``fp16``; None for the plain weights."""
        found = VARIANT_FILE.fullmatch(PurePosixPath(next(iter(self.weights))).name)
        return found["variant"] if found else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how the source was found, and its weights read."""
        notes = list(self.source.notes)
        if CONFIG in self.generated:
            from ctxextend.checkpoints.nanogpt import NOTE

            notes.append(NOTE)
        if in_memory := [file.path for file in self.weights.values() if file.is_in_memory]:
            size = sum(path.stat().st_size for path in in_memory)
            reason = "is from before torch 1.6, or in another byte order, and cannot be mapped"
            names = ", ".join(path.name for path in in_memory)
            notes.append(f"{names} {reason}: reading it takes {size_text(size)} of memory.")
        return tuple(notes)

    @cached_property
    def names(self) -> Mapping[str, TensorFile]:
        """Every tensor's name with the file that holds it, in the files' order."""
        return {name: file for file in self.weights.values() for name in file.entries}

    @cached_property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Every tensor as its file's header describes it, by name in the files' order."""
        return {name: file.entries[name] for name, file in self.names.items()}

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path below the root."""
        return file.path.relative_to(self.root).as_posix()

    @property
    def files(self) -> frozenset[str]:
        """Every file that belongs to it, under the names that an output has them by."""
        index = [self.index_file] if self.index is not None else []
        return frozenset((*self.copied, *self.weights, *index)) - set(self.generated)

    @property
    def config_file(self) -> str:
        """The path of the model's config.json below the root."""
        return (self.model / CONFIG).as_posix()

    @property
    def model_class(self) -> str | None:
        """The class of transformers that its config names; None where it names none."""
        return _model_class(self.config)

    @property
    def has_config(self) -> bool:
        """Whether there is a config.json of its own, which must state the table's length."""
        return self.config_file in (*self.copied, *self.generated)

    def text(self, name: str) -> str:
        """Return a text file's content."""
        return self.generated[name] if name in self.generated else read_text(self.root / name)

    @property
    def code(self) -> tuple[str, ...]:
        """Its files of code, which an output leaves out unless it is to keep them."""
        return tuple(name for name, reason in self.omitted.items() if reason == CODE)

    def with_code(self) -> "Checkpoint":
        """Return it with its code among the files that are copied."""
        omitted = {name: reason for name, reason in self.omitted.items() if reason != CODE}
        return replace(self, copied=tuple(sorted((*self.copied, *self.code))), omitted=omitted)

    def weights_fingerprint(self) -> str:
        """Return a SHA-256 of the weights' headers and of the first, middle and last 4 KiB of every tensor.

        Tensors of up to 12 KiB are read whole. In larger ones, a change between the samples is not seen.
        """
        import hashlib  # at use: a plan alone hashes nothing, and OpenSSL takes its time

        digest = hashlib.sha256()
        for file in self.weights.values():
            digest.update(json.dumps(file.header).encode())
            with open_source(file.path) as opened, reading(file.path):
                for name, entry in file.entries.items():
                    stored = file.stored_range(name)
                    stream = opened if stored else io.BytesIO(file.read_bytes(name).data)
                    start, size = stored or (0, entry.size)
                    ends = size - SAMPLE
                    samples = [(at, SAMPLE) for at in (0, ends // 2, ends)] if size > 3 * SAMPLE else [(0, size)]
                    for at, length in samples:
                        stream.seek(start + at)
                        digest.update(stream.read(length))
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raise CheckpointError if one of its files changed since it was opened."""
        for name, before in self.fingerprints.items():
            if name not in self.omitted and file_fingerprint(self.root / name) != before:
                hint = "Run the command again when it is complete."
                raise CheckpointError(f"{self.root / name} changed while it was read.", hint)


def open_checkpoint(source: Source, variant: str | None = None, check: ConfigCheck = lambda *_: None) -> Checkpoint:
    """Read a folder's config, which `check` may refuse, and its weights' headers; see which other files are copied."""
    with reading(source.folder):
        return _open(source, variant, check)


def _open(source: Source, variant: str | None, check: ConfigCheck) -> Checkpoint:
    root = source.folder
    # A file without a config may lie anywhere, and its neighbours are not looked at.
    has_more = any(os.path.lexists(root / name) for name in (CONFIG, ADAPTER_CONFIG, MODULES))
    is_alone = source.file is not None and not has_more
    listed = [str(source.file)] if is_alone else list(_files_below(root))
    # Taken before any file is read: what changes from here on is noticed.
    fingerprints = {name: file_fingerprint(root / name) for name in listed}
    model = _model_folder(source)
    folder = root / model
    config: Mapping[str, Any] | None = None
    if has_file(source, folder / CONFIG):
        config = load_object(folder / CONFIG)
        check(config)
    elif has_file(source, root / ADAPTER_CONFIG):
        config = {}  # its base model lies outside of the folder, wherever the adapter says
    elif not is_alone and not has_file(source, root / NANOGPT_FILE):
        raise _no_config(root, source.notes)
    weights_name = _index_of(folder, source) or source.file or first_weights(folder, variant)
    if weights_name is None or not has_file(source, folder / weights_name):
        check(config or {}, False)
        raise _no_weights(folder, config, variant, source)
    inner = [value for value in (config or {}).values() if isinstance(value, Mapping)]
    ties = not any(value.get("tie_word_embeddings") is False for value in (config or {}, *inner))
    index, index_file, generated = None, "", dict[str, str]()
    if fnmatch(weights_name, "*.index*.json"):
        index, index_file = load_object(folder / weights_name), (model / weights_name).as_posix()
        shards = _open_shards(folder / weights_name, index, source, ties)
        weights = {(model / shard_name(name)).as_posix(): file for name, file in shards.items()}
        if not all(name.endswith(".safetensors") for name in shards):
            stated, size = index.get("metadata"), sum(file.tensor_bytes for file in shards.values())
            weight_map = {tensor: shard_name(name) for name, file in shards.items() for tensor in file.entries}
            metadata = (stated if isinstance(stated, dict) else {}) | {"total_size": size}
            index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
            index_file = index_file.replace("pytorch_model.bin", SINGLE_FILE)
            generated[index_file] = json.dumps(index, indent=2) + "\n"
    else:
        file, generated_config = _open_weights(folder / weights_name, ties, has_config=config is not None)
        weights = {(model / output_name(weights_name)).as_posix(): file}
        if generated_config is not None:
            config, generated[CONFIG] = generated_config, json.dumps(generated_config, indent=2) + "\n"
    paths = [folder / weights_name, *(file.path for file in weights.values())]
    used = {path.relative_to(root).as_posix() for path in paths}
    reasons = {
        name: _reason_omitted(source, model, name) for name in (*listed, *source.not_fetched) if name not in used
    }
    adapter_of = None
    if weights_name.startswith("adapter_model."):
        adapter = load_object(root / ADAPTER_CONFIG) if has_file(source, root / ADAPTER_CONFIG) else {}
        adapter_of = str(adapter.get("base_model_name_or_path") or "its base model")
    copied = tuple(name for name in listed if name not in used and not reasons[name])
    omitted = {name: reason for name, reason in reasons.items() if reason}
    fingerprints = {name: file_fingerprint(root / name) for name in used} | fingerprints
    files = weights, index, index_file, generated, copied, omitted, fingerprints
    return Checkpoint(source, model, config or {}, *files, adapter_of)


def _model_folder(source: Source) -> PurePosixPath:
    """Return where sentence-transformers' modules.json puts the transformer, or the root itself."""
    root = source.folder
    if not has_file(source, root / MODULES):
        return PurePosixPath(".")
    # Old folders have a config.json at the top that holds sentence-transformers' own version and no model.
    if has_file(source, root / CONFIG) and "model_type" in load_object(root / CONFIG):
        return PurePosixPath(".")
    modules = load_modules(root / MODULES)
    paths = [str(module.get("path", "")) for module in modules if str(module.get("type", "")).endswith("Transformer")]
    if len(paths) != 1 or not stays_inside(paths[0]):
        what = f"{root / MODULES} names no transformer in a sub-folder, and {root} holds no config.json."
        raise CheckpointError(what, "Name the folder of a transformers or sentence-transformers checkpoint.")
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
    advice = "Name the folder of a transformers checkpoint, or a weights file with --model-type."
    if below:
        advice = f"Choose one that is in it: {' or '.join(f'--subfolder {shlex.quote(name)}' for name in below)}."
    return CheckpointError(f"{folder} holds no config.json.", " ".join((*notes, advice)))


# ---- weights


def _index_of(folder: Path, source: Source) -> str | None:
    """Return the index that lists the file that was named as one of its shards, or None."""
    for path in sorted(folder.glob("*.index*.json")) if source.file is not None else ():
        weight_map = load_object(path).get("weight_map") if has_file(source, path) else None
        if isinstance(weight_map, dict) and source.file in weight_map.values():
            return path.name
    return None


def _open_weights(path: Path, ties: bool, has_config: bool = True) -> tuple[TensorFile, dict[str, Any] | None]:
    """Open a weights file; for one of nanoGPT's also return the config that it stands for."""
    with open_source(path) as file, reading(path):
        if file.read(8) == b"version ":
            hint = "Run `git lfs pull` in its folder."
            raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", hint)
    if path.suffix == ".safetensors":
        return open_safetensors(path), None
    from ctxextend.checkpoints.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoints.pytorch_file import as_tensor_file, find_tensors, unpickle

    content, mapped = unpickle(path)
    if is_nanogpt(content) and has_config:
        message = f"{path} is a checkpoint of nanoGPT, which says itself what the config.json beside it would."
        raise CheckpointError(message, "Move it into a folder of its own.")
    config, tensors = from_nanogpt(content, path) if is_nanogpt(content) else (None, find_tensors(content, path))
    return as_tensor_file(path, tensors, mapped, ties=ties), config


def _open_shards(path: Path, index: Mapping[str, Any], source: Source, ties: bool) -> dict[str, TensorFile]:
    """Open the shards that an index lists, by their names in order, and check that each tensor is where it says."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map.", "Fetch or save the checkpoint again.")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not stays_inside(shard):
            what = f"{path} says that {tensor!r} is in {shard!r}, which is not inside the folder."
            raise CheckpointError(what, "Do not use this checkpoint before you know who wrote that.")
    shards = {tensor: PurePosixPath(shard).as_posix() for tensor, shard in weight_map.items()}
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if not has_file(source, path.parent / shard)]:
        raise CheckpointError(f"{path} names {missing[0]}, which is missing.", "Fetch or copy that shard too.")
    if len(set(map(shard_name, names))) < len(names):
        raise CheckpointError(f"{path} names a shard twice, in two formats.", "Save the checkpoint again.")
    files = {shard: _open_weights(path.parent / shard, ties)[0] for shard in names}
    held: dict[str, str] = {}
    for shard, file in files.items():
        for tensor in file.entries:
            if held.setdefault(tensor, shard) != shard:
                message = f"{tensor!r} stands in {held[tensor]} and in {shard}."
                raise CheckpointError(message, "Save the checkpoint again.")
    for tensor, shard in shards.items():
        # PyTorch files are listed by names that are tied or changed on reading; their index is made anew.
        if shard.endswith(".safetensors") and held.get(tensor) != shard:
            message = f"{path} says that {tensor!r} is in {shard}, where it is not."
            raise CheckpointError(message, "Fetch the index again.")
    return files


def _no_weights(folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: Source) -> CheckpointError:
    """Return the error for a folder without weights that can be read, with what to type next."""
    here = sorted(path.name for path in folder.iterdir())
    everywhere = (*here, *source.not_fetched)
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in everywhere):
            load = f"transformers.{_model_class(config or {}) or 'AutoModel'}.from_pretrained"
            save = f"save_pretrained({f'{source.name}-safetensors'!r})"
            code = f"import transformers; {load}({source.hub_id or str(folder)!r}, {flag}).{save}"
            what = f"{folder} holds {library.split()[0]} weights alone, which transformers 5 no longer reads."
            hint = f'Convert them with transformers 4: pip install "transformers<5" {library} torch, then python -c '
            return CheckpointError(what, hint + shlex.quote(code))
    others = [name for name in here if Path(name).suffix in WEIGHTS_SUFFIXES]
    readable = [name for name in others if name.endswith(READABLE)]
    variants = dict.fromkeys(match["variant"] for match in map(VARIANT_FILE.fullmatch, everywhere) if match)
    if variant is not None and first_weights(folder, None):
        hint = "Leave --variant out, or fetch the missing file."
    elif variants:
        hint = f"Choose one: {' or '.join(f'--variant {name}' for name in variants)}."
    elif readable:
        hint = f"Name the file itself, {folder / readable[0]}, or fetch the missing one."
    else:
        hint = "Fetch the missing file, or load the model in transformers and save it with save_pretrained."
    wanted = " nor ".join(with_variant(name, variant) for name in (SINGLE_FILE, "pytorch_model.bin"))
    found = f", only {', '.join(others)}" if others else ""
    return CheckpointError(f"{folder} holds neither {wanted}, nor an index of shards{found}.", hint)


def _model_class(config: Mapping[str, Any]) -> str | None:
    """Return the class that a config names; None where it names none, or what cannot be one."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in commands that people paste, and a stranger wrote it.
    return first if isinstance(first, str) and first.isidentifier() and first.isascii() else None


# ---- which files are copied


def _reason_omitted(source: Source, model: PurePosixPath, name: str) -> str | None:
    """Return why a file is left out of an output; None where it may be a part of it."""
    path, here = PurePosixPath(name), source.folder / name
    is_here = name not in source.not_fetched
    for part in path.parts:
        if part in IGNORED_NAMES:
            return f"{IGNORED_NAMES[part]}, not part of the checkpoint"
    if is_here and (kind := not_a_file(here)):
        return LINKED if here.is_dir() else kind
    for name_in in (path, path.relative_to(model)) if model in path.parents else (path,):
        if pattern := first_match(name_in, STALE):
            return STALE[pattern]
    if is_here and leads_out(source.folder, here):
        return OUTSIDE
    if is_code(path):
        return CODE
    # A file of the kind of which the user named one.
    is_other = source.file is not None and path.suffix == PurePosixPath(source.file).suffix and len(path.parts) == 1
    return "other weights, not rewritten" if is_other and not is_known(path) else None


def _files_below(root: Path) -> Iterator[str]:
    """Yield every file below the root, and every folder that is not walked into, sorted in each folder."""
    folders = [root]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or path.name in IGNORED_NAMES or not path.is_dir():
                yield path.relative_to(root).as_posix()
            else:
                folders.append(path)
