"""Files of other programs are refused in one sentence, and left out of outputs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend import plan_resize
from ctxextend.checkpoint.filenames import FOREIGN_FILES, STALE_FILES
from ctxextend.errors import CtxextendError
from tests.helpers import pico
from tests.helpers.gguf_files import write_gguf
from tests.helpers.trainings import invoke, unwrapped

# A file of each kind, in the order of `FOREIGN_FILES`.
NAMES = (
    "tf_model.h5",
    "onnx/model.onnx",
    "consolidated.00.pth",
    "M.Q4.GGUF",
    "pytorch_model_fsdp_0/__0_0.distcp",
    "optimizer.pt",
    "training_args.bin",
    "model.tar.gz",
)
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 16}
ROWS = dict(zip(NAMES, FOREIGN_FILES, strict=True))


def error_of(reference: str | Path) -> CtxextendError:
    """Return the error of a resize."""
    with pytest.raises(CtxextendError) as raised:
        plan_resize(reference, 1024)
    return raised.value


@pytest.mark.parametrize("has_config", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_other_weights_is_refused_by_what_it_has(
    name: str, tmp_path: Path, *, has_config: bool
) -> None:
    path = tmp_path / "model" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x08\x08")
    if has_config:
        pico.write_json(tmp_path / "model" / "config.json", GPT2)
    error = error_of(tmp_path / "model")
    row = ROWS[name]
    assert error.message.endswith(f", only {name}: {row.kind}.")
    assert error.hint == row.hint


@pytest.mark.parametrize("name", [name for name in NAMES if "/" not in name and "GGUF" not in name])
def test_a_file_is_refused_by_what_it_is(name: str) -> None:
    Path(name).write_bytes(b"\x08\x08")
    error = error_of(name)
    assert error.message == f"{name} is {ROWS[name].kind}."
    assert error.hint == ROWS[name].hint


@pytest.mark.parametrize(
    "arguments", [("convert", "m.gguf", "--scheme", "rotary"), ("train", "m.gguf", "--steps", 1)]
)
def test_commands_that_read_no_gguf_file_say_so(arguments: tuple[str | int, ...]) -> None:
    write_gguf(Path("m.gguf"))
    Path("x.txt").write_text("text " * 100)
    command, *words = arguments
    more = ("--data", "x.txt") if command == "train" else ("--to", 32)
    done = invoke(str(command), *words, *more)
    assert done.exit_code == 1
    assert "m.gguf is a GGUF file" in unwrapped(done.stderr)


def test_an_output_lacks_files_with_the_old_table(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    for name in (*NAMES, *(f"onnx/{number}.onnx" for number in range(9))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    done = invoke("resize", folder, "--to", 40, "--output", "longer")
    assert done.exit_code == 0
    written = {path.relative_to("longer").as_posix() for path in Path("longer").rglob("*")}
    skipped = {name for name, row in ROWS.items() if row in STALE_FILES}
    assert written.isdisjoint(skipped)
    assert {"training_args.bin", "model.tar.gz"} <= written
    lines = [
        line
        for line in done.stderr.splitlines()
        if "a file of another program, not rewritten" in line
    ]
    assert len(lines) == 1


def test_a_table_that_mlx_quantised_is_named(make_pico: Callable[..., pico.Pico]) -> None:
    folder = make_pico("gpt2").folder
    tensors = load_file(folder / "model.safetensors")
    rows = len(tensors.pop("transformer.wpe.weight"))
    tensors["transformer.wpe.weight"] = torch.zeros(rows, 1, dtype=torch.uint32)
    tensors["transformer.wpe.scales"] = torch.ones(rows, 1)
    tensors["transformer.wpe.biases"] = torch.ones(rows, 1)
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    error = error_of(folder)
    assert "wpe.weight is quantised by MLX" in error.message
