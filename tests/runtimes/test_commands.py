"""The commands that serve or convert a folder."""

import pytest
from ctxextend.runtimes.commands import serving_command
from ctxextend.runtimes.rule_schema import Runtime
from ctxextend.runtimes.runtime_statements import RuntimeOutcome, RuntimeStatement
from ctxextend.runtimes.runtimes import RUNTIMES, find_runtime

COMMANDS = {
    "transformers": "",
    "transformers4": "",
    "vllm": "vllm serve out",
    "sglang": "python -m sglang.launch_server --model-path out",
    "llama.cpp": "python convert_hf_to_gguf.py out --outfile out.gguf && "
    "llama-server -m out.gguf -c 1024",
    "mlx": "mlx_lm.server --model out",
    "ctranslate2": "ct2-transformers-converter --model out --output_dir out-ct2",
    "onnx": "optimum-cli export onnx --model out --task TASK out-onnx",
    "openvino": "optimum-cli export openvino --model out --task TASK out-openvino",
    "tei": "text-embeddings-router --model-id out",
}


def statement(runtime: Runtime, option: str = "") -> RuntimeStatement:
    return RuntimeStatement(
        runtime=runtime,
        outcome=RuntimeOutcome.SERVES,
        length=1024,
        option=option,
        reason="",
        evidence="run",
    )


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.key)
def test_serving_command_names_the_folder_and_the_length(runtime: Runtime) -> None:
    command = serving_command(runtime, statement(runtime), "out", 1024)
    assert command == COMMANDS[runtime.key]
    assert serving_command(runtime, None, "out", 1024) == command


@pytest.mark.parametrize(
    ("folder", "word"),
    [("-out", "./-out"), ("my model", "'my model'"), ("-a b", "'./-a b'"), ("a/-b", "a/-b")],
)
def test_serving_command_quotes_a_folder(folder: str, word: str) -> None:
    command = serving_command(find_runtime("vllm"), None, folder, 1024)
    assert command == f"vllm serve {word}"


def test_serving_command_quotes_a_folder_in_the_name_of_another() -> None:
    command = serving_command(find_runtime("llama.cpp"), None, "my model", 64)
    assert command == (
        "python convert_hf_to_gguf.py 'my model' --outfile 'my model'.gguf && "
        "llama-server -m 'my model'.gguf -c 64"
    )
