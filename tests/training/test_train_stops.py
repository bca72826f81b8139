"""Interrupted, diverging and resumed training; tests/faults has killed runs and full disks."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend.checkpoint.atomic_output import locked
from ctxextend.errors import TrainingInterrupted
from ctxextend.training.start import train as train_in_python
from ctxextend.training.trainer import RunTrainer
from tests.helpers.trainings import (
    ctrl_c_after,
    diverging_loss,
    invoke,
    log_of,
    make_resized,
    train,
    write_book,
)

pytestmark = pytest.mark.usefixtures("book")
FLAGS = (
    "--batch-size",
    4,
    "--lr",
    0.01,
    "--trainable",
    "new",
)
STEPS = 5


@pytest.fixture(scope="module")
def uninterrupted(gpt2: Path) -> Path:
    """The output of a run that is not interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(gpt2.parent)
        write_book()
        train(gpt2, "uninterrupted", *FLAGS, steps=STEPS)
    return gpt2.parent / "uninterrupted"


def start_run(source: Path, *flags: object, steps: int = STEPS) -> Any:
    return invoke(
        "train", source, "--data", "book.txt", "--steps", steps, *FLAGS, "-o", "out", *flags
    )


def start_and_interrupt(source: Path, *flags: object) -> Any:
    """Start a run and send Ctrl-C after its second step, before that is saved."""
    with ctrl_c_after(step=2):
        done = start_run(source, *flags)
    assert done.exit_code == 130
    return done


def test_train_saves_at_ctrl_c_and_resumes_with_identical_output(
    gpt2: Path, uninterrupted: Path
) -> None:
    done = start_and_interrupt(gpt2)
    assert done.stdout == ""
    message = (
        "Stopped after step 2, saved in out.training. Resume with the same command and --resume."
    )
    assert done.stderr.splitlines()[-1] == message
    assert not Path("out").exists()
    for flags, message in (
        (
            (),
            "out.training contains an interrupted run.\nResume it with --resume, or restart with "
            "--force.",
        ),
        (
            ("--resume", "--seed", 7),
            "a different run: train.seed was 0 and is 7.\nResume it with the same settings",
        ),
        (("--resume", "--steps", 1), "out.training contains a run at step 2, but --steps is 1."),
    ):
        refused = start_run(gpt2, *flags)
        assert refused.exit_code == 1
        assert message in refused.stderr
    assert start_run(gpt2, "--resume").exit_code == 0
    assert log_of(Path("out")) == log_of(uninterrupted)
    assert (
        Path("out/model.safetensors").read_bytes()
        == (uninterrupted / "model.safetensors").read_bytes()
    )
    assert not Path("out.training").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--lora", 2), ("--precision", "bf16", "--trainable", "all")])
def test_train_resumes_adapters_and_half_precision_with_identical_output(
    flags: tuple[object, ...],
) -> None:
    source = make_resized(Path("source").absolute(), "gpt2", dtype=torch.bfloat16)
    flags = ("--lr", 0.01, *flags)
    train(source, "whole", *flags, steps=STEPS)
    with ctrl_c_after(step=2), pytest.raises(AssertionError, match="saved in out.training"):
        train(source, "out", *flags, steps=STEPS)
    train(source, "out", *flags, "--resume", steps=STEPS)
    assert log_of(Path("out")) == log_of(Path("whole"))
    weights = Path("out/model.safetensors").read_bytes()
    assert weights == Path("whole/model.safetensors").read_bytes()


def test_train_rejects_resuming_if_other_weights_of_the_source_changed(gpt2: Path) -> None:
    source = Path(shutil.copytree(gpt2, "source"))
    start_and_interrupt(source, "--trainable", "positions")
    weights = load_file(source / "model.safetensors")
    weights["transformer.ln_f.weight"][0] += 1
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    refused = start_run(source, "--resume", "--trainable", "positions")
    assert refused.exit_code == 1
    assert "contains a different run: fingerprint of all weights was" in " ".join(
        refused.stderr.split()
    )
    assert start_run(source, "--force", "--trainable", "positions").exit_code == 0


