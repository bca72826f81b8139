"""File names in a model folder: weights, stale files, code, and other files that checkpoints
usually contain.

A pattern matches in the model's folder, with a leading ``**/`` at any depth, and with a trailing
``/*`` below a folder.
"""

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

SINGLE_FILE = "model.safetensors"
NAMES = (  # in the order in which transformers and PEFT look for them
    *(SINGLE_FILE, "model.safetensors.index.json", "adapter_model.safetensors"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
)
NANOGPT_FILE = "ckpt.pt"
READABLE = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
)  # suffixes of weights files that can be read
VARIANT_FILE = re.compile(
    r"(?:pytorch_)?model\.(?P<variant>[^.]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)"
)

STALE_KINDS = {  # files that contain the old position table or depend on its size
    "PyTorch weights": (
        "pytorch_model*.bin",
        "pytorch_model*.bin.index*.json",
        "pytorch_model*.safetensors",
    ),
    "TensorFlow weights": ("tf_model*.h5", "tf_model*.h5.index.json"),
    "Flax weights": ("flax_model*.msgpack", "flax_model*.msgpack.index.json"),
    "an export": (
        *(
            "**/*.onnx",
            "**/*.onnx_data",
            "**/*.onnx.data",
            "onnx/*",
            "openvino/*",
            "openvino_model.*",
        ),
        *("**/*.tflite", "coreml/*", "**/*.mlmodel", "*.mlpackage/*", "**/*.gguf", "rust_model.ot"),
    ),
    "other weights": ("model*.safetensors", "model*.safetensors.index*.json", "*.ckpt", "*.ckpt.*"),
    "training state": (
        *(
            "optimizer.pt",
            "optimizer.bin",
            "scheduler.pt",
            "scaler.pt",
            "rng_state*.pth",
            "global_step*/*",
        ),
    ),
    "another checkpoint": ("checkpoint-*/*",),
}
STALE = {
    pattern: f"{kind}, not rewritten"
    for kind, patterns in STALE_KINDS.items()
    for pattern in patterns
}

IGNORED_NAMES = {  # files of version control, download tools and desktops, at any depth
    **{".git": "version control", ".cache": "a download cache", "__pycache__": "a cache"},
    ".DS_Store": "desktop metadata",
}

# Suffixes of files that Python imports, systems load, or shells and interpreters run.
CODE_TYPES = (
    "py",
    "pyc",
    "pyd",
    "pyo",
    "pyw",
    "pyx",
    "so",
    "so.*",
    "dll",
    "dylib",
    "sh",
    "bat",
    "cmd",
    "ps1",
    "exe",
)

# that transformers, PEFT, sentence-transformers, their trainers and ctxextend write
KNOWN_FILES = (
    *("model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json"),
    *("model.*.safetensors", "model.safetensors.index.*.json"),
    *("adapter_config.json", "adapter_model.safetensors"),
    *("config.json", "configuration.json", "generation_config.json", "preprocessor_config.json"),
    *(
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ),
    *(
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "spm.model",
    ),
    *("sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "modules.json"),
    *("sentence_*_config.json", "config_sentence_transformers.json"),
    *(
        "training_args.bin",
        "trainer_state.json",
        "train_log.jsonl",
        "train_loss.png",
        "runs/*",
        "ctxextend.yaml",
    ),
    *(
        "README.md",
        "LICENSE",
        "LICENSE.*",
        "LICENCE",
        "LICENCE.*",
        "NOTICE",
        "NOTICE.*",
        ".gitattributes",
    ),
)
CHECKPOINT_MARKS = ("config.json", "modules.json", "adapter_config.json", "ctxextend.yaml")
CHECKPOINT_WEIGHTS = (
    *("adapter_model.safetensors", "model*.safetensors", "*/model*.safetensors"),
    *("pytorch_model*.bin", "*/pytorch_model*.bin"),
)


def is_known(path: PurePosixPath) -> bool:
    """Whether a checkpoint with safetensors weights usually contains a file of that name."""
    if len(path.parts) == 2 and _matches(path.parts[0], "[0-9]*_*"):
        # a module of sentence-transformers
        is_weights = path.name == "pytorch_model.bin"
        return is_weights or first_match(PurePosixPath(path.name), KNOWN_FILES) is not None
    return first_match(path, KNOWN_FILES) is not None


def is_code(path: PurePosixPath) -> bool:
    """Whether a file is code by its suffix, at any depth."""
    return first_match(path, (f"**/*.{suffix}" for suffix in CODE_TYPES)) is not None


def first_match(path: PurePosixPath, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that matches a path, ignoring case; None if none does."""
    first, name, depth = path.parts[0].lower(), path.name.lower(), len(path.parts)
    for pattern in patterns:
        if pattern.startswith("**/"):
            is_match = _matches(name, pattern[3:])
        elif pattern.endswith("/*"):
            is_match = depth > 1 and _matches(first, pattern[:-2])
        else:
            is_match = depth == 1 and _matches(name, pattern.lower())
        if is_match:
            return pattern
    return None


def first_weights(folder: Path, variant: str | None) -> str | None:
    """Return the first name in `NAMES`, or nanoGPT's, that a folder contains, of any file type;
    None if it has none.
    """
    names = [with_variant(name, variant) for name in NAMES]
    if variant is None and not (folder / "config.json").is_file():
        names.append(NANOGPT_FILE)
    return next((name for name in names if os.path.lexists(folder / name)), None)


def with_variant(name: str, variant: str | None) -> str:
    """Return the name of a weights file or an index in a variant, such as
    ``model.fp16.safetensors``.
    """
    stem, _, suffix = name.rpartition(".")
    return name if variant is None else f"{stem}.{variant}.{suffix}"


def output_name(name: str) -> str:
    """Return the name of a single weights file in the output: one that transformers and PEFT look
    for.
    """
    stem = name.rpartition(".")[0].removeprefix("pytorch_")
    return (
        f"{stem}.safetensors"
        if re.fullmatch(r"model|model\.[^.]+|adapter_model", stem)
        else SINGLE_FILE
    )


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


def _matches(name: str, pattern: str) -> bool:
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
