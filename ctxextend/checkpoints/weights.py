"""The weights of a model folder: which files hold them, how they are read, and what they will be called."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.filenames import (
    READABLE,
    SINGLE_FILE,
    VARIANT_FILE,
    first_weights,
    output_name,
    shard_name,
    stays_inside,
    with_variant,
)
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.safetensors_file import TensorFile, open_safetensors
from ctxextend.checkpoints.source import Source, holds
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    from ctxextend.checkpoints.pytorch_file import PytorchFile

WEIGHTS_SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}
# What other frameworks call their weights, and how transformers 4, the last that could, is told to read them.
FOREIGN = {"tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"), "flax_model*.msgpack*": ("flax", "from_flax=True")}


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

    files: tuple[TensorFile, ...]
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


def find_weights(folder: Path, config: Mapping[str, Any] | None, source: Source, variant: str | None = None) -> Weights:
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
        raise _no_weights(folder, config, variant, source)
    inner = [value for value in (config or {}).values() if isinstance(value, Mapping)]
    ties = not any(value.get("tie_word_embeddings") is False for value in (config or {}, *inner))
    if fnmatch(name, "*.index*.json"):
        return _open_shards(folder, name, source, ties)
    if name.endswith(".safetensors") or config is not None:
        opened = _open(folder / name, ties)
        return Weights((opened,), (name,), {name: output_name(name)}, notes=_notes((opened,)))
    opened, made_config, notes = _open_pytorch(folder / name, ties)
    return Weights(
        (opened,), (name,), {name: output_name(name)}, config=made_config, notes=(*notes, *_notes((opened,)))
    )


def _index_of(folder: Path, source: Source) -> str | None:
    """Return the index that lists the file that was named as one of its shards, or None."""
    known = ("model.safetensors.index*.json", "pytorch_model.bin.index*.json")
    indices = sorted(path.name for pattern in known for path in folder.glob(pattern)) if source.file else []
    for name in indices:
        weight_map = load_object(folder / name).get("weight_map") if holds(source, folder / name) else None
        if isinstance(weight_map, dict) and source.file in weight_map.values():
            return name
    return None


def _open(path: Path, ties: bool) -> TensorFile:
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    opened, config, _ = _open_pytorch(path, ties)
    if config is not None:
        raise CheckpointError(
            f"{path} is a checkpoint of nanoGPT, which says itself what a config would, and lies beside a config.json.",
            "Move it into a folder of its own.",
        )
    return opened


def _open_pytorch(path: Path, ties: bool) -> tuple["PytorchFile", dict[str, Any] | None, tuple[str, ...]]:
    """Read a PyTorch file; for one of nanoGPT's also return the config that it stands for, and a note."""
    from ctxextend.checkpoints.nanogpt import NOTE, from_nanogpt, is_nanogpt
    from ctxextend.checkpoints.pytorch_file import as_tensor_file, find_tensors, unpickle

    unpickled = unpickle(path)
    if is_nanogpt(unpickled.content):
        config, tensors = from_nanogpt(unpickled)
        return as_tensor_file(unpickled, tensors, ties=ties), config, (NOTE,)
    return as_tensor_file(unpickled, find_tensors(unpickled.content, path), ties=ties), None, ()


def _notes(files: tuple[TensorFile, ...]) -> tuple[str, ...]:
    in_memory = [file for file in files if file.is_in_memory]
    size = sum(file.size for file in in_memory)
    names = ", ".join(file.path.name for file in in_memory)
    why = "is from before torch 1.6, or in another byte order, and cannot be mapped"
    return (f"{names} {why}: reading it takes {size:,} bytes of memory.",) if in_memory else ()


# ---- shards


