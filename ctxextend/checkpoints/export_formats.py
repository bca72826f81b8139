"""Formats that other programs make from a checkpoint, and the commands that make them again."""

from dataclasses import dataclass
from typing import NamedTuple

TRANSFORMERS_4 = 'pip install "transformers<5"'


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A format of weights that is made from a checkpoint of transformers, and not back.

    In the words of a command, ``{folder}`` is the checkpoint, ``{weights}`` its weights file,
    ``{model_class}`` its class in transformers, ``{task}`` what that is for, and ``{output}`` what
    the command makes; with ``_text`` after the name, it is a text in Python. ``{cached_task}`` is
    the task of a model that keeps keys and values while it generates.
    """

    kind: str  # a noun, for sentences such as "model.onnx is an ONNX export"
    files: tuple[str, ...]  # patterns as in `filenames`
    commands: tuple[tuple[str, ...], ...]  # the words of each
    ending: str  # of the name of the output, after that of the folder
    install: str  # the command, or the source of the programs
    # How ``.bin`` files begin that have the name of PyTorch's: a regular expression.
    start: bytes | None = None
    readers: str = ""  # the commands that read it; empty: none
    # The noun for several files, if each of them is a model; else empty.
    plural: str = ""

    @property
    def reason(self) -> str:
        """Why a file of this format is skipped."""
        return f"{self.kind}, not rewritten"


class ExportTask(NamedTuple):
    """A task of Optimum, by how the names of its classes end in transformers."""

    classes: str
    name: str
    is_cached: bool = False  # whether it also exists with cached keys and values


# Optimum infers no task from a local folder. The first row that fits applies. Source:
# optimum/exporters/tasks.py, 2.3.
EXPORT_TASKS = (
    ExportTask("WhisperForConditionalGeneration", "automatic-speech-recognition", is_cached=True),
    ExportTask("ForConditionalGeneration", "text2text-generation", is_cached=True),
    ExportTask("ForCausalLM", "text-generation", is_cached=True),
    ExportTask("LMHeadModel", "text-generation", is_cached=True),
    ExportTask("ForMaskedLM", "fill-mask"),
    ExportTask("ForSequenceClassification", "text-classification"),
    ExportTask("ForTokenClassification", "token-classification"),
    ExportTask("ForQuestionAnswering", "question-answering"),
    ExportTask("ForMultipleChoice", "multiple-choice"),
    ExportTask("Model", "feature-extraction"),
)
UNKNOWN_TASK = ExportTask("", "TASK")

GGUF = ExportFormat(
    kind="a GGUF file",
    files=("**/*.gguf",),
    commands=(("python", "convert_hf_to_gguf.py", "{folder}", "--outfile", "{output}"),),
    ending="f16.gguf",
    install="in a clone of llama.cpp; llama-quantize makes smaller ones",
    readers="resize, inspect and verify",
    plural="GGUF files",
)

# Commands were read in 2026-11 in the sources that are named, and not run, unless it says so.
EXPORT_FORMATS = (
    # Transformers 4 is the last version with TensorFlow and Flax: `from_pretrained` in
    # modeling_tf_utils.py and modeling_flax_utils.py of 4.57.6 reads model.safetensors.
    ExportFormat(
        kind="TensorFlow weights",
        files=("tf_model*.h5", "tf_model*.h5.index.json"),
        commands=(
            (
                "python",
                "-c",
                "import transformers; transformers.TF{model_class}.from_pretrained({folder_text})"
                ".save_pretrained({output_text})",
            ),
        ),
        ending="tf",
        install=f"{TRANSFORMERS_4} tensorflow tf-keras torch",
    ),
    ExportFormat(
        kind="Flax weights",
        files=("flax_model*.msgpack", "flax_model*.msgpack.index.json"),
        commands=(
            (
                "python",
                "-c",
                "import transformers; transformers.Flax{model_class}.from_pretrained({folder_text})"
                ".save_pretrained({output_text})",
            ),
        ),
        ending="flax",
        install=f"{TRANSFORMERS_4} flax torch",
    ),
    ExportFormat(
        kind="a TensorFlow model",
        files=(
            "**/saved_model.pb",
            "saved_model/*",
            "*.ckpt.index",
            "*.ckpt.meta",
            "*.ckpt.data-*",
        ),
        commands=(
            (
                "python",
                "-c",
                "import transformers; transformers.TF{model_class}.from_pretrained({folder_text})"
                ".save_pretrained({output_text}, saved_model=True)",
            ),
        ),
        ending="tf",
        install=f"{TRANSFORMERS_4} tensorflow tf-keras torch",
    ),
    # optimum-onnx 0.1, optimum/commands/export/onnx.py. Run on a small GPT-2 and a small BERT.
    ExportFormat(
        kind="an ONNX export",
        files=("**/*.onnx", "**/*.onnx_data", "**/*.onnx.data", "onnx/*"),
        commands=(
            (
                "optimum-cli",
                "export",
                "onnx",
                "--model",
                "{folder}",
                "--task",
                "{cached_task}",
                "{output}",
            ),
        ),
        ending="onnx",
        install='pip install "optimum-onnx[onnxruntime]"',
    ),
    # optimum-intel 2.2, optimum/commands/export/openvino.py. Run on the same models.
    ExportFormat(
        kind="an OpenVINO export",
        files=("openvino/*", "openvino_*.xml", "openvino_*.bin"),
        commands=(
            (
                "optimum-cli",
                "export",
                "openvino",
                "--model",
                "{folder}",
                "--task",
                "{cached_task}",
                "{output}",
            ),
        ),
        ending="openvino",
        install='pip install "optimum-intel[openvino]"',
    ),
    # TensorRT-LLM no longer builds engines: docs/source/legacy/tensorrt-backend-removal.md.
    ExportFormat(
        kind="a TensorRT-LLM engine",
        files=("rank*.engine", "*/rank*.engine"),
        commands=(("trtllm-serve", "{folder}"),),
        ending="trtllm",
        install="TensorRT-LLM now reads checkpoints themselves",
    ),
    ExportFormat(
        kind="a TensorRT engine",
        files=("**/*.engine", "**/*.plan", "**/*.trt"),
        commands=(
            (
                "optimum-cli",
                "export",
                "onnx",
                "--model",
                "{folder}",
                "--task",
                "{cached_task}",
                "{output}",
            ),
            ("trtexec", "--onnx={output}/model.onnx", "--saveEngine={output}/model.engine"),
        ),
        ending="tensorrt",
        install='pip install "optimum-onnx[onnxruntime]"; trtexec comes with TensorRT',
    ),
    # optimum 1: version 2 no longer has this command.
    ExportFormat(
        kind="a TFLite export",
        files=("**/*.tflite",),
        commands=(
            (
                "optimum-cli",
                "export",
                "tflite",
                "--model",
                "{folder}",
                "--task",
                "{task}",
                "--sequence_length",
                "N",
                "{output}",
            ),
        ),
        ending="tflite",
        install='pip install "optimum[exporters-tf]<2"',
    ),
    # README.md of huggingface/exporters, whose development has ended.
    ExportFormat(
        kind="a Core ML model",
        files=(
            "coreml/*",
            "**/*.mlmodel",
            "*.mlpackage/*",
            "*.mlmodelc/*",
            "coremldata.bin",
        ),
        commands=(("python", "-m", "exporters.coreml", "--model={folder}", "{output}"),),
        ending="coreml",
        install="pip install git+https://github.com/huggingface/exporters",
    ),
    # docs/optimum-executorch/quickstart.
    ExportFormat(
        kind="an ExecuTorch program",
        files=("**/*.pte",),
        commands=(
            (
                "optimum-cli",
                "export",
                "executorch",
                "--model",
                "{folder}",
                "--task",
                "{task}",
                "--recipe",
                "xnnpack",
                "--output_dir",
                "{output}",
            ),
        ),
        ending="executorch",
        install="pip install optimum-executorch",
    ),
    GGUF,
    # Their first four bytes: `GGML_FILE_MAGIC` in llama.cpp's convert_llama_ggml_to_gguf.py.
    ExportFormat(
        kind="a GGML file, the format before GGUF",
        files=("**/*.ggml", "ggml-*.bin"),
        commands=(("python", "convert_hf_to_gguf.py", "{folder}", "--outfile", "{output}"),),
        ending="f16.gguf",
        install="in a clone of llama.cpp",
        start=rb"(lmgg|fmgg|tjgg)",
    ),
    # CTranslate2 4.8, `ModelSpec._serialize` in specs/model_spec.py: a version, and a name.
    ExportFormat(
        kind="a CTranslate2 model",
        files=(),
        commands=(
            ("ct2-transformers-converter", "--model", "{folder}", "--output_dir", "{output}"),
        ),
        ending="ct2",
        install="pip install ctranslate2",
        start=rb".{4}..\w{1,60}Spec\x00",
    ),
    # guillaume-be/rust-bert, utils/convert_model.py: it reads only files of `torch.save`, and
    # writes rust_model.ot next to its input.
    ExportFormat(
        kind="weights of rust-bert",
        files=("rust_model.ot",),
        commands=(
            (
                "python",
                "-c",
                "import torch, safetensors.torch; "
                "torch.save(safetensors.torch.load_file({weights_text}), {output_text})",
            ),
            ("python", "utils/convert_model.py", "{output}"),
        ),
        ending="rust.bin",
        install="in a clone of rust-bert",
    ),
)

# Safetensors with integers, and with scales and biases next to them. It quantises embeddings too,
# position tables among them. Run on a small GPT-2 in mlx-lm 0.32.
MLX = ExportFormat(
    kind="quantised by MLX",
    files=(),
    commands=(("mlx_lm.convert", "--hf-path", "{folder}", "--mlx-path", "{output}", "-q"),),
    ending="mlx",
    install="pip install mlx-lm",
)
