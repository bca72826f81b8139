"""A training that is stopped or spoilt, and goes on; killed and out of space it is in tests/faults."""

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

from ctxextend.checkpoints.atomic_output import locked
from ctxextend.training.train import train as train_in_python
from ctxextend.training.trainer import RunCallback, RunTrainer
from ctxextend.training.training_run import TrainingInterrupted
from tests.trainings import invoke, log_of, spoilt, train, write_book

pytestmark = pytest.mark.usefixtures("book")
FLAGS = ("--batch-size", 4, "--lr", 0.01, "--save-every", 1, "--trainable", "new", "--weight-decay", 0.1)
STEPS = 5


@pytest.fixture(scope="module")
def unbroken(gpt2: Path) -> Path:
    """What it becomes in a run that nothing stops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(gpt2.parent)
        write_book()
        train(gpt2, "unbroken", *FLAGS, steps=STEPS)
    return gpt2.parent / "unbroken"


def begin(source: Path, *flags: object, steps: int = STEPS) -> Any:
    return invoke("train", source, "--data", "book.txt", "--steps", steps, *FLAGS, "-o", "out", *flags)


def begin_and_stop(source: Path, *flags: object) -> Any:
    """Begin a training to which Ctrl-C comes when it has taken its second step, before that is saved."""
    on_log = RunCallback.on_log

    def acting(self: RunCallback, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_log(self, args, state, control, **others)
        if state.global_step == 2 and "loss" in others.get("logs", {}):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunCallback, "on_log", acting)
        done = begin(source, *flags)
    assert done.exit_code == 130
    return done


def test_train_saves_at_ctrl_c_and_goes_on_as_if_never_stopped(gpt2: Path, unbroken: Path) -> None:
    done = begin_and_stop(gpt2, "--save-every", 100)
    assert done.stdout == ""
    said = "Error: Stopped after step 3, saved in out.training. Resume with the same command and --resume."
    assert done.stderr.splitlines()[-1] == said
    assert not Path("out").exists()
    for flags, said in (
        ((), "holds the saves of a run that was stopped.\nGo on with --resume, or begin anew with --force."),
        (("--resume", "--seed", 7), "train.seed was 0 and is 7"),
        (("--resume", "--steps", 2), "holds the save of step 3, and --steps asks for 2"),
    ):
        refused = begin(gpt2, *flags)
        assert refused.exit_code == 1
        assert said in refused.stderr
    assert begin(gpt2, "--resume", "--per-device-batch-size", 4).exit_code == 0
    assert log_of(Path("out")) == log_of(unbroken)
    assert Path("out/model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    assert not Path("out.training").exists()


def test_train_does_not_resume_on_a_source_whose_other_weights_changed(gpt2: Path) -> None:
    source = Path(shutil.copytree(gpt2, "source"))
    begin_and_stop(source, "--trainable", "positions")
    weights = load_file(source / "model.safetensors")
    weights["transformer.ln_f.weight"][0] += 1
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    refused = begin(source, "--resume", "--trainable", "positions")
    assert refused.exit_code == 1
    assert "holds the saves of another run: fingerprint of all weights was" in " ".join(refused.stderr.split())
    assert begin(source, "--force", "--trainable", "positions").exit_code == 0


def test_train_with_resume_says_that_there_is_nothing_to_resume(gpt2: Path) -> None:
    done = train(gpt2, "new", "--resume", "--json", steps=1)
    assert "There is nothing to resume: the training begins at step 0." in json.loads(done.stdout)["notes"]
    made = invoke("resize", gpt2, "--to", 64, "--train", "book.txt", "--steps", 1, "-o", "longer")
    assert (made.exit_code, "nothing to resume" in made.stderr) == (0, False)


def test_train_that_was_stopped_writes_its_best_step_from_before(gpt2: Path) -> None:
    flags = ("--lr", 0.1, "--eval-every", 1, "--json", "--trainable", "all")
    with spoilt(at=3):
        begin_and_stop(gpt2, *flags)
        assert Path("out.training/saves/checkpoint-2/best.safetensors").exists()
        resumed = json.loads(begin(gpt2, "--resume", *flags).stdout)
        assert 0 < resumed["best_step"] == resumed["saved_step"] < 3
        weights, log = Path("out/model.safetensors").read_bytes(), log_of(Path("out"))
        assert begin(gpt2, "--force", *flags).exit_code == 0
    assert (Path("out/model.safetensors").read_bytes(), log_of(Path("out"))) == (weights, log)


def test_train_in_python_takes_paths_and_says_what_is_saved(gpt2: Path) -> None:
    shutil.copy("book.txt", "held-out.txt")

    def progress(advance: int, total: int, label: str = "") -> None:
        assert re.fullmatch(r"step 1/3, loss [\d.]+, held-out [\d.]+", label)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match=r"stopped after step 1, which is saved in out\.training") as caught:
        paths: dict[str, Any] = {"eval_data": [Path("held-out.txt")], "base": gpt2.with_name("long-old")}
        train_in_python(gpt2, Path("book.txt"), 3, batch_size=4, output="out", progress=progress, **paths)
    assert (caught.value.signal, caught.value.step) == (signal.SIGINT, 1)
    assert Path("out.training/saves/checkpoint-1").is_dir()


def test_train_goes_on_with_more_steps_than_were_asked_for(gpt2: Path) -> None:
    shutil.copy("book.txt", "held-out.txt")
    begin_and_stop(gpt2, "--eval-data", "held-out.txt")
    done = begin(gpt2, "--resume", "--eval-data", "held-out.txt", "--json", steps=8)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["held_out_sequences"] == 2 * STEPS
    assert f"Warning: The run was planned for {STEPS} steps and ended at 8." in done.stderr
    assert f"\n    planned_steps: {STEPS}\n" in Path("out/ctxextend.yaml").read_text()
    assert [line["step"] for line in log_of(Path("out")) if "loss" in line] == [*range(1, 9)]


def test_train_refuses_to_work_where_another_run_does(gpt2: Path) -> None:
    Path("out.training").mkdir()
    with locked(Path("out.training")):
        done = begin(gpt2)
    assert done.exit_code == 1
    assert "Another run works in out.training just now." in done.stderr


def test_train_leaves_nothing_where_it_fails_before_a_save(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunTrainer, "training_step", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        invoke("train", gpt2, "--data", "book.txt", "--steps", 2, "-o", "some/where/out")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["book.txt"]


def test_train_keeps_the_save_before_the_one_that_was_spoilt(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = RunCallback.on_step_end

    def spoilt(self: RunCallback, args: Any, state: Any, control: Any, **others: Any) -> None:
        stepped(self, args, state, control, **others)
        if state.global_step == 3:
            with torch.no_grad():
                self.setup.trainable.parameters["transformer.wpe.weight"][20:] = float("nan")

    monkeypatch.setattr(RunCallback, "on_step_end", spoilt)
    done = begin(gpt2)
    assert done.exit_code == 1
    said = " ".join(done.stderr.split())
    assert "no finite number at step 4 of 5. What was learned until step 2 is saved" in said
    assert "the same command with --resume --steps 2" in said
    assert [path.name for path in Path("out.training/saves").iterdir()] == ["checkpoint-2"]
    done = begin(gpt2, "--resume", steps=2)
    assert done.exit_code == 0, done.stderr
    assert [line["step"] for line in log_of(Path("out")) if "loss" in line] == [1, 2]


def test_train_that_was_spoilt_before_any_save_leaves_nothing(gpt2: Path) -> None:
    done = begin(gpt2, "--lr", "1e30", "--trainable", "all")
    assert done.exit_code == 1
    assert "no finite number at step 2 of 5. Nothing was saved." in done.stderr
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["book.txt"]


def test_train_tries_smaller_per_device_batch_sizees_and_then_checkpointing_where_memory_is_short(
    gpt2: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, tried = RunTrainer.training_step, list[tuple[int, bool]]()

    def short(self: RunTrainer, model: Any, inputs: Any, *others: Any) -> torch.Tensor:
        size, is_checkpointed = len(inputs["input_ids"]), model.model.transformer.h[0].gradient_checkpointing
        tried.append((size, is_checkpointed))
        if not is_checkpointed:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return step(self, model, inputs, *others)

    monkeypatch.setattr(RunTrainer, "training_step", short)
    done = begin(gpt2)
    assert done.exit_code == 0, done.stderr
    assert tried[:4] == [(4, False), (2, False), (1, False), (1, True)]
    assert "The memory does not hold 4 sequences at once; less is tried." in done.stderr
    for line, other in zip(log_of(Path("out")), log_of(unbroken), strict=True):
        assert line == pytest.approx(other, rel=1e-4)
    assert "per_device_batch_size: 1" in Path("out/ctxextend.yaml").read_text()


def test_train_says_that_memory_does_not_suffice(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunTrainer, "training_step", Mock(side_effect=MemoryError))
    done = begin(gpt2, "--per-device-batch-size", 4)
    assert done.exit_code == 1
    assert "The memory did not hold 4 sequences of 32 tokens at once." in done.stderr
    assert not Path("out.training").exists()
