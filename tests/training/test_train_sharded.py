"""Training past one device: float32 values of half-precision parameters, `--fsdp`, and resuming on
other devices.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend.training.setup import TrainableParameters
from ctxextend.training.trainer import RunCallback
from tests.helpers import pico
from tests.helpers.trainings import (
    NEW,
    TABLES,
    changed_tensors,
    invoke,
    log_of,
    make_resized,
    train,
)

pytestmark = pytest.mark.usefixtures("book")
WPE = TABLES["gpt2"]
FLAGS = (
    "--data",
    "book.txt",
    "--steps",
    4,
    "--batch-size",
    4,
    "--save",
    "last",
    "--save-every",
    2,
    "--lr",
    0.01,
)

# Runs the command line; reports the classes of parameters at the last step, or kills itself after
# the first save.
WORKER = """
import os, sys
from ctxextend.__main__ import main
from ctxextend.training.trainer import RunCallback

on_step_end, on_save = RunCallback.on_step_end, RunCallback.on_save

def report(self, args, state, control, **others):
    if state.global_step == state.max_steps and state.is_world_process_zero:
        for name, value in self.setup.model.model.named_parameters():
            master = self.setup.trainable.masters.get(name)
            print(type(value.data).__name__, type(master).__name__, name, file=sys.stderr)
    on_step_end(self, args, state, control, **others)

def save(self, args, state, control, **others):
    on_save(self, args, state, control, **others)
    if "KILLED" in os.environ:
        os.kill(os.getpid(), 9)

RunCallback.on_step_end, RunCallback.on_save = report, save
main()
"""


@pytest.fixture
def source() -> Path:
    return make_resized(Path("source").absolute(), "gpt2")


def to_bfloat16(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(
        {name: value.bfloat16() for name, value in load_file(path).items()}, path, {"format": "pt"}
    )
    pico.edit_json(folder / "config.json", dtype="bfloat16")


def launch(
    processes: int, source: object, *flags: object, killed: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Train in several processes; they can fail at exit, after everything is written."""
    Path("worker.py").write_text(WORKER)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "worker.py",
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    environment |= {"KILLED": "1"} if killed else {}
    arguments = [*command, "train", str(source), *map(str, (*FLAGS, *flags))]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)


def check_equal_losses(one: Path, other: Path) -> None:
    for line, expected in zip(log_of(other), log_of(one), strict=True):
        assert line == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("trainable", ["new", "all"])