def _open_shards(folder: Path, name: str, source: Source, ties: bool) -> Weights:
    index = load_object(folder / name)
    names = _shard_names(folder / name, index, source)
    files = tuple(_open(folder / shard, ties) for shard in names)
    _check_index(folder / name, index, files)
    outputs = {shard: shard_name(shard) for shard in names}
    if len(set(outputs.values())) < len(outputs):
        raise CheckpointError(
            f"{folder / name}: {', '.join(names)} would get one name as safetensors.", "Give the shards other names."
        )
    if all(shard.endswith(".safetensors") for shard in names):
        return Weights(files, (*names, name), outputs, index, name)
    metadata = index.get("metadata")
    total_size = sum(file.tensor_bytes for file in files)
    weight_map = {tensor: shard for shard, file in zip(outputs.values(), files, strict=True) for tensor in file.entries}
    index = {
        "metadata": (metadata if isinstance(metadata, dict) else {}) | {"total_size": total_size},
        "weight_map": dict(sorted(weight_map.items())),
    }
    index_name = name.replace("pytorch_model.bin", SINGLE_FILE)
    index_text = json.dumps(index, indent=2) + "\n"
    return Weights(files, (*names, name), outputs, index, index_name, index_text, notes=_notes(files))


def _shard_names(path: Path, index: Mapping[str, Any], source: Source) -> list[str]:
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


def _check_index(path: Path, index: Mapping[str, Any], files: tuple[TensorFile, ...]) -> None:
    by_name = {file.path.relative_to(path.parent).as_posix(): file for file in files}
    for tensor, name in index["weight_map"].items():
        file = by_name[_normal(name)]
        # PyTorch files are listed by names that are tied or changed on reading; their index is made anew.
        if tensor not in file.entries and file.path.suffix == ".safetensors":
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name}, where it is not.", "Fetch the index again."
            )
    holders: dict[str, TensorFile] = {}
    for file in files:
        for tensor in file.entries:
            other = holders.setdefault(tensor, file)
            if other is not file:
                raise CheckpointError(
                    f"{tensor!r} stands in {other.path.name} and in {file.path.name}.", "Save the checkpoint again."
                )


# ---- what to do where there are none


def _no_weights(folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: Source) -> CheckpointError:
    """Return the error for a folder without weights that can be read, with what to type next."""
    here, elsewhere = sorted(path.name for path in folder.iterdir()), source.not_fetched
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in (*here, *elsewhere)):
            return _foreign_weights(folder, source, config, library, flag)
    others = [name for name in here if Path(name).suffix in WEIGHTS_SUFFIXES]
    found = f", only {', '.join(others)}" if others else ""
    readable = [name for name in others if name.endswith(READABLE)]
    matches = filter(None, map(VARIANT_FILE.fullmatch, (*here, *elsewhere)))
    variants = dict.fromkeys(match["variant"] for match in matches)
    if variant is not None and first_weights(folder, None):
        hint = "Leave --variant out, or fetch the missing file."
    elif variants:
        hint = f"Choose one: {' or '.join(f'--variant {name}' for name in variants)}."
    elif readable:
        hint = f"Name the file itself, {folder / readable[0]}, or fetch the missing one."
    else:
        hint = "Fetch the missing file, or load the model in transformers and save it with save_pretrained."
    wanted = with_variant(SINGLE_FILE, variant), with_variant("pytorch_model.bin", variant)
    return CheckpointError(f"{folder} holds neither {' nor '.join(wanted)}, nor an index of shards{found}.", hint)


def _foreign_weights(
    folder: Path, source: Source, config: Mapping[str, Any] | None, library: str, flag: str
) -> CheckpointError:
    """Return the error for another framework's weights, with the command that converts them."""
    name, reference = folder.name, repr(str(folder))
    if source.kind == "hub":
        inside = re.search(r"/snapshots/[^/]+/(.+)", folder.as_posix())
        name, reference = source.name, repr(source.hub_id)
        reference += f", revision={source.revision!r}" if source.revision else ""
        reference += f", subfolder={inside[1]!r}" if inside else ""
    load = f"transformers.{model_class(config or {}) or 'AutoModel'}.from_pretrained({reference}, {flag})"
    code = f"import transformers; {load}.save_pretrained({f'{name}-safetensors'!r})"
    return CheckpointError(
        f"{name} holds {library.split()[0]} weights alone, which transformers 5 no longer reads.",
        f'Convert them with transformers 4: pip install "transformers<5" {library} torch, then '
        f"python -c {shlex.quote(code)}",
    )


def model_class(config: Mapping[str, Any]) -> str | None:
    """Return the class that a config names; None where it names none, or what cannot be one."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in commands that people paste, and a stranger wrote it.
    return first if isinstance(first, str) and first.isidentifier() and first.isascii() else None
