"""Ctrl-C and SIGTERM print one line: what was kept, and how to go on."""

import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ctxextend.cli.app import _handle_signal, build_app
from ctxextend.training.trainer import RunTrainer
from tests.helpers.trainings import fix_steps

NOTHING = "Stopped: nothing was written.\n"


@pytest.fixture(autouse=True)
def book() -> str:
    Path("book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 800)
    return "book.txt"


def run(command: str) -> Result:
    return CliRunner().invoke(build_app(), command.split())


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("ctxextend.checkpoint.writing.write_layout", "resize tiny-gpt2 --to 512"),
        ("ctxextend.training.train.TrainingRun", "train tiny-gpt2 --steps 2 --data book.txt"),
        ("ctxextend.inspection.inspect.inspect_model", "inspect tiny-gpt2"),
        ("ctxextend.lab.evaluate.read_unseen", "evaluate tiny-gpt2 --data book.txt"),
    ],
)
def test_commands_say_that_nothing_was_kept(
    place: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(place, monkeypatch)
    done = run(command)
    assert done.exit_code == 130
    assert done.stdout == ""
    assert done.stderr == NOTHING
    assert [path.name for path in Path().iterdir()] == ["book.txt"]


def interrupt_at(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C where a function is called, in every module that has imported it."""
    module_name, _, name = place.rpartition(".")
    __import__(module_name)
    function = getattr(sys.modules[module_name], name)
    for module in list(sys.modules.values()):
        is_ours = getattr(module, "__name__", "").startswith("ctxextend")
        if is_ours and getattr(module, name, None) is function:
            monkeypatch.setattr(module, name, interrupt)


def test_resize_names_an_output_that_was_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxextend.cli.resize.finish", interrupt)
    done = run("resize tiny-gpt2 --to 512 -o a/longer")
    assert done.exit_code == 130
    assert done.stderr == f"Stopped: {Path('a/longer')} is complete.\n"


def test_a_later_command_does_not_name_earlier_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("resize tiny-gpt2 --to 512 -o longer").exit_code == 0
    monkeypatch.setattr("ctxextend.cli.resize.finish", interrupt)
    interrupt_at("ctxextend.plan.make_plan", monkeypatch)
    assert run("resize tiny-gpt2 --to 256").stderr == NOTHING


@pytest.mark.parametrize("is_killed_at_once", [False, True])
def test_training_names_the_saved_step(
    is_killed_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_step = RunTrainer.on_step_end

    def stop(self: RunTrainer, *arguments: object, **others: object) -> object:
        step = self.run.folder.step
        if step and is_killed_at_once:
            raise KeyboardInterrupt
        if step:
            signal.raise_signal(signal.SIGINT)
        return end_step(self, *arguments, **others)

    monkeypatch.setattr(RunTrainer, "on_step_end", stop)
    done = run("train tiny-gpt2 --data book.txt --steps 30 -o out")
    assert done.exit_code == 130
    step = 3 if is_killed_at_once else 4  # a tenth of the steps, and the one after it
    saved = f"Stopped after step {step}, saved in out.training."
    how = "Resume with the same command and --resume."
    assert done.stderr.splitlines()[-1] == f"{saved} {how}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_resize_stopped_while_tuning_writes_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_step = RunTrainer.on_step_end

    def stop(self: RunTrainer, *arguments: object, **others: object) -> object:
        signal.raise_signal(number)
        return end_step(self, *arguments, **others)

    fix_steps(monkeypatch, 3)
    monkeypatch.setattr(RunTrainer, "on_step_end", stop)
    before = signal.signal(signal.SIGTERM, _handle_signal)
    try:
        done = run("resize tiny-gpt2 --to 160 --tune book.txt")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 128 + number
    assert done.stdout == ""
    assert done.stderr.endswith(NOTHING)
    assert [path.name for path in Path().iterdir()] == ["book.txt"]


# A signal during a destructor, whose exceptions Python prints and ignores.