def test_train_keeps_half_precision_parameters_and_updates_float32_values(
    trainable: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_bfloat16(source)
    seen = dict[str, tuple[torch.dtype, torch.dtype]]()
    attach = TrainableParameters.attach

    def record(self: TrainableParameters, optimizer: torch.optim.Optimizer) -> None:
        attach(self, optimizer)
        for name, value in self.model.named_parameters():
            seen[name] = value.dtype, self.masters.get(name, value).dtype

    monkeypatch.setattr(TrainableParameters, "attach", record)
    # A rate so small that the steps would be lost in bfloat16, whose neighbours above 0.5 differ by
    # 0.004 or more.
    done = train(
        source,
        "out",
        "--trainable",
        trainable,
        "--precision",
        "bf16",
        "--lr",
        1e-3,
        "--json",
        steps=12,
    )
    assert {dtype for dtype, _ in seen.values()} == {torch.bfloat16}
    assert seen[WPE] == (torch.bfloat16, torch.float32)
    assert {master for _, master in seen.values()} == (
        {torch.float32, torch.bfloat16} if trainable == "new" else {torch.float32}
    )
    assert json.loads(done.stdout)["precision"] == "bf16"
    before, after = (
        load_file(folder / "model.safetensors")[WPE].float() for folder in (source, Path("out"))
    )
    large = before.abs() > 0.5
    large[:16] &= trainable == "all"
    assert (after != before)[large].float().mean() > 0.2
    if trainable == "new":
        assert changed_tensors(source, Path("out")) == {WPE}
        assert torch.equal(after[:16], before[:16])


def test_train_in_half_precision_resumes_with_identical_output(source: Path) -> None:
    to_bfloat16(source)
    flags = ("--precision", "bf16", "--trainable", "all", "--save-every", 2)
    train(source, "whole", *flags)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(RunCallback, "on_save", Mock(side_effect=ZeroDivisionError))
        train(source, "out", *flags)
    train(source, "out", *flags, "--resume")
    assert pico.tensor_bytes(Path("out")) == pico.tensor_bytes(Path("whole"))


def test_train_rejects_sharding_that_would_not_shard(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoke("train", source, *FLAGS, "--fsdp")
    assert done.exit_code == 1
    assert "--fsdp shards a model across processes, but there is only one." in done.stderr
    assert "torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp" in " ".join(
        done.stderr.split()
    )
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    done = invoke("train", source, *FLAGS)
    assert done.exit_code == 1
    assert "DeepSpeed is not supported." in done.stderr
    assert "shard the model with --fsdp." in " ".join(done.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["new", "all", "adapters"])
def test_train_fsdp_shards_blocks_and_gives_the_losses_of_one_process(
    trainable: str, source: Path
) -> None:
    flags = ("--lora", 4) if trainable == "adapters" else ("--trainable", trainable)
    flags = (*flags, "--per-device-batch-size", 1)
    assert invoke("train", source, *FLAGS, *flags, "-o", "one").exit_code == 0
    done = launch(2, source, *flags, "--fsdp", "-o", "two", "--json")
    assert Path("two").exists(), done.stderr
    result = json.loads(done.stdout)
    assert (result["sharding"], result["devices"], result["parameters"]) == (
        "fsdp2",
        2,
        json.loads(invoke("train", source, *FLAGS, *flags, "-o", "again", "--json").stdout)[
            "parameters"
        ],
    )
    classes = {
        name: kinds
        for *kinds, name in (line.split() for line in done.stderr.splitlines() if ".weight" in line)
    }
    assert classes.pop(WPE) == ["Tensor", "Parameter"]
    assert len(classes) > 8
    for name, kinds in classes.items():
        is_trained = trainable == "all" or "lora_" in name
        assert kinds == ["DTensor", "DTensor" if is_trained else "NoneType"], name
    check_equal_losses(Path("one"), Path("two"))
    one, two = (load_file(f"{name}/model.safetensors") for name in ("one", "two"))
    for name in (WPE, "transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=0)
    if trainable == "new":
        assert changed_tensors(source, Path("two")) == {WPE}
        before, after = (
            load_file(folder / "model.safetensors")[WPE] for folder in (source, Path("two"))
        )
        assert torch.equal(before[: NEW // 2], after[: NEW // 2])


@pytest.mark.slow
def test_train_fsdp_killed_resumes_with_any_number_of_processes(source: Path) -> None:
    flags = ("--trainable", "all", "--fsdp", "-o", "out")
    assert launch(2, source, "--trainable", "all", "--fsdp", "-o", "whole").returncode is not None
    for processes in (2, 4, 1):
        assert launch(2, source, *flags, killed=True).returncode != 0
        assert not Path("out").exists()
        assert [path.name for path in Path("out.training/saves").iterdir()] == ["checkpoint-2"]
        resumed = (*flags, "--resume")
        if processes == 1:
            done = invoke("train", source, *FLAGS, *(flag for flag in resumed if flag != "--fsdp"))
        else:
            launch(processes, source, *resumed)
        check_equal_losses(Path("whole"), Path("out"))
        if processes == 2:
            assert pico.tensor_bytes(Path("out")) == pico.tensor_bytes(Path("whole"))
        else:
            whole, out = (load_file(f"{name}/model.safetensors")[WPE] for name in ("whole", "out"))
            torch.testing.assert_close(out, whole, atol=1e-5, rtol=0)
        shutil.rmtree("out")
    assert done.exit_code == 0
