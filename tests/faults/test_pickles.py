"""Pickles that try to execute code or to exhaust memory: rejected, and no code is executed."""

import os
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend import evaluate, inspect, resize, train, verify
from ctxextend.errors import CheckpointError
from tests.helpers import pico, trainings
from tests.helpers.pytorch_files import (
    change_records,
    open_pytorch_file,
    save,
    write_legacy,
    write_pickle,
    write_zip,
)
from tests.helpers.time_limit import time_limit

MakePico = Callable[..., pico.Pico]


class Call:
    """Pickles as a function call, with an optional state for its result."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.call: tuple[Any, ...] = (function, arguments)
        if state is not None:
            self.call = (function, arguments, state)

    def __call__(self) -> None:
        """Make instances callable, as pickle requires of functions."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def array_of(command: str) -> Call:
    """Return a numpy array whose dtype state is a call."""
    reconstruct = np.array(1).__reduce__()[0]
    call = Call(os.system, command)
    state = (1, (1,), call, False, b"x")
    return Call(reconstruct, np.ndarray, (0,), b"b", state=state)  # type: ignore[arg-type]


# Calls at the top level, as arguments of the tensor constructors that weights_only allows, and as
# states.
HOSTILE: dict[str, Callable[[str], Any]] = {
    "system": lambda command: Call(os.system, command),
    "hub": lambda command: Call(torch.hub.load, "owner/name", "model"),
    "tensor": lambda command: Call(
        torch._utils._rebuild_tensor_v2, Call(os.system, command), 0, (1,), (1,), False, {}
    ),
    "hooks": lambda command: Call(
        torch._utils._rebuild_parameter, torch.ones(1), False, Call(os.system, command)
    ),
    "object": lambda command: Namespace(command=command),
    "array": array_of,
}


@pytest.mark.parametrize("write", [write_zip, write_legacy, write_pickle])
@pytest.mark.parametrize("kind", HOSTILE)
def test_open_pytorch_file_executes_no_code(
    kind: str, write: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    tensors = {"a": torch.ones(1), "b": HOSTILE[kind](f"touch {canary}")}
    path = save(tensors, tmp_path / "a.bin", write)
    problem = "no code was executed|not a valid PyTorch file with only tensors"
    with time_limit(2), pytest.raises(CheckpointError, match=problem) as caught:
        open_pytorch_file(path)
    assert str(path) in caught.value.message
    assert "weights_only" not in str(caught.value)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a shard", "adapter_model.bin", "ckpt.pt"])
def test_commands_execute_no_code_in_weights(
    name: str, make_pico: MakePico, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    folder = make_pico("gpt2").folder
    (folder / "model.safetensors").unlink()
    if name == "adapter_model.bin":
        (folder / "config.json").rename(folder / "adapter_config.json")
    if name == "ckpt.pt":  # as nanoGPT writes it
        (folder / "config.json").unlink()
    if name == "a shard":
        name = "pytorch_model-00001-of-00001.bin"
        weight_map = {"transformer.wpe.weight": name}
        pico.edit_json(folder / "pytorch_model.bin.index.json", weight_map=weight_map)
    call = Call(os.system, f"touch {canary}")
    save({"a": call}, folder / name)
    commands: tuple[Callable[[], Any], ...] = (
        lambda: resize(folder, to=40),
        lambda: resize(folder / name, to=40, model_type="gpt2"),
        lambda: inspect(folder),
    )
    problem = "references .*system.*no code was executed"
    for command in commands:
        with time_limit(2), pytest.raises(CheckpointError, match=problem):
            command()
    assert not canary.exists()


@pytest.mark.usefixtures("book")
def test_commands_never_load_other_pickles_in_the_folder(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    source = trainings.make_source(tmp_path / "source", "gpt2")
    names = (
        "training_args.bin",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "pytorch_model.bin",
        "x.pkl",
    )
    for name in (*names, "adapter_model.bin", "ckpt.pt"):
        call = Call(os.system, f"touch {canary}")
        save({"a": call}, source / name, write_pickle)
    inspect(source)
    output = resize(source, to=32, output="out").output
    assert verify(output, source, deep=True).passed
    evaluate(source, "book.txt", tokens=512, measure=("position",))
    train(source, "book.txt", 1, batch_size=2, output="trained")
    assert not canary.exists()


@pytest.fixture
def weights_path(tmp_path: Path) -> Path:
    """A valid file with one tensor of 100 values."""
    return save({"a": torch.arange(100.0)}, tmp_path / "a.bin")


def test_open_pytorch_file_rejects_compressed_records(weights_path: Path) -> None:
    def inflate(name: str, data: bytes) -> tuple[str, bytes]:
        if "/data/" in name:
            data = bytes(1 << 26)
        return name, data

    change_records(weights_path, inflate, zipfile.ZIP_DEFLATED)
    assert weights_path.stat().st_size < 1 << 17
    with time_limit(2), pytest.raises(CheckpointError, match="is compressed"):
        open_pytorch_file(weights_path)


@pytest.mark.parametrize("length", [10_000, 2**31 - 1])
def test_open_pytorch_file_rejects_tensors_larger_than_their_storage(
    length: int, weights_path: Path
) -> None:
    length_opcode = b"J" + length.to_bytes(4, "little")

    def lengthen(name: str, data: bytes) -> tuple[str, bytes]:
        if name.endswith("data.pkl"):
            data = data.replace(b"Kd", length_opcode)  # 100 in the storage size and the shape
        return name, data

    change_records(weights_path, lengthen)
    problem = "is not a valid PyTorch file with only tensors"
    with time_limit(2), pytest.raises(CheckpointError, match=problem):
        open_pytorch_file(weights_path)
