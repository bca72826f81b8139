"""File names in a model folder: weights, stale files, and other known files.

A pattern matches in the model's folder, with a leading ``**/`` at any depth, and with a trailing
``/*`` below a folder.
"""

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

SAFETENSORS = ".safetensors"
SINGLE_FILE = f"model{SAFETENSORS}"
# Weights files and their indices, in the order in which transformers and PEFT look for them.
NAMES = (
    SINGLE_FILE,
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.bin",
)
NANOGPT_FILE = "ckpt.pt"
# Mistral's own format, next to the files of transformers: its config, and its weights.
PARAMS_FILE = "params.json"
CONSOLIDATED = "consolidated*"
GGUF_SUFFIX = ".gguf"
# Suffixes of weights files that belong to a folder and can be read.
READABLE = (SAFETENSORS, ".bin", ".pt", ".pth", ".ckpt")
# With a variant, such as ``model.fp16.safetensors``, compiled at use.
VARIANT_FILE = r"(?:pytorch_)?model\.(?P<variant>[^./]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)"

# Weights besides those of other programs that contain the old position table, by kind.
STALE_KINDS = {
    "PyTorch weights": (
        "pytorch_model*.bin",
        "pytorch_model*.bin.index*.json",
        "pytorch_model*.safetensors",
    ),
    "other weights": ("model*.safetensors", "model*.safetensors.index*.json", "*.ckpt", "*.ckpt.*"),
    "another checkpoint": ("checkpoint-*/*",),
}

# Files of version control, download tools and desktops, at any depth.
IGNORED_NAMES = {
    ".git": "version control",
    ".cache": "a download cache",
    "__pycache__": "a cache",
    ".DS_Store": "desktop metadata",
}

# Files that transformers, PEFT, sentence-transformers, their trainers and ctxextend write.
KNOWN_FILES = (
    # weights
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "model.*.safetensors",
    "model.safetensors.index.*.json",
    "adapter_model.safetensors",
    CONSOLIDATED,
    # configs
    PARAMS_FILE,
    "adapter_config.json",
    "config.json",
    "configuration.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    # tokenizers
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    # sentence-transformers
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    # training
    "training_args.bin",
    "trainer_state.json",
    "train_log.jsonl",
    "train_loss.png",
    "runs/*",
    # about the checkpoint
    "ctxextend.yaml",
    "README.md",
    "LICENSE",
    "LICENSE.*",
    "LICENCE",
    "LICENCE.*",
    "NOTICE",
    "NOTICE.*",
    ".gitattributes",
)
# A folder with one of these files, and with weights, is a checkpoint.
CHECKPOINT_MARKS = ("config.json", "modules.json", "adapter_config.json", "ctxextend.yaml")
CHECKPOINT_WEIGHTS = (
    "adapter_model.safetensors",
    "model*.safetensors",
    "*/model*.safetensors",
    "pytorch_model*.bin",
    "*/pytorch_model*.bin",
)


def is_gguf(path: str | Path | None) -> bool:
    """Whether a file is a GGUF file by its name."""
    return path is not None and str(path).lower().endswith(GGUF_SUFFIX)


def is_known(path: PurePosixPath) -> bool:
    """Whether a checkpoint with safetensors weights usually contains a file of that name."""
    if len(path.parts) == 2 and matches(path.parts[0], "[0-9]*_*"):
        # a module of sentence-transformers
        if path.name == "pytorch_model.bin":
            return True
        path = PurePosixPath(path.name)
    return first_match(path, KNOWN_FILES) is not None


def first_match(path: PurePosixPath, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that matches a path, ignoring case; None if none does."""
    first = path.parts[0].lower()
    name = path.name.lower()
    depth = len(path.parts)
    for pattern in patterns:
        if pattern.startswith("**/"):
            is_match = matches(name, pattern[3:])
        elif pattern.endswith("/*"):
            is_match = depth > 1 and matches(first, pattern[:-2])
        else:
            is_match = depth == 1 and matches(name, pattern.lower())
        if is_match:
            return pattern
    return None


def first_weights(folder: Path, variant: str | None) -> str | None:
    """Return the first of `NAMES`, or nanoGPT's, in a folder, of any file type; None if none."""
    names = list(NAMES)
    if variant is not None:
        names = [with_variant(name, variant) for name in NAMES]
    elif not (folder / "config.json").is_file():
        names.append(NANOGPT_FILE)
    for name in names:
        if os.path.lexists(folder / name):
            return name
    return None


def variant_of(name: str) -> str | None:
    """Return the variant in the name of a weights file; None if it has none."""
    match = re.fullmatch(VARIANT_FILE, name)
    if match is None:
        return None
    return match["variant"]


def with_variant(name: str, variant: str | None) -> str:
    """Return the name of a weights file or index in a variant: ``model.fp16.safetensors``."""
    if variant is None:
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{variant}.{suffix}"


def shard_name(name: str) -> str:
    """Return the name of a shard as safetensors."""
    path = PurePosixPath(name)
    if path.suffix == ".safetensors":
        return name
    return path.with_name(f"{path.stem.removeprefix('pytorch_')}.safetensors").as_posix()


def stays_inside(name: str) -> bool:
    """Whether a path is relative and cannot leave its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and not path.is_absolute() and ".." not in path.parts and ":" not in name


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern of `fnmatch`.

    For each pattern, fnmatch compiles a regular expression, which takes longer than to resize a
    small checkpoint.
    """
    prefix, star, suffix = pattern.partition("*")
    if any(wildcard in prefix + suffix for wildcard in "*?["):
        return fnmatchcase(name, pattern)
    if not star:
        return name == pattern
    is_long_enough = len(name) >= len(prefix) + len(suffix)
    return is_long_enough and name.startswith(prefix) and name.endswith(suffix)
