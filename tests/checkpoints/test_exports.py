"""Exports of other programs: named in errors and notes, with the commands that make them again."""

import json
import shlex
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend import convert, resize
from ctxextend.checkpoints.export_formats import EXPORT_FORMATS, ExportFormat
from ctxextend.checkpoints.exports import commands_again, find_format
from ctxextend.errors import CheckpointError
from tests.helpers import pico
from tests.helpers.trainings import invoke

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_positions": 16,
    "_name_or_path": "owner/base",
}
CT2_MODEL = struct.pack("<IH", 6, 23) + b"TransformerDecoderSpec\0" + bytes(64)
GGML = b"tjgg\1\0\0\0"
TRTLLM = {"pretrained_config": {"architecture": "GPTForCausalLM"}, "build_config": {}}
CT2 = {"bos_token": "<s>", "layer_norm_epsilon": 1e-5}
# Folders by name: config, files, what it is, and the last command.
FOLDERS = {
    "optimum": (GPT2, ["model.onnx", "model.onnx_data"], "an ONNX export", "export onnx"),
    "transformers.js": (GPT2, ["onnx/model_quantized.onnx"], "an ONNX export", "export onnx"),
    "bare": (None, ["model.onnx"], "an ONNX export", "export onnx"),
    "openvino": (
        GPT2,
        ["openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.bin"],
        "an OpenVINO export",
        "export openvino",
    ),
    "trtllm": (TRTLLM, ["rank0.engine"], "a TensorRT-LLM engine", "trtllm-serve longer"),
    "tensorrt": (None, ["model.plan"], "a TensorRT engine", "trtexec --onnx="),
    "coreml": (GPT2, ["model.mlpackage/Manifest.json"], "a Core ML model", "exporters.coreml"),
    "compiled": (None, ["model.mlmodelc/coremldata.bin"], "a Core ML model", "exporters.coreml"),
    "saved": (
        GPT2,
        ["saved_model.pb", "variables/variables.index"],
        "a TensorFlow model",
        "transformers.TFGPT2LMHeadModel",
    ),
    "of TensorFlow 1": (
        None,
        ["model.ckpt.index", "model.ckpt.meta", "vocab.txt"],
        "a TensorFlow model",
        "transformers.TFAutoModel",
    ),
    "tflite": (GPT2, ["model.tflite"], "a TFLite export", "export tflite"),
    "executorch": (GPT2, ["model.pte"], "an ExecuTorch program", "export executorch"),
    "gguf": (None, ["m.Q4_K_M.gguf"], "a GGUF file", "convert_hf_to_gguf.py longer"),
    "gguf with config": (GPT2, ["M.GGUF"], "a GGUF file", "convert_hf_to_gguf.py longer"),
    "ggml": (None, ["model.bin"], "a GGML file", "convert_hf_to_gguf.py longer"),
    "ct2": (CT2, ["model.bin", "vocabulary.json"], "a CTranslate2 model", "--output_dir longer"),
    "rust": (GPT2, ["rust_model.ot"], "weights of rust-bert", "utils/convert_model.py"),
}
CONTENTS = {"ggml": GGML, "ct2": CT2_MODEL}


def make_export(folder: Path, name: str) -> Path:
    """Create one of `FOLDERS`."""
    config, files, _, _ = FOLDERS[name]
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(CONTENTS.get(name, b"\x08\x08"))
    return folder


def hint_of(reference: Path) -> str:
    """Return the hint of the error for an export."""
    with pytest.raises(CheckpointError) as caught:
        convert(reference, "rotary", 32)
    assert caught.value.hint is not None
    return caught.value.hint


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with_only_exports_is_named_with_the_commands_that_make_them_again(
    name: str, tmp_path: Path
) -> None:
    config, files, kind, command = FOLDERS[name]
    folder = make_export(tmp_path / "model", name)
    with pytest.raises(CheckpointError) as caught:
        resize(folder, 32)
    assert f"{folder} has no weights of transformers, only {kind}" in caught.value.message
    assert files[0] in caught.value.message
    base = "owner/base" if config == GPT2 else "BASE"
    hint = str(caught.value.hint)
    if name.startswith("gguf"):
        use, _, hint = hint.partition(" Resize the checkpoint ")
        assert use == (
            f"To resize, inspect or verify it as it is, pass the file: {folder / files[0]}."
        )
    _, _, steps = hint.partition(": ")
    first, *others = steps.split(", then ")
    assert first == f"ctxextend resize {base} --to N --output longer"
    assert command in others[-1]


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize(
    "arguments", ["inspect", "convert --scheme rotary --to 32", "train --data x.txt --steps 1"]
)
def test_every_command_names_an_export(name: str, arguments: str, tmp_path: Path) -> None:
    folder = make_export(tmp_path / "model", name)
    Path("x.txt").write_text("text")
    command, *flags = shlex.split(arguments)
    done = invoke(command, str(folder), *flags)
    assert done.exit_code == 1
    assert FOLDERS[name][2] in done.stderr
    assert "of ctxextend" not in done.stderr  # flags of other programs are not taken for ours


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("optimum", "model.onnx"),
        ("openvino", "openvino_model.bin"),
        ("openvino", "openvino_model.xml"),
        ("trtllm", "rank0.engine"),
        ("ggml", "model.bin"),
        ("ct2", "model.bin"),
        ("executorch", "model.pte"),
        ("tflite", "model.tflite"),
    ],
)
def test_a_file_of_an_export_is_named(name: str, file: str, tmp_path: Path) -> None:
    path = make_export(tmp_path / "model", name) / file
    with pytest.raises(CheckpointError) as caught:
        convert(path, "rotary", 32)
    kind = FOLDERS[name][2]
    assert caught.value.message.startswith(f"{path} is {kind}")
    assert FOLDERS[name][3] in str(caught.value.hint)


