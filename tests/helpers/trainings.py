"""Small checkpoints and text for training tests, and functions that inspect the results."""

import contextlib
import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from typer.main import get_command
from typer.testing import CliRunner, Result

from ctxextend import resize
from ctxextend.cli.app import build_app
from ctxextend.training.run import TrainingRun
from ctxextend.training.trainer import RunTrainer
from tests.helpers import pico
from tests.helpers.word_tokenizer import add_tokenizer, text_of

OLD, NEW = 16, 32
TABLES = {"gpt2": "transformer.wpe.weight", "bert": "bert.embeddings.position_embeddings.weight"}


def invoke(*arguments: object, columns: int | None = None) -> Result:
    """Run a command, perhaps as on a terminal of some columns; a bug's traceback is raised."""
    environment = {} if columns is None else {"COLUMNS": str(columns)}
    done = CliRunner().invoke(build_app(), [*map(str, arguments)], env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def command_flags() -> dict[str, list[str]]:
    """Return the flags of each command, by its name."""
    group: Any = get_command(build_app())
    flags = dict[str, list[str]]()
    for name, command in group.commands.items():
        flags[name] = []
        for parameter in command.params:
            flags[name] += [option for option in parameter.opts if option.startswith("--")]
    return flags


def succeed(*arguments: object) -> Result:
    """Run a command, and check that it succeeds."""
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return done


def unwrapped(text: str) -> str:
    """Return text on one line, as if the terminal were wide."""
    return " ".join(text.split())


def train(source: object, output: str, *flags: object, steps: int = 4) -> Result:
    """Train on book.txt with a learning rate that changes every row, and save the last step."""
    options = (
        "--data",
        "book.txt",
        "--steps",
        steps,
        "--batch-size",
        4,
        "--lr",
        0.01,
        "--save",
        "last",
        "-o",
        output,
    )
    done = invoke("train", source, *options, *flags)
    assert done.exit_code == 0, done.stderr
    return done


def write_book(words: int = 1200, seed: int = 0) -> None:
    """Write book.txt, a text whose next word is easy to learn to predict."""
    draw = random.Random(seed)
    numbers = [0]
    while len(numbers) < words:
        numbers.append((numbers[-1] * 2 + draw.randrange(2)) % 27)
    Path("book.txt").write_text(text_of(numbers))


def files_here() -> list[str]:
    """Return the names in the working folder, sorted."""
    return sorted(path.name for path in Path.cwd().iterdir())


def make_source(folder: Path, model_type: str, **options: Any) -> Path:
    """Save a model of 16 positions with a tokenizer."""
    pico.make(folder, model_type, initializer_range=0.5, **options)
    return add_tokenizer(folder, special_tokens=model_type != "gpt2")


def make_resized(folder: Path, model_type: str, **options: Any) -> Path:
    """Save such a model as FOLDER-old, and resize it to 32 positions into `folder`."""
    source = make_source(folder.with_name(f"{folder.name}-old"), model_type, **options)
    return resize(source, to=NEW, output=folder).output


def table_of(folder: Path, model_type: str = "gpt2") -> Any:
    """Return the position table of a checkpoint with one weights file, float32."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.get_tensor(TABLES[model_type]).float().numpy()


def equal_rows(one: Path, other: Path) -> list[bool]:
    """Return for each row of two position tables of GPT-2 whether its bytes are equal."""
    pairs = zip(table_of(one), table_of(other), strict=True)
    return [before.tobytes() == after.tobytes() for before, after in pairs]


def changed_tensors(one: Path, other: Path) -> set[str]:
    """Return the names of tensors that differ, or that are in only one checkpoint."""
    before, after = pico.tensor_bytes(one), pico.tensor_bytes(other)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def log_of(folder: Path) -> list[dict[str, float]]:
    """Return the log of a training run, without times."""
    lines = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    kept = (
        "step",
        "loss",
        "eval_loss",
        "grad_norm",
        "learning_rate",
    )
    return [
        {name: line[name] for name in kept if name in line}
        for line in lines
        if "train_runtime" not in line
    ]


def fix_steps(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let tuned tables take so many steps, which else depend on the clock."""

    def plan_steps(run: TrainingRun, deadline: float) -> None:
        run.settings = replace(run.settings, steps=count, eval_every=count)
        run.planned_steps = count

    monkeypatch.setattr("ctxextend.training.tune.plan_steps", plan_steps)


def make_encoder(folder: Path) -> Path:
    pico.make(folder, "bert", base=True, initializer_range=0.5)
    root = pico.nest_in_module(add_tokenizer(folder, special_tokens=True), folder.with_name("root"))
    (root / "1_Pooling").mkdir()
    pico.edit_json(
        root / "1_Pooling" / "config.json",
        word_embedding_dimension=8,
        pooling_mode_mean_tokens=True,
    )
    return root


@contextlib.contextmanager
def ctrl_c_after(step: int) -> Iterator[None]:
    """Send Ctrl-C after a step of training runs, before that is saved."""
    on_log = RunTrainer.on_log

    def interrupt(self: RunTrainer, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_log(self, args, state, control, **others)
        if state.global_step == step and "loss" in others.get("logs", {}):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunTrainer, "on_log", interrupt)
        yield


@contextlib.contextmanager
def diverging_loss(at: int = 3) -> Iterator[None]:
    """Make the loss of training runs rise sharply at a step."""
    on_step_end = RunTrainer.on_step_end

    def diverge(self: RunTrainer, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_step_end(self, args, state, control, **others)
        if state.global_step == at:
            for value in self.run.trainable.parameters.values():
                value.detach().mul_(-5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunTrainer, "on_step_end", diverge)
        yield
