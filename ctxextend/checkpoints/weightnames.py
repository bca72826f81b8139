"""What weights files are called: by transformers and PEFT, by variants of them, and once they are safetensors."""

import os
import re
from pathlib import Path, PurePosixPath

__all__ = [
    "NANOGPT_FILE",
    "READABLE",
    "SAFETENSORS",
    "SINGLE_FILE",
    "VARIANT_FILE",
    "first_weights",
    "output_name",
    "shard_name",
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
VARIANT_FILE = re.compile(r"(?:pytorch_)?model\.(?P<variant>[^.]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)")


def first_weights(folder: Path, variant: str | None) -> str | None:
    """Return the weights file or index that a folder is read by, whatever has that name; None where nothing has."""
    names = [with_variant(name, variant) for name in NAMES]
    if variant is None and not (folder / "config.json").is_file():
        names.append(NANOGPT_FILE)
    return next((name for name in names if os.path.lexists(folder / name)), None)


def with_variant(name: str, variant: str | None) -> str:
    """Return what a weights file or an index is called in a variant."""
    if variant is None:
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{variant}.{suffix}"


def output_name(name: str) -> str:
    """Return what a single weights file is called in the output, where transformers must find it."""
    stem = name.rpartition(".")[0].removeprefix("pytorch_")
    return f"{stem}.safetensors" if FOUND.fullmatch(stem) else SINGLE_FILE


def shard_name(name: str) -> str:
    """Return what a shard is called as safetensors: its index says where it is."""
    path = PurePosixPath(name)
    stem, _, suffix = path.name.rpartition(".")
    return (
        name if suffix == "safetensors" else (path.parent / f"{stem.removeprefix('pytorch_')}.safetensors").as_posix()
    )


def stays_inside(name: str) -> bool:
    """Whether a relative path cannot lead out of its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and not path.is_absolute() and ".." not in path.parts and ":" not in name
