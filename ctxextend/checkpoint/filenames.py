"""File names in a model folder: weights, files of other programs, and other known files.

A pattern matches in the model's folder, with a leading ``**/`` at any depth, and with a trailing
``/*`` below a folder. Its only wildcard is ``*``.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = PurePosixPath()  # of a checkpoint
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
RECIPE_FILE = "ctxextend.yaml"  # in every folder that is written
# Suffixes of weights files that belong to a folder and can be read.
READABLE = (SAFETENSORS, ".bin", ".pt", ".pth", ".ckpt")
# With a variant, such as ``model.fp16.safetensors``, compiled at use.
VARIANT_FILE = r"(?:pytorch_)?model\.(?P<variant>[^./]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)"

# Files of version control, download tools and desktops, at any depth.
IGNORED_NAMES = {
    ".git": "version control",
    ".cache": "a download cache",
    "__pycache__": "a cache",
    ".DS_Store": "desktop metadata",
}

FROM_BASE = "Resize the checkpoint that it was made from, and export that again."
PASS_WEIGHTS = "Pass the folder or the file with the model's weights."


class FileKind(NamedTuple):
    """Files of one kind, by their names."""

    patterns: tuple[str, ...]
    kind: str  # a noun, for sentences such as "model.onnx is an ONNX export"
    hint: str  # what to do instead of resizing them; empty for weights that can be resized


# They have the old table or settings, so that an output lacks them.
STALE_FILES = (
    FileKind(
        (
            "tf_model*.h5",
            "tf_model*.h5.index.json",
            "flax_model*.msgpack",
            "flax_model*.msgpack.index.json",
        ),
        "a file of TensorFlow or Flax weights",
        "Load it in transformers 4 with from_tf=True or from_flax=True, and save it with "
        "save_pretrained().",
    ),
    FileKind(
        (
            "**/saved_model.pb",
            "saved_model/*",
            "*.ckpt.index",
            "*.ckpt.meta",
            "*.ckpt.data-*",
            "**/*.onnx",
            "**/*.onnx_data",
            "**/*.onnx.data",
            "onnx/*",
            "openvino/*",
            "openvino_*.xml",
            "openvino_*.bin",
            "**/*.engine",
            "**/*.plan",
            "**/*.trt",
            "**/*.tflite",
            "coreml/*",
            "**/*.mlmodel",
            "*.mlpackage/*",
            "*.mlmodelc/*",
            "coremldata.bin",
            "**/*.pte",
            "**/*.ggml",
            "ggml-*.bin",
            "rust_model.ot",
        ),
        "a file of another program",
        FROM_BASE,
    ),
    FileKind(
        (CONSOLIDATED,),
        "a file in Mistral's or Meta's own format",
        "Convert it with convert_mistral_weights_to_hf.py or convert_llama_weights_to_hf.py of "
        "transformers, and pass the folder that it writes.",
    ),
    FileKind(
        ("**/*.gguf",),
        "a GGUF file",
        "Only resize, inspect and verify read it: pass them the file itself, and other commands "
        "the checkpoint that it was made from.",
    ),
    FileKind(
        (
            "global_step*/*",
            "zero_pp_rank_*.pt",
            "*_optim_states.pt",
            "**/*.distcp",
            "**/model_optim_rng.pt",
        ),
        "a part of a distributed checkpoint",
        "Join the parts: DeepSpeed's with the script next to them (python zero_to_fp32.py . "
        "joined), torch's with python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
        "FOLDER pytorch_model.bin, Megatron-LM's with Megatron Bridge.",
    ),
    FileKind(
        (
            "optimizer*.pt",
            "optimizer*.bin",
            "optimizer*.safetensors",
            "scheduler*.pt",
            "scheduler*.bin",
            "scaler*.pt",
            "rng_state*.pth",
            "random_states*.pkl",
        ),
        "training state",
        PASS_WEIGHTS,
    ),
    FileKind(
        ("pytorch_model*.bin", "pytorch_model*.bin.index*.json", "pytorch_model*.safetensors"),
        "PyTorch weights",
        "",
    ),
    FileKind(
        ("model*.safetensors", "model*.safetensors.index*.json", "*.ckpt", "*.ckpt.*"),
        "other weights",
        "",
    ),
    FileKind(("checkpoint-*/*",), "another checkpoint", ""),
)
FOREIGN_FILES = (
    *(row for row in STALE_FILES if row.hint),
    FileKind(("training_args.bin",), "settings of a training run", PASS_WEIGHTS),
    FileKind(("*.zip", "*.tar", "*.tgz", "*.gz"), "an archive", "Unpack it, and pass the folder."),
)

# Files that transformers, PEFT, sentence-transformers, their trainers and ctxextend write.
KNOWN_FILES = (
    # weights
    "model.safetensors",
    "model-*-of-*.safetensors",
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
    "runs/*",
    # about the checkpoint
    RECIPE_FILE,
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
CHECKPOINT_MARKS = ("config.json", "modules.json", "adapter_config.json", RECIPE_FILE)
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
    if len(path.parts) == 2 and re.match(r"[0-9].*_", path.parts[0]):
        # a module of sentence-transformers
        if path.name == "pytorch_model.bin":
            return True
        path = PurePosixPath(path.name)
    return matches(path, KNOWN_FILES)


def matches(path: PurePosixPath | str, patterns: Iterable[str]) -> bool:
    """Whether a path in a model folder matches one of the patterns, ignoring case."""
    parts = str(path).lower().split("/")
    for pattern in patterns:
        pattern = pattern.lower()
        name = parts[0]
        if pattern.startswith("**/"):
            name = parts[-1]
        elif pattern.endswith("/*") != (len(parts) > 1):
            continue
        pattern = pattern.removeprefix("**/").removesuffix("/*")
        if name == pattern:
            return True
        # fnmatch compiles a regular expression, which takes longer than to resize a small
        # checkpoint: few names need one.
        start, star, end = pattern.partition("*")
        is_likely = name.startswith(start) and name.endswith(end.rpartition("*")[2])
        if star and is_likely and fnmatchcase(name, pattern):
            return True
    return False


def skip_reason(path: PurePosixPath, folder: PurePosixPath = ROOT) -> str:
    """Return why an output lacks a file of that name, as a noun; empty if it does not.

    Args:
        path: The path in the checkpoint.
        folder: The model's folder in it.
    """
    for part in path.parts:
        if part in IGNORED_NAMES:
            return f"{IGNORED_NAMES[part]}, not part of the checkpoint"
    for row in STALE_FILES:
        if matches(path, row.patterns):
            return f"{row.kind}, not rewritten"
    if folder != ROOT and folder in path.parents:
        return skip_reason(path.relative_to(folder))
    return ""


def find_foreign(names: Iterable[str]) -> tuple[str, FileKind] | None:
    """Return the first row of `FOREIGN_FILES` that a name matches, and the name."""
    names = list(names)
    for row in FOREIGN_FILES:
        for name in names:
            if matches(name, row.patterns):
                return name, row
    return None


def first_weights(names: Iterable[str], variant: str | None) -> str | None:
    """Return the first of `NAMES` that a folder has, in a variant; None if it has none."""
    present = set(names)
    for name in NAMES:
        name = with_variant(name, variant)
        if name in present:
            return name
    return None


def names_below(names: Iterable[str], folder: str | PurePosixPath) -> list[str]:
    """Return the paths in a folder, relative to it."""
    prefix = f"{PurePosixPath(folder)}/".removeprefix("./")
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


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


def stays_inside(name: str) -> bool:
    """Whether a path is relative and cannot leave its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    return bool(name) and not path.is_absolute() and ".." not in path.parts and ":" not in name
