"""Files that other programs read: what they are, and what to do instead of resizing them."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from ctxextend.checkpoint.filenames import CONSOLIDATED, STALE_KINDS, first_match

FROM_BASE = "Resize the checkpoint that it was made from, and export that again."
PASS_WEIGHTS = "Pass the folder or the file with the model's weights."


class ForeignFiles(NamedTuple):
    """Files of one kind."""

    patterns: tuple[str, ...]  # as in `filenames`
    kind: str  # a noun, for sentences such as "model.onnx is an ONNX export"
    hint: str


# They have the old table or settings, so that an output lacks them.
STALE_FILES = (
    ForeignFiles(
        ("tf_model*.h5", "tf_model*.h5.index.json"),
        "a file of TensorFlow weights",
        "Load it in transformers 4 with from_tf=True, and save it with save_pretrained().",
    ),
    ForeignFiles(
        ("flax_model*.msgpack", "flax_model*.msgpack.index.json"),
        "a file of Flax weights",
        "Load it in transformers 4 with from_flax=True, and save it with save_pretrained().",
    ),
    ForeignFiles(
        ("**/saved_model.pb", "saved_model/*", "*.ckpt.index", "*.ckpt.meta", "*.ckpt.data-*"),
        "a TensorFlow model",
        FROM_BASE,
    ),
    ForeignFiles(
        ("**/*.onnx", "**/*.onnx_data", "**/*.onnx.data", "onnx/*"), "an ONNX export", FROM_BASE
    ),
    ForeignFiles(
        ("openvino/*", "openvino_*.xml", "openvino_*.bin"), "an OpenVINO export", FROM_BASE
    ),
    ForeignFiles(("**/*.engine", "**/*.plan", "**/*.trt"), "a TensorRT engine", FROM_BASE),
    ForeignFiles(("**/*.tflite",), "a TFLite export", FROM_BASE),
    ForeignFiles(
        ("coreml/*", "**/*.mlmodel", "*.mlpackage/*", "*.mlmodelc/*", "coremldata.bin"),
        "a Core ML model",
        FROM_BASE,
    ),
    ForeignFiles(("**/*.pte",), "an ExecuTorch program", FROM_BASE),
    ForeignFiles(("**/*.ggml", "ggml-*.bin"), "a GGML file", FROM_BASE),
    ForeignFiles(("rust_model.ot",), "a file of rust-bert", FROM_BASE),
    ForeignFiles(
        ("**/*.gguf",),
        "a GGUF file",
        "Only resize, inspect and verify read it: pass them the file itself, and other commands "
        "the checkpoint that it was made from.",
    ),
    ForeignFiles(
        ("global_step*/*", "zero_pp_rank_*.pt", "*_optim_states.pt"),
        "a part of a DeepSpeed checkpoint",
        "Join the parts with the script next to them: python zero_to_fp32.py . joined",
    ),
    ForeignFiles(
        ("**/*.distcp",),
        "a part of a distributed checkpoint of torch",
        "Join the parts: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER "
        "pytorch_model.bin",
    ),
    ForeignFiles(
        ("**/model_optim_rng.pt",),
        "a part of a Megatron-LM checkpoint",
        "Convert the checkpoint to transformers with Megatron Bridge.",
    ),
    ForeignFiles(
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
)
FOREIGN_FILES = (
    *STALE_FILES,
    ForeignFiles(("training_args.bin",), "settings of a training run", PASS_WEIGHTS),
    ForeignFiles(
        (CONSOLIDATED,),
        "a file in Mistral's or Meta's own format",
        "Convert it with convert_mistral_weights_to_hf.py or convert_llama_weights_to_hf.py of "
        "transformers, and pass the folder that it writes.",
    ),
    ForeignFiles(
        ("*.zip", "*.tar", "*.tgz", "*.gz"), "an archive", "Unpack it, and pass the folder."
    ),
)


# Why a file that contains or depends on the old table is skipped, by pattern.
STALE: dict[str, str] = {}
for kind, patterns in ({row.kind: row.patterns for row in STALE_FILES} | STALE_KINDS).items():
    STALE |= dict.fromkeys(patterns, f"{kind}, not rewritten")


def find_foreign(names: Iterable[str]) -> tuple[str, ForeignFiles] | None:
    """Return the first row that a name matches, and the name; None if none does."""
    paths = [PurePosixPath(name) for name in names]
    for row in FOREIGN_FILES:
        for path in paths:
            if first_match(path, row.patterns) is not None:
                return path.as_posix(), row
    return None
