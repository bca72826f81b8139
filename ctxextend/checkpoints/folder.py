"""A model folder: its config, its weights, and its other files, which are copied to an output or
skipped.
"""

import io
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints import filenames
from ctxextend.checkpoints.copy import Fingerprint, file_fingerprint, open_source, reading
from ctxextend.checkpoints.json_edit import load_object, parse_json, read_text
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile, open_safetensors
from ctxextend.checkpoints.source import (
    OUTSIDE,
    ConfigCheck,
    Source,
    has_file,
    not_a_file,
    points_outside,
)
from ctxextend.checkpoints.training_files import check_training_file, find_parts, may_be_model
from ctxextend.checkpoints.wrappers import removed_wrappers, without_prefix, without_wrappers
from ctxextend.errors import CheckpointError, size_text

CONFIG, ADAPTER_CONFIG, MODULES = "config.json", "adapter_config.json", "modules.json"
ADAPTER_PREFIX = "base_model.model."  # PEFT's prefix of the base model's module names
WEIGHTS_SUFFIXES = {
    ".bin",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pt",
    ".pth",
    ".safetensors",
}
# Weights that only transformers up to version 4 loads, with the packages and the flag that it needs
# for them.
FOREIGN = {
    "tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"),
    "flax_model*.msgpack*": ("flax", "from_flax=True"),
}

# How the names of transformers classes with an LM head end.
LM_CLASSES = (
    "LM",
    "LMHeadModel",
    "HeadsModel",
    "EncoderDecoderModel",
    "ForPreTraining",
    "ForConditionalGeneration",
)
LM_TENSORS = (
    "lm_head.",
    "predictions.",
    "vocab_projector.",
    "embed_out.",
)  # for configs that state no class

SAMPLE = 4096  # bytes per sample of a fingerprint: the start, the middle and the end of a tensor
CODE, LINKED = "code, never executed", "a symlink to a folder"  # why files are skipped


