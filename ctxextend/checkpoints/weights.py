"""The weights of a model folder: which files hold them, how they are read, and what they will be called."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

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

INDICES = ("model.safetensors.index*.json", "pytorch_model.bin.index*.json")
WEIGHTS_SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}
# What other frameworks call their weights, and how transformers 4, the last that could, is told to read them.
FOREIGN = {"tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"), "flax_model*.msgpack*": ("flax", "from_flax=True")}


@dataclass(frozen=True)
class Weights:
    """The weights of one model folder."""

    files: tuple[TensorFile, ...]  # in the order of their names
    used: tuple[str, ...]  # the names of all of them and of their index, below the folder
    outputs: Mapping[str, str]  # what each file will be called, by its name
    index: Mapping[str, Any] | None = None  # of the shards, as the output will have it; None for a single file
    index_name: str = ""  # what that is called
    index_text: str | None = None  # its text where the folder has none of that name
    config: Mapping[str, Any] | None = None  # a config.json for a file that has none of its own

    @property
    def variant(self) -> str | None:
        """The variant that its output is, such as ``fp16``; None for the plain weights."""
        found = VARIANT_FILE.fullmatch(next(iter(self.outputs.values())))
        return found["variant"] if found else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how they were read."""
        in_memory = [file for file in self.files if file.is_in_memory]
        size = sum(file.path.stat().st_size for file in in_memory)
        names = ", ".join(file.path.name for file in in_memory)
        why = "is from before torch 1.6, or in another byte order, and cannot be mapped"
        notes = (f"{names} {why}: reading it takes {size:,} bytes of memory.",) if in_memory else ()
        if self.config is None:
            return notes
        from ctxextend.checkpoints.nanogpt import NOTE

        return (NOTE, *notes)


def find_weights(folder: Path, config: Mapping[str, Any] | None, source: Source, variant: str | None = None) -> Weights:
    """Find a folder's weights and read their headers; safetensors win over pickles, a single file over shards.

    `folder` is the model's own, below the source's; `config` its config.json, parsed, None where it has none.
    """
    name = _index_of(folder, source) or source.file or first_weights(folder, variant)
    if name is None or not holds(source, folder / name):
        raise _no_weights(folder, config, variant, source)
    inner = [value for value in (config or {}).values() if isinstance(value, Mapping)]
    ties = not any(value.get("tie_word_embeddings") is False for value in (config or {}, *inner))
    if fnmatch(name, "*.index*.json"):
        return _open_shards(folder, name, source, ties)
    file, made = _open(folder / name, ties, has_config=config is not None)
    return Weights((file,), (name,), {name: output_name(name)}, config=made)


def _index_of(folder: Path, source: Source) -> str | None:
    """Return the index that lists the file that was named as one of its shards, or None."""
    if source.file is not None:
        for path in sorted(path for pattern in INDICES for path in folder.glob(pattern)):
            weight_map = load_object(path).get("weight_map") if holds(source, path) else None
            if isinstance(weight_map, dict) and source.file in weight_map.values():
                return path.name
    return None


def _open(path: Path, ties: bool, has_config: bool = True) -> tuple[TensorFile, dict[str, Any] | None]:
    """Open a weights file; for one of nanoGPT's also return the config that it stands for."""
    if path.suffix == ".safetensors":
        return open_safetensors(path), None
    from ctxextend.checkpoints.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoints.pytorch_file import as_tensor_file, find_tensors, unpickle

    unpickled, config = unpickle(path), None
    if not is_nanogpt(unpickled.content):
        tensors = find_tensors(unpickled.content, path)
    elif has_config:
        message = f"{path} is a checkpoint of nanoGPT, which says itself what the config.json beside it would."
        raise CheckpointError(message, "Move it into a folder of its own.")
    else:
        config, tensors = from_nanogpt(unpickled)
    return as_tensor_file(unpickled, tensors, ties=ties), config


# ---- shards


def _open_shards(folder: Path, name: str, source: Source, ties: bool) -> Weights:
    path, index = folder / name, load_object(folder / name)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map.", "Fetch or save the checkpoint again.")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not stays_inside(shard):
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {shard!r}, which is not inside the folder.",
                "Do not use this checkpoint before you know who wrote that.",
            )
    shards = {shard: PurePosixPath(shard).as_posix() for shard in set(weight_map.values())}
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if not holds(source, folder / shard)]:
        raise CheckpointError(f"{path} names {missing[0]}, which is missing.", "Fetch or copy that shard too.")
    files = {shard: _open(folder / shard, ties)[0] for shard in names}
    for tensor, shard in weight_map.items():
        # PyTorch files are listed by names that are tied or changed on reading; their index is made anew.
        if shard.endswith(".safetensors") and tensor not in files[shards[shard]].entries:
            message = f"{path} says that {tensor!r} is in {shard}, where it is not."
            raise CheckpointError(message, "Fetch the index again.")
    outputs = {shard: shard_name(shard) for shard in names}
    held: dict[str, str] = {}
    for shard, file in files.items():
        for tensor in file.entries:
            if held.setdefault(tensor, outputs[shard]) != outputs[shard]:
                message = f"{tensor!r} stands in {held[tensor]} and in {outputs[shard]}."
                raise CheckpointError(message, "Save the checkpoint again.")
    opened, used = tuple(files.values()), (*names, name)
    if all(shard.endswith(".safetensors") for shard in names):
        return Weights(opened, used, outputs, index, name)
    metadata = index.get("metadata")
    total_size = sum(file.tensor_bytes for file in opened)
    made = {
        "metadata": (metadata if isinstance(metadata, dict) else {}) | {"total_size": total_size},
        "weight_map": dict(sorted(held.items())),
    }
    index_name = name.replace("pytorch_model.bin", SINGLE_FILE)
    return Weights(opened, used, outputs, made, index_name, json.dumps(made, indent=2) + "\n")


# ---- what to do where there are none


def _no_weights(folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: Source) -> CheckpointError:
    """Return the error for a folder without weights that can be read, with what to type next."""
    here = sorted(path.name for path in folder.iterdir())
    everywhere = (*here, *source.not_fetched)
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in everywhere):
            load = f"transformers.{model_class(config or {}) or 'AutoModel'}.from_pretrained"
            save = f"save_pretrained({f'{source.name}-safetensors'!r})"
            code = f"import transformers; {load}({source.hub_id or str(folder)!r}, {flag}).{save}"
            return CheckpointError(
                f"{folder} holds {library.split()[0]} weights alone, which transformers 5 no longer reads.",
                f'Convert them with transformers 4: pip install "transformers<5" {library} torch, then '
                f"python -c {shlex.quote(code)}",
            )
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


def model_class(config: Mapping[str, Any]) -> str | None:
    """Return the class that a config names; None where it names none, or what cannot be one."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in commands that people paste, and a stranger wrote it.
    return first if isinstance(first, str) and first.isidentifier() and first.isascii() else None
