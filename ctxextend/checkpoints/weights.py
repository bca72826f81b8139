"""The files that hold a checkpoint's weights: which they are, how they are read, and what they will be called."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ctxextend.checkpoints.jsontext import load_object
from ctxextend.checkpoints.nanogpt import NOTE, from_nanogpt, is_nanogpt
from ctxextend.checkpoints.tensorfile import TensorFile, open_tensor_file, read_tensor
from ctxextend.checkpoints.torchfile import (
    TorchFile,
    find_tensors,
    load_pickle,
    read_torch_tensor,
    torch_file,
)
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    from ctxextend.checkpoints.source import Source

__all__ = [
    "INDEX",
    "NANOGPT_FILE",
    "READABLE",
    "SAFETENSORS",
    "SINGLE_FILE",
    "Weights",
    "WeightsFile",
    "find_weights",
    "read_floats",
    "stays_inside",
    "with_variant",
]

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_model.safetensors"
# In the order in which transformers and PEFT look for them.
SAFETENSORS = (SINGLE_FILE, INDEX, ADAPTER_FILE)
NAMES = (*SAFETENSORS, "pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
# What stands in front of the suffix of single files that transformers and PEFT find.
FOUND = re.compile(r"model|model\.[^.]+|adapter_model")
# Weights that can be read from a file of their own.
READABLE = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
NANOGPT_FILE = "ckpt.pt"

WEIGHTS_SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}
VARIANT_FILE = re.compile(r"(?:pytorch_)?model\.(?P<variant>[^.]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)")

# What other frameworks call their weights, and how transformers 4, the last that could, is told to read them.
FOREIGN = {"tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"), "flax_model*.msgpack*": ("flax", "from_flax=True")}

WeightsFile = TensorFile | TorchFile


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
    name = _index_of(folder, source.file) or source.file or _first(folder, variant)
    if name is None:
        raise _no_weights(folder, config, variant, source)
    ties = (config or {}).get("tie_word_embeddings") is not False
    if fnmatch(name, "*.index*.json"):
        return _sharded(folder, name, ties)
    if not name.endswith(".safetensors") and config is None:
        return _alone(folder, name)
    opened = _open(folder / name, ties)
    return Weights((opened,), (name,), {name: _output_name(name)}, notes=_notes((opened,)))


def read_floats(file: WeightsFile, name: str) -> NDArray[Any]:
    """Read one float tensor, its dtype as in `FLOAT_DTYPES`.

    Raises:
        CheckpointError: It holds no floats that can be interpolated, or the file cannot be read or shrank.
    """
    return read_torch_tensor(file, name) if isinstance(file, TorchFile) else read_tensor(file, name)


def _first(folder: Path, variant: str | None) -> str | None:
    names = [with_variant(name, variant) for name in NAMES]
    if variant is None and not (folder / "config.json").is_file():
        names.append(NANOGPT_FILE)
    return next((name for name in names if (folder / name).is_file()), None)


def _index_of(folder: Path, file: str | None) -> str | None:
    """Return the index that lists a file as one of its shards, or None."""
    indices = sorted(path.name for path in folder.glob("*.index*.json")) if file else []
    maps = {name: load_object(folder / name).get("weight_map") for name in indices}
    return next((name for name, map_ in maps.items() if isinstance(map_, dict) and file in map_.values()), None)


def with_variant(name: str, variant: str | None) -> str:
    """Return what a weights file or an index is called in a variant."""
    if variant is None:
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{variant}.{suffix}"


def _open(path: Path, ties: bool) -> WeightsFile:
    if path.suffix == ".safetensors":
        return open_tensor_file(path)
    status = path.stat()
    content = load_pickle(path)
    if is_nanogpt(content):
        raise CheckpointError(
            f"{path} is a checkpoint of nanoGPT, which says itself what a config would, and lies beside a config.json.",
            "Move it into a folder of its own.",
        )
    return torch_file(path, find_tensors(content, path), status, ties=ties)


def _alone(folder: Path, name: str) -> Weights:
    """Read a torch file that lies beside no config: nanoGPT's holds what a config would say."""
    path = folder / name
    status = path.stat()
    content = load_pickle(path)
    config: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    if is_nanogpt(content):
        config, tensors = from_nanogpt(content, path)
        notes = (NOTE,)
    else:
        tensors = find_tensors(content, path)
    opened = torch_file(path, tensors, status, ties=True)
    return Weights((opened,), (name,), {name: _output_name(name)}, config=config, notes=(*notes, *_notes((opened,))))


def _notes(files: tuple[WeightsFile, ...]) -> tuple[str, ...]:
    read = [file for file in files if isinstance(file, TorchFile) and not file.is_mapped]
    size = sum(file.size for file in read)
    names = ", ".join(file.path.name for file in read)
    return (
        (f"{names} was written before torch 1.6 and cannot be mapped: reading it takes {size:,} bytes of memory.",)
        if read
        else ()
    )


def _output_name(name: str) -> str:
    """Return what a single weights file is called in the output, where transformers must find it."""
    stem = name.rpartition(".")[0].removeprefix("pytorch_")
    return f"{stem}.safetensors" if FOUND.fullmatch(stem) else SINGLE_FILE