@pytest.mark.parametrize(
    "arguments",
    [
        "evaluate FILE --data x.txt",
        "train FILE --data x.txt --steps 1",
        "compare FILE --to 4x --data x.txt",
        "convert FILE --scheme rotary --to 32",
    ],
)
@pytest.mark.parametrize("base", ["owner/base", None])
def test_other_commands_ask_for_the_base_of_a_gguf_file(
    base: str | None, arguments: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_with_base(f"https://huggingface.co/{base}" if base else ""))
    Path("x.txt").write_text("text " * 100)
    done = invoke(*shlex.split(arguments.replace("FILE", str(path))))
    assert done.exit_code == 1
    error = done.stderr.replace("\n", " ")
    assert "is a GGUF file, which only resize, inspect and verify read." in error
    expected = base or "a folder or a Hub id"
    assert f"the checkpoint of transformers that it was made from: {expected}" in error
    assert "ctxextend resize" not in error


def test_a_gguf_file_names_its_source_before_the_base_of_that(tmp_path: Path) -> None:
    values = {
        "general.base_model.0.repo_url": "https://huggingface.co/owner/pretrained",
        "general.source.repo_url": "https://huggingface.co/owner/tuned",
    }
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    for key, value in values.items():
        content += gguf_text(key) + struct.pack("<I", 8) + gguf_text(value)
    (tmp_path / "m.gguf").write_bytes(content)
    assert "made from: owner/tuned" in hint_of(tmp_path / "m.gguf")


def test_several_gguf_files_are_listed(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"only GGUF files \(a.gguf, b.gguf\)"):
        resize(tmp_path, 32)


def test_a_core_ml_package_is_named(tmp_path: Path) -> None:
    package = tmp_path / "model.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "Data" / "model.mlmodel").write_bytes(b"\x08")
    with pytest.raises(CheckpointError, match="only a Core ML model"):
        resize(package, 32)


def test_files_of_tensorflow_and_flax_are_named_as_their_folders_are(tmp_path: Path) -> None:
    for name, framework in (("tf_model.h5", "tensorflow"), ("flax_model.msgpack", "flax")):
        path = tmp_path / framework / name
        path.parent.mkdir()
        path.write_bytes(b"x")
        for reference in (path, path.parent):
            with pytest.raises(CheckpointError, match=f"only {framework} weights") as caught:
                resize(reference, 32)
            assert 'pip install "transformers<5"' in str(caught.value.hint)


def gguf_text(text: str) -> bytes:
    """Return a text as GGUF stores it: its length and its bytes."""
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_with_base(url: str) -> bytes:
    """Return the start of a GGUF file whose metadata names a base model."""
    values = {"general.architecture": "llama", "general.base_model.0.repo_url": url}
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    for key, value in values.items():
        content += gguf_text(key) + struct.pack("<I", 8) + gguf_text(value)
    return content + gguf_text("llama.context_length") + struct.pack("<II", 4, 2048)


