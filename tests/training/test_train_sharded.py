"""Training past one device: float32 copies of parameters, `--fsdp`, resuming on other devices."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend.training.trainable import TrainableParameters
from tests.helpers import pico
from tests.helpers.trainings import (
    NEW,
    TABLES,
    changed_tensors,
    invoke,
    launch,
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
from ctxextend.training.trainer import RunTrainer

on_step_end, on_save = RunTrainer.on_step_end, RunTrainer.on_save

def report(self, args, state, control, **others):
    if state.global_step == state.max_steps and state.is_world_process_zero:
        for name, value in self.run.model.model.named_parameters():
            master = self.run.trainable.masters.get(name)
            print(type(value.data).__name__, type(master).__name__, name, file=sys.stderr)
    on_step_end(self, args, state, control, **others)

def save(self, args, state, control, **others):
    on_save(self, args, state, control, **others)
    if "KILLED" in os.environ:
        os.kill(os.getpid(), 9)

RunTrainer.on_step_end, RunTrainer.on_save = report, save
main()
"""


@pytest.fixture
def source() -> Path:
    return make_resized(Path("source").absolute(), "gpt2")


def to_bfloat16(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = {name: value.bfloat16() for name, value in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    pico.edit_json(folder / "config.json", dtype="bfloat16")


def check_equal_losses(one: Path, other: Path) -> None:
    for line, expected in zip(log_of(other), log_of(one), strict=True):
        assert line == pytest.approx(expected, abs=1e-5)


def launch_worker(
    processes: int, source: object, *flags: object, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Train in several processes; they can fail at exit, after everything is written."""
    Path("worker.py").write_text(WORKER)
    return launch(processes, ["worker.py"], "train", source, *FLAGS, *flags, **variables)


def load_wpe(folder: str | Path) -> torch.Tensor:
    return load_file(Path(folder, "model.safetensors"))[WPE]


@pytest.mark.parametrize("trainable", ["new", "all"])
def test_train_keeps_half_precision_parameters_and_updates_float32_values(
    trainable: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_bfloat16(source)
    dtypes: dict[str, torch.dtype] = {}
    master_dtypes: dict[str, torch.dtype] = {}
    attach = TrainableParameters.attach

    def record(self: TrainableParameters, optimizer: torch.optim.Optimizer) -> None:
        attach(self, optimizer)
        for name, value in self.model.named_parameters():
            dtypes[name] = value.dtype
            master_dtypes[name] = self.masters.get(name, value).dtype

    monkeypatch.setattr(TrainableParameters, "attach", record)
    # A rate so small that the steps would be lost in bfloat16, whose neighbours above 0.5 differ by
    # 0.004 or more.
    flags = ("--trainable", trainable, "--precision", "bf16", "--lr", 1e-3)
    done = train(source, "out", *flags, "--json", steps=12)

    assert set(dtypes.values()) == {torch.bfloat16}
    assert master_dtypes[WPE] == torch.float32
    if trainable == "new":
        assert set(master_dtypes.values()) == {torch.float32, torch.bfloat16}
    else:
        assert set(master_dtypes.values()) == {torch.float32}
    assert json.loads(done.stdout)["precision"] == "bf16"

    before = load_wpe(source).float()
    assert load_wpe("out").dtype == torch.bfloat16
    after = load_wpe("out").float()
    is_large = before.abs() > 0.5
    if trainable == "new":
        is_large[:16] = False
    is_changed = (after != before)[is_large]
    assert is_changed.float().mean() > 0.2
    if trainable == "new":
        assert changed_tensors(source, Path("out")) == {WPE}
        assert torch.equal(after[:16], before[:16])


def test_train_rejects_sharding_that_would_not_shard(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoke("train", source, *FLAGS, "--fsdp")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert "--fsdp shards a model across processes, but there is only one." in done.stderr
    assert "torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp" in shown

    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    done = invoke("train", source, *FLAGS)
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert "DeepSpeed is not supported." in done.stderr
    assert "shard the model with --fsdp." in shown


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["new", "all", "adapters"])
def test_train_fsdp_shards_blocks_and_gives_the_losses_of_one_process(
    trainable: str, source: Path
) -> None:
    trained = ("--lora", 4) if trainable == "adapters" else ("--trainable", trainable)
    one = invoke("train", source, *FLAGS, *trained, "-o", "one", "--json")
    assert one.exit_code == 0
    two = launch_worker(2, source, *trained, "--fsdp", "-o", "two", "--json")
    assert Path("two").exists(), two.stderr
    result = json.loads(two.stdout)
    assert result["sharding"] == "fsdp2"
    assert result["devices"] == 2
    assert result["parameters"] == json.loads(one.stdout)["parameters"]

    classes: dict[str, tuple[str, str]] = {}
    for line in two.stderr.splitlines():
        if ".weight" in line:
            value_class, master_class, name = line.split()
            classes[name] = value_class, master_class
    assert classes.pop(WPE) == ("Tensor", "Parameter")
    assert len(classes) > 8
    for name, (value_class, master_class) in classes.items():
        is_trained = trainable == "all" or "lora_" in name
        assert value_class == "DTensor", name
        assert master_class == ("DTensor" if is_trained else "NoneType"), name

    check_equal_losses(Path("one"), Path("two"))
    weights = load_file("one/model.safetensors")
    sharded_weights = load_file("two/model.safetensors")
    for name in (WPE, "transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        torch.testing.assert_close(weights[name], sharded_weights[name], atol=1e-5, rtol=0)
    if trainable == "new":
        assert changed_tensors(source, Path("two")) == {WPE}
        before = load_wpe(source)
        after = load_wpe("two")
        assert torch.equal(before[: NEW // 2], after[: NEW // 2])


@pytest.mark.slow
def test_train_fsdp_killed_resumes_with_any_number_of_processes(source: Path) -> None:
    flags = ("--trainable", "all", "--fsdp")
    whole = launch_worker(2, source, *flags, "-o", "whole")
    assert whole.returncode is not None

    for processes in (2, 4, 1):
        killed = launch_worker(2, source, *flags, "-o", "out", KILLED="1")
        assert killed.returncode != 0
        assert not Path("out").exists()
        saves = [path.name for path in Path("out.training/saves").iterdir()]
        assert saves == ["checkpoint-2"]

        if processes == 1:
            done = invoke("train", source, *FLAGS, "--trainable", "all", "-o", "out", "--resume")
        else:
            launch_worker(processes, source, *flags, "-o", "out", "--resume")
        check_equal_losses(Path("whole"), Path("out"))
        if processes == 2:
            assert pico.tensor_bytes(Path("out")) == pico.tensor_bytes(Path("whole"))
        else:
            torch.testing.assert_close(load_wpe("out"), load_wpe("whole"), atol=1e-5, rtol=0)
        shutil.rmtree("out")
    assert done.exit_code == 0
