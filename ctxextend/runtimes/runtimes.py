"""The runtimes, with the versions that were run or read."""

from ctxextend.errors import ResizeError, did_you_mean
from ctxextend.runtimes.rule_schema import ROPE_SCALING, Runtime

RUNTIMES = (
    Runtime(
        key="transformers",
        name="transformers",
        version="5.24",
    ),
    Runtime(
        key="transformers4",
        name="transformers 4",
        version="4.57.6",
        dialects=(ROPE_SCALING,),
    ),
    Runtime(
        key="vllm",
        name="vLLM",
        version="0.33.0",
        reads_list_mscales=True,
        command="vllm serve {folder}",
        length_option="--max-model-len {max_len}",
    ),
    Runtime(
        key="sglang",
        name="SGLang",
        version="0.5.23",
        ignores_attention_factor=True,
        reads_list_mscales=True,
        command="python -m sglang.launch_server --model-path {folder}",
        length_option="--context-length {max_len}",
    ),
    Runtime(
        key="llama.cpp",
        name="llama.cpp",
        version="0.3.36 of llama-cpp-python",
        command="python convert_hf_to_gguf.py {folder} --outfile {folder}.gguf && "
        "llama-server -m {folder}.gguf -c {max_len}",
        file_command="llama-server -m {file} -c {max_len}",
        ignores_attention_factor=True,
        beta_option="--yarn-beta-fast {beta_fast} --yarn-beta-slow {beta_slow}",
    ),
    Runtime(
        key="mlx",
        name="mlx-lm",
        version="0.32.2",
        dialects=(ROPE_SCALING,),
        ignores_attention_factor=True,
        command="mlx_lm.server --model {folder}",
    ),
    Runtime(
        key="ctranslate2",
        name="CTranslate2",
        version="4.8.5",
        dialects=(ROPE_SCALING,),
        command="ct2-transformers-converter --model {folder} --output_dir {folder}-ct2",
    ),
    Runtime(
        key="onnx",
        name="ONNX",
        version="optimum-onnx 0.1.0",
        dialects=(ROPE_SCALING,),
        command="optimum-cli export onnx --model {folder} --task {task} {folder}-onnx",
    ),
    Runtime(
        key="openvino",
        name="OpenVINO",
        version="2026.4.1",
        command="optimum-cli export openvino --model {folder} --task {task} {folder}-openvino",
    ),
    Runtime(
        key="tei",
        name="TEI",
        version="1.9.3",
        command="text-embeddings-router --model-id {folder}",
    ),
)
RUNTIME_KEYS = tuple(runtime.key for runtime in RUNTIMES)


def find_runtime(key: str) -> Runtime:
    """Return a runtime by its key, as ``--for`` takes it.

    Raises:
        ResizeError: There is none.
    """
    for runtime in RUNTIMES:
        if runtime.key == key:
            return runtime
    hint = did_you_mean(key, RUNTIME_KEYS) or f"Use one of {', '.join(RUNTIME_KEYS)}."
    raise ResizeError(f"Unknown engine {key!r}.", hint)