def _shard_name(name: str) -> str:
    """Return what a shard is called as safetensors: its index says where it is."""
    path = PurePosixPath(name)
    stem, _, suffix = path.name.rpartition(".")
    return (
        name if suffix == "safetensors" else (path.parent / f"{stem.removeprefix('pytorch_')}.safetensors").as_posix()
    )


def _sharded(folder: Path, name: str, ties: bool) -> Weights:
    index = load_object(folder / name)
    names = _shards(folder / name, index)
    files = tuple(_open(folder / shard, ties) for shard in names)
    _check_index(folder / name, index, files)
    _check_unique(files)
    outputs = {shard: _shard_name(shard) for shard in names}
    if all(isinstance(file, TensorFile) for file in files):
        return Weights(files, (*names, name), outputs, index, name)
    index = _converted(index, dict(zip(outputs.values(), files, strict=True)))
    text = json.dumps(index, indent=2) + "\n"
    index_name = name.replace("pytorch_model.bin", SINGLE_FILE)
    return Weights(files, (*names, name), outputs, index, index_name, text, notes=_notes(files))


def _converted(index: Mapping[str, Any], files: Mapping[str, WeightsFile]) -> dict[str, Any]:
    """Return the index of shards that were pickles, as it is once they are safetensors."""
    metadata = index.get("metadata")
    size = sum(entry.size for file in files.values() for entry in file.entries.values())
    weight_map = {tensor: name for name, file in files.items() for tensor in file.entries}
    return {
        "metadata": (metadata if isinstance(metadata, dict) else {}) | {"total_size": size},
        "weight_map": dict(sorted(weight_map.items())),
    }


def stays_inside(name: str) -> bool:
    """Whether a relative path cannot lead out of its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and not path.is_absolute() and ".." not in path.parts and ":" not in name


def _shards(path: Path, index: Mapping[str, Any]) -> list[str]:
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
        if not (path.parent / name).is_file():
            raise CheckpointError(f"{path} names {name}, which is missing.", "Fetch or copy that shard too.")
    return names


def _normal(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _check_index(path: Path, index: Mapping[str, Any], files: tuple[WeightsFile, ...]) -> None:
    by_name = {file.path.relative_to(path.parent).as_posix(): file for file in files}
    for tensor, name in index["weight_map"].items():
        file = by_name[_normal(name)]
        # Torch files are listed by names that are tied or changed on reading; their index is made anew.
        if tensor not in file.entries and not isinstance(file, TorchFile):
            raise CheckpointError(
                f"{path} says that {tensor!r} is in {name}, where it is not.", "Fetch the index again."
            )


def _check_unique(files: tuple[WeightsFile, ...]) -> None:
    seen: dict[str, WeightsFile] = {}
    for file in files:
        for name in file.entries:
            if name in seen:
                raise CheckpointError(
                    f"{name!r} stands in {seen[name].path.name} and in {file.path.name}.", "Save the checkpoint again."
                )
            seen[name] = file


def _no_weights(
    folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: "Source"
) -> CheckpointError:
    here, elsewhere = sorted(path.name for path in folder.iterdir()), source.not_fetched
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in (*here, *elsewhere)):
            return _foreign(_as_loaded(folder, source), config, library, flag)
    others = [name for name in here if Path(name).suffix in WEIGHTS_SUFFIXES]
    found = f", only {', '.join(others)}" if others else ""
    readable = [name for name in others if name.endswith(READABLE)]
    variants = dict.fromkeys(
        match["variant"] for name in (*here, *elsewhere) if (match := VARIANT_FILE.fullmatch(name))
    )
    if variant is not None and _first(folder, None):
        hint = "Leave --variant out, or fetch the missing file."
    elif variants:
        hint = f"Choose one: {' or '.join(f'--variant {name}' for name in variants)}."
    elif readable:
        hint = f"Name the file itself, {folder / readable[0]}, or fetch the missing one."
    else:
        hint = "Fetch the missing file, or load the model in transformers and save it with save_pretrained."
    wanted = with_variant(SINGLE_FILE, variant), with_variant("pytorch_model.bin", variant)
    return CheckpointError(f"{folder} holds neither {' nor '.join(wanted)}, nor an index of shards{found}.", hint)


def _as_loaded(folder: Path, source: "Source") -> tuple[str, str]:
    """Return what from_pretrained is given for a folder, as code, and a name for it."""
    if source.kind != "hub":
        return repr(str(folder)), folder.name
    inside = re.search(r"/snapshots/[^/]+/(.+)", folder.as_posix())
    revision = f", revision={source.revision!r}" if source.revision else ""
    return f"{source.hub_id!r}{revision}" + (f", subfolder={inside[1]!r}" if inside else ""), source.name


def _foreign(loaded: tuple[str, str], config: Mapping[str, Any] | None, library: str, flag: str) -> CheckpointError:
    """Return the error for another framework's weights, with the command that converts them."""
    what, name = loaded
    stated = (config or {}).get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in a command that people paste, and a stranger wrote it.
    model_class = first if isinstance(first, str) and first.isidentifier() and first.isascii() else "AutoModel"
    load = f"transformers.{model_class}.from_pretrained({what}, {flag})"
    code = f"import transformers; {load}.save_pretrained({f'{name}-safetensors'!r})"
    return CheckpointError(
        f"{name} holds {library.split()[0]} weights alone, which transformers 5 no longer reads.",
        f'Convert them with transformers 4: pip install "transformers<5" {library} torch, then '
        f"python -c {shlex.quote(code)}",
    )