@pytest.mark.parametrize(
    ("files", "base"),
    [
        ({"m.gguf": gguf_with_base("https://huggingface.co/owner/base")}, "owner/base"),
        ({"m.gguf": gguf_with_base("https://example.com/owner/base")}, "BASE"),
        ({"m.gguf": gguf_with_base("https://huggingface.co/a b; rm -rf")}, "BASE"),
        ({"m.gguf": b"GGUF", "README.md": b"---\nbase_model: owner/base\n---\n"}, "owner/base"),
        ({"m.gguf": b"GGUF", "README.md": b"---\nbase_model:\n- owner/base\n---"}, "owner/base"),
        ({"m.gguf": b"GGUF", "README.md": b'---\nbase_model: "owner/base"\n---'}, "owner/base"),
        ({"m.gguf": b"GGUF", "README.md": b"---\nbase_model: $(touch x)\n---"}, "BASE"),
        ({"m.gguf": b"GGUF", "config.json": b'{"_name_or_path": "./out/x"}'}, "BASE"),
        ({"m.gguf": b"GGUF", "config.json": b'{"_name_or_path": "checkpoint-5"}'}, "BASE"),
        ({"m.gguf": b"GGUF", "config.json": b'{"_name_or_path": ["a/b"]}'}, "BASE"),
    ],
)
def test_the_hint_names_the_base_if_a_file_does(
    files: Mapping[str, bytes], base: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert f"ctxextend resize {base} --to N" in hint_of(tmp_path)
    passed = "a folder or a Hub id." if base == "BASE" else base
    assert hint_of(tmp_path / "m.gguf").endswith(f"it was made from: {passed}")


def test_files_outside_the_folder_are_not_read_for_a_hint(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"_name_or_path": "owner/secret"}')
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF")
    (folder / "README.md").symlink_to(tmp_path / "secret.json")
    assert "ctxextend resize BASE" in hint_of(folder)


def test_several_formats_are_all_named(tmp_path: Path) -> None:
    for name in ("x.gguf", *(f"onnx/{number}.onnx" for number in range(5))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        resize(tmp_path, 32)
    listed = "a GGUF file (x.gguf) and an ONNX export (onnx/0.onnx, onnx/1.onnx, onnx/2.onnx and "
    assert f"only {listed}2 more)." in caught.value.message
    assert "export onnx" in str(caught.value.hint)
    assert "convert_hf_to_gguf.py" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other.safetensors", "Pass the file itself"),
        ("model.fp16.safetensors", "--variant fp16"),
        ("large/config.json", "Pass one with --subfolder"),
    ],
)
def test_weights_next_to_an_export_are_suggested_instead(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"model_type": "gpt2"}')
    if not name.startswith("large"):
        (tmp_path / "config.json").write_text(json.dumps(GPT2))
    assert message in hint_of(tmp_path)


def test_resize_says_how_to_make_skipped_exports_again(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    folder = make_pico("gpt2").folder
    for name in ("x.gguf", "tf_model.h5", *(f"onnx/{number}.onnx" for number in range(5))):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    output = tmp_path / "it's longer"
    done = invoke("resize", str(folder), "--to", "40", "-o", str(output))
    assert done.exit_code == 0
    skipped = [line for line in done.stderr.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 3  # one for each format
    quoted = shlex.quote(str(output))
    exported = shlex.quote(f"{output}-onnx")
    task = "text-generation-with-past"
    onnx = f"optimum-cli export onnx --model {quoted} --task {task} {exported} (pip install "
    files = "onnx/0.onnx, onnx/1.onnx, onnx/2.onnx and 2 more (an ONNX export, not rewritten)"
    assert any(line.startswith(f"skipped: {files}. To make it again: {onnx}") for line in skipped)

    planned = invoke("resize", str(folder), "--to", "40", "-o", str(output), "--dry-run", "--force")
    assert f"an ONNX export: {onnx}" in planned.stdout
    assert f"a GGUF file: python convert_hf_to_gguf.py {quoted} --outfile" in planned.stdout


@pytest.mark.parametrize("row", EXPORT_FORMATS, ids=[row.kind for row in EXPORT_FORMATS])
def test_commands_are_safe_for_any_folder(row: ExportFormat) -> None:
    folder = 'it\'s $(touch x) "{y}"'
    commands = commands_again(row, folder, "GPT2Model")
    text = commands.removesuffix(f" ({row.install})")
    for command in text.split(", then "):
        words = shlex.split(command)
        if "-c" in words:
            compile(words[-1], "command", "exec")
        else:
            assert any(folder in word for word in words)


@pytest.mark.parametrize(
    ("model_class", "task"),
    [
        ("BertModel", "feature-extraction"),
        ("BertForMaskedLM", "fill-mask"),
        ("LlamaForCausalLM", "text-generation-with-past"),
        ("T5ForConditionalGeneration", "text2text-generation-with-past"),
        ("WhisperForConditionalGeneration", "automatic-speech-recognition-with-past"),
        ("BertForPreTraining", "TASK"),
        (None, "TASK"),
    ],
)
def test_exports_of_optimum_name_the_task(model_class: str | None, task: str) -> None:
    # Optimum infers none from a local folder.
    for row in EXPORT_FORMATS:
        if row.kind == "an ONNX export":
            assert f" --task {task} longer-onnx" in commands_again(row, "longer", model_class)


def test_checkpoints_are_no_exports(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("bert").folder
    (folder / "training_args.bin").write_bytes(b"PK")
    for path in folder.iterdir():
        assert find_format(folder, path.name) is None


def test_a_table_that_mlx_quantised_is_named(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    tensors = load_file(folder / "model.safetensors")
    rows = len(tensors.pop("transformer.wpe.weight"))
    tensors["transformer.wpe.weight"] = torch.zeros(rows, 1, dtype=torch.uint32)
    tensors["transformer.wpe.scales"] = torch.ones(rows, 1)
    tensors["transformer.wpe.biases"] = torch.ones(rows, 1)
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    pico.edit_json(folder / "config.json", _name_or_path="owner/base")
    with pytest.raises(CheckpointError, match=r"wpe\.weight is quantised by MLX") as caught:
        resize(folder, 32)
    steps = str(caught.value.hint).partition(": ")[2]
    assert steps.startswith("ctxextend resize owner/base --to N --output longer, then ")
    assert "mlx_lm.convert --hf-path longer --mlx-path longer-mlx -q" in steps