def test_train_resumed_saves_the_best_step_from_before_the_interruption(gpt2: Path) -> None:
    flags = ("--lr", 0.1, "--eval-every", 1, "--json", "--trainable", "all")
    with diverging_loss(at=3):
        start_and_interrupt(gpt2, *flags)
        resumed = json.loads(start_run(gpt2, "--resume", *flags).stdout)
        assert 0 < resumed["best_step"] == resumed["saved_step"] < 3
        weights, log = Path("out/model.safetensors").read_bytes(), log_of(Path("out"))
        assert start_run(gpt2, "--force", *flags).exit_code == 0
    assert (Path("out/model.safetensors").read_bytes(), log_of(Path("out"))) == (weights, log)


def test_train_in_python_accepts_paths_and_reports_the_saved_state(gpt2: Path) -> None:
    def progress(advance: int, total: int, label: str = "") -> None:
        assert re.fullmatch(r"step 1/3, loss [\d.]+, held-out [\d.]+", label)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(
        TrainingInterrupted, match=r"interrupted after step 1; state saved in out\.training"
    ) as caught:
        base = gpt2.with_name("long-old")
        train_in_python(
            gpt2, Path("book.txt"), 3, batch_size=4, output="out", progress=progress, base=base
        )
    assert (caught.value.signal, caught.value.step) == (signal.SIGINT, 1)
    assert Path("out.training/saves/checkpoint-1").is_dir()


def test_train_resumes_with_more_steps_than_planned(gpt2: Path) -> None:
    start_and_interrupt(gpt2)
    done = start_run(gpt2, "--resume", steps=8)
    assert done.exit_code == 0
    assert f"Warning: The run was planned for {STEPS} steps and ended at 8." in done.stderr
    assert f"followed a {STEPS}-step schedule: ctxextend.yaml does not reproduce it." in done.stderr
    assert f"\n    planned_steps: {STEPS}\n" in Path("out/ctxextend.yaml").read_text()
    assert [line["step"] for line in log_of(Path("out")) if "loss" in line] == [*range(1, 9)]


def test_train_rejects_a_run_folder_that_another_run_uses(gpt2: Path) -> None:
    Path("out.training").mkdir()
    with locked(Path("out.training")):
        done = start_run(gpt2)
    assert done.exit_code == 1
    assert "Another run is using out.training." in done.stderr


def test_train_leaves_no_files_if_it_fails_before_saving(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunTrainer, "training_step", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        invoke("train", gpt2, "--data", "book.txt", "--steps", 2, "-o", "some/where/out")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["book.txt"]


def test_train_stops_at_a_loss_that_is_not_finite(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_step_end = RunTrainer.on_step_end

    def diverge(self: RunTrainer, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_step_end(self, args, state, control, **others)
        if state.global_step == 3:
            with torch.no_grad():
                self.run.trainable.parameters["transformer.wpe.weight"][20:] = float("nan")

    monkeypatch.setattr(RunTrainer, "on_step_end", diverge)
    done = start_run(gpt2)
    assert done.exit_code == 1
    assert "The loss became NaN or infinite at step 4 of 5." in done.stderr
    assert "Restart with --force and an --lr below 0.01." in done.stderr
    assert not Path("out").exists()


def test_train_out_of_memory_tries_smaller_micro_batches_and_then_gradient_checkpointing(
    gpt2: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RunTrainer.training_step
    tried = list[tuple[int, bool]]()

    def run_out_of_memory(self: RunTrainer, model: Any, inputs: Any, *others: Any) -> torch.Tensor:
        size = len(inputs["input_ids"])
        is_checkpointed = model.model.transformer.h[0].gradient_checkpointing
        tried.append((size, is_checkpointed))
        if not is_checkpointed:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return step(self, model, inputs, *others)

    monkeypatch.setattr(RunTrainer, "training_step", run_out_of_memory)
    done = start_run(gpt2)
    assert done.exit_code == 0, done.stderr
    assert tried[:4] == [(4, False), (2, False), (1, False), (1, True)]
    assert "Out of memory with micro-batch 4: retrying with less memory." in done.stderr
    for line, other in zip(log_of(Path("out")), log_of(uninterrupted), strict=True):
        assert line == pytest.approx(other, rel=1e-4)
    assert "per_device_batch_size: 1" in Path("out/ctxextend.yaml").read_text()


def test_train_reports_that_it_is_out_of_memory(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunTrainer, "training_step", Mock(side_effect=MemoryError))
    done = start_run(gpt2)
    assert done.exit_code == 1
    assert "Out of memory with micro-batch 1 and sequences of 32 tokens." in done.stderr
    assert not Path("out.training").exists()