@dataclass(frozen=True)
class Checkpoint:
    """A model folder with its config and the headers of its weights; file names are relative to its
    root.
    """

    source: Source
    model: PurePosixPath  # the model's folder: "." or sentence-transformers' subfolder
    config: Mapping[str, Any]  # empty if there is none, as for adapters
    weights: Mapping[str, TensorFile]  # by their names in an output, in source order
    index: Mapping[str, Any] | None  # shard index of an output; None for a single file
    index_file: str  # its name
    generated: Mapping[str, str]  # text files that an output needs but the source lacks
    copied: tuple[str, ...]  # all files to copy, config.json included, except the weights
    omitted: Mapping[str, str]  # skipped files, each with the reason
    fingerprints: Mapping[str, Fingerprint]  # of its files, taken before they are read
    adapter_of: str | None  # the base model of a PEFT adapter; None for other checkpoints
    # Parsed JSON files by name, so that a plan reads each only once, before anything is written.
    objects: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def root(self) -> Path:
        """The folder."""
        return self.source.folder

    @property
    def protected(self) -> tuple[Path, ...]:
        """Paths that an output must not overlap: the folder, unless only a single file is read, and
        that file.
        """
        file = self.source.file
        return (
            *((self.root,) if file is None or self.copied else ()),
            *((self.root / file,) if file else ()),
        )

    @property
    def variant(self) -> str | None:
        """The variant of its weights, such as ``fp16``; None for plain weights."""
        match = filenames.VARIANT_FILE.fullmatch(PurePosixPath(next(iter(self.weights))).name)
        return match["variant"] if match else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the source was resolved and its weights are read."""
        notes = list(self.source.notes)
        if in_memory := [file.path for file in self.weights.values() if file.is_in_memory]:
            size = sum(path.stat().st_size for path in in_memory)
            reason = "is from before torch 1.6 or in another byte order"
            names = ", ".join(path.name for path in in_memory)
            notes.append(
                f"{names} {reason} and cannot be memory-mapped: reading it needs "
                f"{size_text(size)} of memory."
            )
        if removed := ", ".join(self.wrappers):
            notes.append(
                f"Tensor names are read without {removed}, which a wrapper added: an output has "
                "plain names."
            )
        return tuple(notes)

    @property
    def wrappers(self) -> list[str]:
        """What was removed from the names of its tensors, such as ``_orig_mod.``; transformers
        loads none of these.
        """
        return removed_wrappers(self.weights.values())

    @cached_property
    def names(self) -> Mapping[str, TensorFile]:
        """The file of every tensor by name, in file order."""
        return {name: file for file in self.weights.values() for name in file.entries}

    @cached_property
    def entries(self) -> Mapping[str, TensorEntry]:
        """The header entry of every tensor by name, in file order."""
        return {name: file.entries[name] for name, file in self.names.items()}

    @property
    def is_half(self) -> bool:
        """Whether most of its values are in half precision."""
        values = sum(
            entry.size // 2 for entry in self.entries.values() if entry.dtype in ("BF16", "F16")
        )
        return 2 * values > sum(math.prod(entry.shape) for entry in self.entries.values())

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path relative to the root."""
        return file.path.relative_to(self.root).as_posix()

    @property
    def files(self) -> frozenset[str]:
        """All source files that an output contains, by their names in it."""
        index = (
            [self.index_file]
            if self.index is not None and self.index_file not in self.generated
            else []
        )
        return frozenset((*self.copied, *self.weights, *index))

    @property
    def config_file(self) -> str:
        """The path of the model's config.json relative to the root."""
        return (self.model / CONFIG).as_posix()

    @property
    def model_class(self) -> str | None:
        """The transformers class in its config; None if there is none."""
        return _model_class(self.config)

    @property
    def no_lm(self) -> str:
        """Why it is not a language model, as a clause; empty if it is one."""
        if MODULES in self.copied:
            return "it is a sentence encoder, and copies retrieve best on long texts"
        if self.model_class is None and any(
            part in name for part in LM_TENSORS for name in self.entries
        ):
            return ""
        return no_lm_head(self.model_class)

    @property
    def has_config(self) -> bool:
        """Whether it has a config.json, which must state the table's length."""
        return self.config_file in (*self.copied, *self.generated)

    def text(self, name: str) -> str:
        """Return the content of a text file."""
        return self.generated[name] if name in self.generated else read_text(self.root / name)

    def read_object(self, name: str) -> Mapping[str, Any]:
        """Return the content of a small file that contains one JSON object."""
        if name not in self.objects:
            self.objects[name] = load_object(self.root / name)
        return self.objects[name]

    @property
    def code(self) -> tuple[str, ...]:
        """Its code files, which are copied only with --copy-code."""
        return tuple(name for name, reason in self.omitted.items() if reason == CODE)

    def with_code(self) -> "Checkpoint":
        """Return a checkpoint that also copies its code files."""
        omitted = {name: reason for name, reason in self.omitted.items() if reason != CODE}
        return replace(self, copied=tuple(sorted((*self.copied, *self.code))), omitted=omitted)

    def without_prefix(self, prefix: str) -> "Checkpoint":
        """Return a checkpoint whose tensors have names without a prefix that all of them have."""
        return self.with_weights(without_prefix(self.weights, prefix, str(self.root)))

    def with_weights(self, weights: Mapping[str, TensorFile]) -> "Checkpoint":
        """Return a checkpoint with other names of tensors in its weights, and an index of these
        names.
        """
        if weights == self.weights:
            return self
        if self.index is None:
            return replace(self, weights=weights)
        weight_map = dict[str, str]()
        for path, file in weights.items():
            shard = PurePosixPath(path).relative_to(self.model).as_posix()
            weight_map |= dict.fromkeys(file.entries, shard)
        index = {**self.index, "weight_map": dict(sorted(weight_map.items()))}
        generated = {**self.generated, self.index_file: json.dumps(index, indent=2) + "\n"}
        return replace(self, weights=weights, index=index, generated=generated)

    def weights_fingerprint(self) -> str:
        """Return a SHA-256 of the weights' headers and of the first, middle and last 4 KiB of every
        tensor.

        Tensors of up to 12 KiB are read in full. In larger ones, a change between the samples is
        not detected.
        """
        import hashlib  # imported at use: planning needs no hash, and loading OpenSSL is slow

        digest = hashlib.sha256()
        for file in self.weights.values():
            digest.update(json.dumps(file.header).encode())
            with open_source(file.path) as opened, reading(file.path):
                for name, entry in file.entries.items():
                    stored = file.stored_range(name)
                    stream = opened if stored else io.BytesIO(file.read_bytes(name).data)
                    start, size = stored or (0, entry.size)
                    ends = size - SAMPLE
                    samples = (
                        [(first, SAMPLE) for first in (0, ends // 2, ends)]
                        if size > 3 * SAMPLE
                        else [(0, size)]
                    )
                    for first, length in samples:
                        stream.seek(start + first)
                        digest.update(stream.read(length))
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raise CheckpointError if a file changed since the checkpoint was opened."""
        for name, before in self.fingerprints.items():
            if name not in self.omitted and file_fingerprint(self.root / name) != before:
                hint = "Run the command again once the file is complete."
                raise CheckpointError(f"{self.root / name} changed while it was read.", hint)


def open_checkpoint(
    source: Source, variant: str | None = None, check: ConfigCheck = lambda *_: None
) -> Checkpoint:
    """Read a folder's config, validated by `check`, and its weights' headers, and list the other
    files to copy.
    """
    with reading(source.folder):
        return _open_folder(source, variant, check)


def _open_folder(source: Source, variant: str | None, check: ConfigCheck) -> Checkpoint:
    root = source.folder
    # A single weights file without a config may be in any folder, so other files there are ignored.
    has_config = any(os.path.lexists(root / name) for name in (CONFIG, ADAPTER_CONFIG, MODULES))
    is_single_file = source.file is not None and not has_config
    listed = [str(source.file)] if is_single_file else list(_files_below(root))
    fingerprints = {
        name: file_fingerprint(root / name) for name in listed
    }  # before any file is read
    model = _model_folder(source)
    folder = root / model
    config: Mapping[str, Any] | None = None
    if has_file(source, folder / CONFIG):
        config = load_object(folder / CONFIG)
        check(config)
    elif has_file(source, root / ADAPTER_CONFIG):
        config = {}  # the adapter's base model is elsewhere
    elif not is_single_file and not has_file(source, root / filenames.NANOGPT_FILE):
        raise _no_config(root)
    weights_name = (
        _find_index(folder, source) or source.file or filenames.first_weights(folder, variant)
    )
    if weights_name is None or not has_file(source, folder / weights_name):
        check(config or {}, False)
        raise _no_weights(folder, config, variant, source)
    nested = [value for value in (config or {}).values() if isinstance(value, Mapping)]
    ties = not any(value.get("tie_word_embeddings") is False for value in (config or {}, *nested))
    index = None
    index_file = ""
    generated = dict[str, str]()
    if fnmatch(weights_name, "*.index*.json"):
        index, index_file = load_object(folder / weights_name), (model / weights_name).as_posix()
        shards = _open_shards(folder / weights_name, index, source, ties)
        weights = {
            (model / filenames.shard_name(name)).as_posix(): file for name, file in shards.items()
        }
        if not all(name.endswith(".safetensors") for name in shards):
            stated, size = index.get("metadata"), sum(file.tensor_bytes for file in shards.values())
            weight_map = {
                key: filenames.shard_name(name)
                for name, file in shards.items()
                for key in file.entries
            }
            metadata = (stated if isinstance(stated, dict) else {}) | {"total_size": size}
            index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
            index_file = index_file.replace("pytorch_model.bin", filenames.SINGLE_FILE)
            generated[index_file] = json.dumps(index, indent=2) + "\n"
    else:
        file, generated_config = _open_weights(
            folder / weights_name, ties, has_config=config is not None
        )
        weights = {(model / filenames.output_name(weights_name)).as_posix(): file}
        if generated_config is not None:
            from ctxextend.checkpoints.nanogpt import NOTE

            config, generated[CONFIG] = (
                generated_config,
                json.dumps(generated_config, indent=2) + "\n",
            )
            source = replace(source, notes=(*source.notes, NOTE))
    paths = [folder / weights_name, *(file.path for file in weights.values())]
    used = {path.relative_to(root).as_posix() for path in paths}
    others = (name for name in (*listed, *source.not_downloaded) if name not in used)
    reasons = {name: _reason_omitted(source, model, name) for name in others}
    adapter_of = None
    if weights_name.startswith("adapter_model."):
        adapter = (
            load_object(root / ADAPTER_CONFIG) if has_file(source, root / ADAPTER_CONFIG) else {}
        )
        adapter_of = str(adapter.get("base_model_name_or_path") or "its base model")
    copied = tuple(name for name in listed if name not in used and not reasons[name])
    omitted = {name: reason for name, reason in reasons.items() if reason}
    fingerprints = {name: file_fingerprint(root / name) for name in used} | fingerprints
    files = weights, index, index_file, generated, copied, omitted, fingerprints
    checkpoint = Checkpoint(source, model, config or {}, *files, adapter_of)
    return checkpoint.with_weights(without_wrappers(weights, str(folder)))


def _model_folder(source: Source) -> PurePosixPath:
    """Return the path of the Transformer module in sentence-transformers' modules.json, else the
    root.
    """
    root = source.folder
    if not has_file(source, root / MODULES):
        return PurePosixPath(".")
    # In old folders, the config.json in the root contains only sentence-transformers' version.
    if has_file(source, root / CONFIG) and "model_type" in load_object(root / CONFIG):
        return PurePosixPath(".")
    modules = load_modules(root / MODULES)
    paths = [
        str(module.get("path", ""))
        for module in modules
        if str(module.get("type", "")).endswith("Transformer")
    ]
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
    """Read sentence-transformers' modules.json."""
    modules = parse_json(read_text(path), str(path))
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Download the file again.")
    return modules


def _no_config(folder: Path) -> CheckpointError:
    if parts := find_parts(folder):
        return parts
    inside = (
        path
        for path in folder.glob(f"*/{CONFIG}")
        if path.is_file() and not points_outside(folder, path)
    )
    subfolders = sorted(path.parent.name for path in inside if "model_type" in load_object(path))
    hint = "Pass the folder of a transformers checkpoint, or a weights file with --model-type."
    if subfolders:
        hint = (
            f"Found checkpoints in: {', '.join(map(shlex.quote, subfolders))}. Pass one with "
            "--subfolder."
        )
    return CheckpointError(f"{folder} has no config.json.", hint)


def _find_index(folder: Path, source: Source) -> str | None:
    """Return the name of the index that lists the passed file as a shard; None if there is none."""
    for path in sorted(folder.glob("*.index*.json")) if source.file is not None else ():
        weight_map = load_object(path).get("weight_map") if has_file(source, path) else None
        if isinstance(weight_map, dict) and source.file in weight_map.values():
            return path.name
    return None


def _open_weights(
    path: Path, ties: bool, has_config: bool = True
) -> tuple[TensorFile, dict[str, Any] | None]:
    """Open a weights file; for a nanoGPT checkpoint also return its config."""
    check_training_file(path)
    with open_source(path) as file, reading(path):
        if file.read(8) == b"version ":
            hint = "Run `git lfs pull` in its folder."
            raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", hint)
    if path.suffix == ".safetensors":
        return open_safetensors(path), None
    from ctxextend.checkpoints.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoints.pytorch_file import (
        as_tensor_file,
        find_stored_names,
        find_tensors,
        unpickle,
    )

    content, mapped = unpickle(path)
    if is_nanogpt(content) and has_config:
        message = (
            f"{path} is a nanoGPT checkpoint, which contains its config, but a config.json is "
            "next to it."
        )
        raise CheckpointError(message, "Move it to a separate folder.")
    if is_nanogpt(content):
        config, tensors = from_nanogpt(content, path)
        return as_tensor_file(path, tensors, mapped, ties=ties), config
    tensors = find_tensors(content, path)
    stored = find_stored_names(content, path)
    return as_tensor_file(path, tensors, mapped, ties=ties, stored_names=stored), None


def _open_shards(
    path: Path, index: Mapping[str, Any], source: Source, ties: bool
) -> dict[str, TensorFile]:
    """Open the shards in an index, sorted by name, and check that each contains its tensors."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} has no weight_map.", "Download or save the checkpoint again."
        )
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not filenames.stays_inside(shard):
            message = f"{path} maps {tensor!r} to {shard!r}, which is not a file inside the folder."
            raise CheckpointError(
                message, "Do not use this checkpoint unless you trust its source."
            )
    shards = {tensor: PurePosixPath(shard).as_posix() for tensor, shard in weight_map.items()}
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if not has_file(source, path.parent / shard)]:
        raise CheckpointError(
            f"{path} lists {missing[0]}, which is missing.", "Download or copy that shard too."
        )
    if len(set(map(filenames.shard_name, names))) < len(names):
        raise CheckpointError(f"{path} lists a shard in two formats.", "Save the checkpoint again.")
    files = {shard: _open_weights(path.parent / shard, ties)[0] for shard in names}
    shard_of: dict[str, str] = {}
    for shard, file in files.items():
        for tensor in file.entries:
            if shard_of.setdefault(tensor, shard) != shard:
                message = f"{tensor!r} is in both {shard_of[tensor]} and {shard}."
                raise CheckpointError(message, "Save the checkpoint again.")
    for tensor, shard in shards.items():
        # Names in PyTorch shards may be tied or renamed on reading, so a new index is generated for
        # them.
        if shard.endswith(".safetensors") and shard_of.get(tensor) != shard:
            message = f"{path} maps {tensor!r} to {shard}, which does not contain it."
            raise CheckpointError(message, "Download the index again.")
    return files


def _no_weights(
    folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: Source
) -> CheckpointError:
    local = sorted(path.name for path in folder.iterdir())
    names = (*local, *source.not_downloaded)
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in names):
            load = f"transformers.{_model_class(config or {}) or 'AutoModel'}.from_pretrained"
            save = f"save_pretrained({f'{source.name}-safetensors'!r})"
            code = f"import transformers; {load}({source.hub_id or str(folder)!r}, {flag}).{save}"
            message = (
                f"{folder} has only {library.split()[0]} weights, which transformers 5 no longer "
                "reads."
            )
            hint = (
                f'Convert them with transformers 4: pip install "transformers<5" {library} '
                "torch, then python -c "
            )
            return CheckpointError(message, hint + shlex.quote(code))
    others = [name for name in local if Path(name).suffix in WEIGHTS_SUFFIXES]
    readable = [name for name in others if name.endswith(filenames.READABLE) and may_be_model(name)]
    variants = dict.fromkeys(
        match["variant"] for match in map(filenames.VARIANT_FILE.fullmatch, names) if match
    )
    if not readable and not variants and (parts := find_parts(folder)):
        return parts
    if variant is not None and filenames.first_weights(folder, None):
        hint = "Remove --variant, or download the missing file."
    elif variants:
        hint = f"Choose one: {' or '.join(f'--variant {name}' for name in variants)}."
    elif readable:
        hint = f"Pass the file itself, {folder / readable[0]}, or download the missing one."
    else:
        hint = (
            "Download the missing file. If --edit-only wrote the folder, run the command that it "
            "printed."
        )
    expected = ", ".join(
        filenames.with_variant(name, variant)
        for name in (filenames.SINGLE_FILE, "pytorch_model.bin")
    )
    found = f", only {', '.join(others)}" if others else ""
    return CheckpointError(f"{folder} has no {expected} or shard index{found}.", hint)


def no_lm_head(model_class: str | None) -> str:
    """Say that a transformers class has no LM head, or that none is stated; empty if it has one."""
    if model_class is None:
        return f"{CONFIG} states no model class, and the weights have no LM head"
    return "" if model_class.endswith(LM_CLASSES) else f"{model_class} has no LM head"


def _model_class(config: Mapping[str, Any]) -> str | None:
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name is untrusted, and is shown in commands that users paste.
    return first if isinstance(first, str) and first.isidentifier() and first.isascii() else None


def _reason_omitted(source: Source, model: PurePosixPath, name: str) -> str | None:
    path = PurePosixPath(name)
    local = source.folder / name
    is_local = name not in source.not_downloaded
    if ignored := [
        filenames.IGNORED_NAMES[part] for part in path.parts if part in filenames.IGNORED_NAMES
    ]:
        return f"{ignored[0]}, not part of the checkpoint"
    if is_local and (kind := not_a_file(local)):
        return LINKED if local.is_dir() else kind
    for relative in (path, path.relative_to(model)) if model in path.parents else (path,):
        if pattern := filenames.first_match(relative, filenames.STALE):
            return filenames.STALE[pattern]
    if is_local and points_outside(source.folder, local):
        return OUTSIDE
    if filenames.is_code(path):
        return CODE
    # If a weights file was passed, skip others with its suffix.
    is_other = (
        source.file is not None
        and path.suffix == PurePosixPath(source.file).suffix
        and len(path.parts) == 1
    )
    return "other weights, not rewritten" if is_other and not filenames.is_known(path) else None


def _files_below(root: Path) -> Iterator[str]:
    """Yield every file below the root, and every ignored or linked folder, sorted per folder."""
    folders = [root]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or path.name in filenames.IGNORED_NAMES or not path.is_dir():
                yield path.relative_to(root).as_posix()
            else:
                folders.append(path)
