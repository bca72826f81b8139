"""What is known of the files that lie in a model folder, by their names."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

__all__ = ["NOT_FETCHED", "NOT_OURS", "PLAIN", "STALE", "VARIANTS", "first_match", "fits", "is_code", "is_known"]

# A copy of the weights in another precision, and the copy that needs no name.
VARIANTS = ("model.*.safetensors", "model.safetensors.index.*.json")
PLAIN = ("model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json")

OTHER_WEIGHTS = ("model*.safetensors", "model*.safetensors.index*.json")

# Files that hold the old table or state of its size, and why they are left out. A pattern holds for the model's own
# folder; behind **/ it holds at any depth, and ending in /* for everything below a folder of that name.
STALE = {
    **dict.fromkeys(
        ("pytorch_model*.bin", "pytorch_model*.bin.index*.json", "pytorch_model*.safetensors"),
        "PyTorch weights, not rewritten",
    ),
    **dict.fromkeys(("tf_model*.h5", "tf_model*.h5.index.json"), "TensorFlow weights, not rewritten"),
    **dict.fromkeys(("flax_model*.msgpack", "flax_model*.msgpack.index.json"), "Flax weights, not rewritten"),
    "rust_model.ot": "Rust weights, not rewritten",
    **dict.fromkeys(
        ("**/*.onnx", "**/*.onnx_data", "**/*.onnx.data", "onnx/*"),
        "an ONNX export, not rewritten",
    ),
    **dict.fromkeys(("openvino/*", "openvino_model.*"), "an OpenVINO export, not rewritten"),
    "**/*.gguf": "GGUF weights, not rewritten",
    "**/*.tflite": "a TFLite export, not rewritten",
    **dict.fromkeys(("coreml/*", "**/*.mlmodel", "*.mlpackage/*"), "a Core ML export, not rewritten"),
    **dict.fromkeys(("*.ckpt", "*.ckpt.*"), "a training checkpoint, not rewritten"),
    **dict.fromkeys(OTHER_WEIGHTS, "other weights, not rewritten"),
    **dict.fromkeys(
        ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth", "global_step*/*"),
        "training state, not rewritten",
    ),
    "checkpoint-*/*": "another checkpoint, not rewritten",
}

# What Python imports, systems load, and shells and interpreters run.
RUN = ("py", "pyc", "pyd", "pyo", "pyw", "pyx", "so", "so.*", "dll", "dylib", "sh", "bat", "cmd", "ps1", "exe")
CODE = tuple(f"**/*.{suffix}" for suffix in RUN)

# What version control, download tools and desktops keep for themselves, at any depth.
NOT_OURS = {
    ".git": "version control",
    ".cache": "a download cache",
    "__pycache__": "a cache",
    ".DS_Store": "a desktop's file",
}

# What is not fetched from the Hub, whose client lets * match slashes: stale files, and variants of the weights.
NOT_FETCHED = [
    *(pattern.removeprefix("**/") for pattern in STALE if pattern not in OTHER_WEIGHTS),
    *VARIANTS,
]

# What a checkpoint folder holds by the habits of transformers and sentence-transformers.
KNOWN = (
    *(*PLAIN, *VARIANTS),
    *("adapter_config.json", "adapter_model.safetensors"),
    *("config.json", "configuration.json", "generation_config.json", "preprocessor_config.json"),
    *("processor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "modules.json"),
    *("sentence_*_config.json", "config_sentence_transformers.json"),
    *("training_args.bin", "trainer_state.json", "train_log.jsonl", "train_loss.png", "runs/*", "ctxextend.yaml"),
    *("README.md", "LICENSE", "LICENSE.*", "LICENCE", "LICENCE.*", "NOTICE", "NOTICE.*", ".gitattributes"),
)

# What stands for any one character.
WILD = frozenset("?[")

# The folders in which sentence-transformers keeps its modules, such as 1_Pooling, and what else they hold.
MODULE_FOLDER = "[0-9]*_*"
MODULE_FILES = ("pytorch_model.bin",)


def is_known(path: PurePosixPath) -> bool:
    """Whether a checkpoint as it is written here commonly holds a file of that name."""
    if len(path.parts) == 2 and fnmatchcase(path.parts[0], MODULE_FOLDER):
        return any(fits(path.name, pattern) for pattern in (*KNOWN, *MODULE_FILES))
    return first_match(path, KNOWN) is not None


def is_code(path: PurePosixPath) -> bool:
    """Whether a file of that name is code, at any depth."""
    return first_match(path, CODE) is not None


def first_match(path: PurePosixPath, patterns: Iterable[str]) -> str | None:
    """Return the first pattern, written as those of `STALE`, that holds for a path; None where none does.

    Upper and lower case are alike.
    """
    parts = [part.lower() for part in path.parts]
    return next((pattern for pattern in patterns if _holds(pattern, parts)), None)


def _holds(pattern: str, parts: Sequence[str]) -> bool:
    if pattern.startswith("**/"):
        return fits(parts[-1], pattern[3:])
    if pattern.endswith("/*"):
        return len(parts) > 1 and fits(parts[0], pattern[:-2])
    return len(parts) == 1 and fits(parts[0], pattern.lower())


def fits(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, as by `fnmatchcase`, which compiles each: that takes longer than all else."""
    begin, star, end = pattern.partition("*")
    if "*" in end or not WILD.isdisjoint(pattern):
        return fnmatchcase(name, pattern)
    if not star:
        return name == pattern
    return len(name) >= len(begin) + len(end) and name.startswith(begin) and name.endswith(end)
