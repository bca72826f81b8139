"""`train --epochs`, and how much of a text needs the new positions."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxextend import ResizeError, resize
from ctxextend import train as train_in_python
from ctxextend.evaluation.eval_model import CAUSAL
from ctxextend.recipe import CheckpointRef, Recipe, Train
from ctxextend.training.start import plan_recipe_training
from ctxextend.training.train_data import SequenceSettings, Text, TrainingSequences
from ctxextend.training.trainer import RunCallback
from tests.helpers import pico, rotary_models
from tests.helpers.json_schemas import check
from tests.helpers.trainings import (
    NEW,
    OLD,
    invoke,
    make_encoder,
    make_resized,
    make_source,
    succeed,
    unwrapped,
)
from tests.helpers.word_tokenizer import text_of

pytestmark = pytest.mark.usefixtures("book")
FLAGS = ("--batch-size", 4, "--lr", 0.01, "--save", "last")


def plan(source: object, *data: str, **settings: Any) -> Any:
    train = Train(data or ("book.txt",), **settings)
    return plan_recipe_training(Recipe(CheckpointRef(str(source)), train=train))


def run(source: object, output: str, *flags: object) -> Any:
    return succeed("train", source, "--data", "book.txt", *FLAGS, "-o", output, *flags)


# What an epoch is


@pytest.mark.parametrize("spans", [[[0, 100]], [[0, 29], [40, 62], [70, 81]]])
def test_epoch_reads_no_token_twice(spans: list[list[int]]) -> None:
    text = Text(tokens=np.arange(100, dtype=np.int32), spans=np.array(spans))
    settings = SequenceSettings((), (), length=10, usable_positions=10, kind=CAUSAL)
    size = TrainingSequences(text, settings, 0).epoch_size
    sequences = TrainingSequences(text, settings, 2 * size)
    for epoch in range(2):
        read = list[int]()
        for number in range(size):
            read += sequences[epoch * size + number]["input_ids"].tolist()
        assert len(read) == len(set(read))
        # Less than two sequences of a part are left out, so that they start anywhere.
        assert len(read) > sum(end - start - 20 for start, end in spans)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("epochs", [0.5, 1, 2.5])
def test_epochs_are_as_many_steps_as_read_all_sequences(
    epochs: float, window: int | None, gpt2: Path
) -> None:
    one = plan(gpt2, epochs=1, batch_size=1, window=window)
    found = plan(gpt2, epochs=epochs, batch_size=4, window=window)
    assert found.steps == math.ceil(epochs * one.steps / 4)
    assert one.steps * (window or NEW) <= 1200  # tokens of the book
    assert one.steps * (window or NEW) > 0.65 * 1200


def test_epochs_train_as_the_same_steps_do(gpt2: Path) -> None:
    steps = plan(gpt2, epochs=1.5, batch_size=4).steps
    done = run(gpt2, "epochs", "--epochs", 1.5)
    run(gpt2, "steps", "--steps", steps)
    weights = Path("epochs/model.safetensors").read_bytes()
    assert weights == Path("steps/model.safetensors").read_bytes()
    assert f"{steps} steps (1.5 epochs) of 4 sequences of {NEW} tokens" in done.stderr
    card = unwrapped(Path("epochs/README.md").read_text())
    assert f"{steps} steps (1.5 epochs) of 4 sequences" in card


def test_recipe_of_epochs_states_the_steps_and_reproduces_the_run(gpt2: Path) -> None:
    found = run(gpt2, "first", "--epochs", 0.5, "--json")
    steps = json.loads(found.stdout)["steps"]
    recipe = pico.recipe_of("first")
    assert recipe["train"]["epochs"] == 0.5
    assert "steps" not in recipe["train"]
    assert recipe["provenance"]["trained"]["steps"] == steps
    succeed("run", "first/ctxextend.yaml", "--output", "again")
    for name in ("model.safetensors", "ctxextend.yaml"):
        assert Path("first", name).read_bytes() == Path("again", name).read_bytes()


def test_epochs_read_the_whole_text(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxextend.training.training_text.MIN_READ", 100)
    read_by_steps = plan(gpt2, steps=1, batch_size=1).long_context.tokens
    read_by_epochs = plan(gpt2, epochs=0.1, batch_size=1).long_context.tokens
    assert read_by_steps < read_by_epochs
    assert plan(gpt2, epochs=1, tokens=400).steps < plan(gpt2, epochs=1).steps


def test_epochs_in_python_and_in_recipes(gpt2: Path) -> None:
    result = train_in_python(gpt2, "book.txt", epochs=0.2, batch_size=4, output="python")
    text = f"source: {gpt2}\ntrain:\n  data: book.txt\n  epochs: 0.2\n  batch_size: 4\n"
    Path("recipe.yaml").write_text(text)
    succeed("run", "recipe.yaml", "--output", "recipe")
    assert pico.recipe_of("recipe")["provenance"]["trained"]["steps"] == result.steps


def test_recipe_reports_epochs_of_another_type_once() -> None:
    Path("recipe.yaml").write_text("source: tiny-gpt2\ntrain: {data: book.txt, epochs: many}\n")
    done = invoke("run", "recipe.yaml")
    assert "train.epochs must be a number, got a string" in done.stderr
    assert "Neither" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Neither --steps nor --epochs is given"),
        ({"steps": 1, "epochs": 1.0}, "--steps cannot be used with --epochs"),
        ({"epochs": 0.0}, "--epochs must be positive, got 0"),
        ({"epochs": math.inf}, "--epochs must be positive, got inf"),
        ({"epochs": 1e9}, "--epochs must be at most 1,000,000, got 1e+09"),
    ],
)
def test_train_takes_either_steps_or_epochs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ResizeError) as caught:
        Train(("book.txt",), **settings)
    assert message in caught.value.message
    flags = [f"--{name}={value}" for name, value in settings.items()]
    done = invoke("train", "tiny-gpt2", "--data", "book.txt", *flags)
    assert done.exit_code == 2
    assert message in done.stderr


# Pairs


def write_pairs(positives: int, anchors: int) -> None:
    """Write pairs.jsonl, with several anchors for each positive."""
    lines = list[str]()
    for number in range(positives):
        for anchor in range(anchors):
            positive = text_of([number % 27, number // 27, 5])
            pair = {"anchor": text_of([anchor, 1, 2]), "positive": positive}
            lines.append(json.dumps(pair))
    Path("pairs.jsonl").write_text("\n".join(lines))


def test_epochs_of_pairs_read_each_positive_once(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "encoder")
    write_pairs(positives=40, anchors=2)
    settings = {"contrastive": "pairs", "batch_size": 8, "distill": 0.0}
    # Of 40 positives, two to four are held out, and epochs consist of whole batches.
    assert plan(encoder, "pairs.jsonl", epochs=1, **settings).steps == 4
    assert plan(encoder, "pairs.jsonl", epochs=2.5, **settings).steps == 10
    flags = ("--pairs", "pairs.jsonl", "--batch-size", 8, "--distill", 0, "-o", "out", "--json")
    done = succeed("train", encoder, "--epochs", 1, *flags)
    assert json.loads(done.stdout)["steps"] == 4


def test_epochs_of_passages_read_each_document_once(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "encoder")
    documents = [json.dumps({"text": text_of([number] * 40)}) for number in range(20)]
    Path("documents.jsonl").write_text("\n".join(documents))
    settings = {"contrastive": "passages", "batch_size": 4, "distill": 0.0}
    found = plan(encoder, "documents.jsonl", epochs=1, **settings)
    assert 3 <= found.steps <= 10  # long documents are cut into pieces
    assert found.long_context is None


# Resume


def interrupt(source: Path, *flags: object) -> None:
    """Start a run of epochs, and send Ctrl-C after its second step."""
    on_log = RunCallback.on_log

    def stop(self: RunCallback, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_log(self, args, state, control, **others)
        if state.global_step == 2 and "loss" in others.get("logs", {}):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunCallback, "on_log", stop)
        done = invoke(
            "train", source, "--data", "book.txt", *FLAGS, "--epochs", 1, "-o", "out", *flags
        )
    assert done.exit_code == 130


def resume(source: Path, *flags: object) -> Any:
    return invoke("train", source, "--data", "book.txt", *FLAGS, "-o", "out", "--resume", *flags)


def test_epochs_are_resumed_with_identical_output(gpt2: Path) -> None:
    run(gpt2, "whole", "--epochs", 1)
    interrupt(gpt2)
    steps = json.loads(Path("out.training/run.json").read_text())["planned_steps"]
    assert steps == plan(gpt2, epochs=1, batch_size=4).steps
    assert "train.epochs was 1.0 and is not set" in resume(gpt2, "--steps", steps).stderr
    refused = resume(gpt2, "--epochs", 0.1)
    assert refused.exit_code == 1
    assert "out.training contains a run at step 2, but --epochs 0.1 has 1 step." in refused.stderr
    assert resume(gpt2, "--epochs", 1).exit_code == 0
    weights = Path("out/model.safetensors").read_bytes()
    assert weights == Path("whole/model.safetensors").read_bytes()


def test_epochs_are_resumed_with_more_epochs(gpt2: Path) -> None:
    interrupt(gpt2)
    planned = plan(gpt2, epochs=1, batch_size=4).steps
    done = resume(gpt2, "--epochs", 1.5, "--json")
    assert done.exit_code == 0, done.stderr
    (warning,) = (text for text in json.loads(done.stdout)["warnings"] if "planned for" in text)
    assert f"planned for {planned} steps" in warning
    assert pico.recipe_of("out")["provenance"]["trained"]["planned_steps"] == planned


# How much of the text needs the new positions


@pytest.fixture
def separating(tmp_path: Path) -> Path:
    """A GPT-2 resized from 16 to 32 positions, whose tokenizer separates documents."""
    source = make_source(tmp_path / "short", "gpt2")
    pico.edit_json(source / "tokenizer_config.json", eos_token="[SEP]")
    return resize(source, to=NEW, output=tmp_path / "separating").output


def write_documents(lengths: list[int]) -> None:
    """Write documents.jsonl, with a document of each number of words."""
    documents = list[str]()
    for number, words in enumerate(lengths):
        documents.append(json.dumps({"text": text_of([number % 27] * words)}))
    Path("documents.jsonl").write_text("\n".join(documents))


def test_dry_run_counts_tokens_with_a_long_context(separating: Path) -> None:
    found = plan(separating, steps=1).long_context
    # The book is one document, and each sequence of 32 tokens has 16 at new positions.
    assert found.base_length == OLD
    assert found.long_tokens * 2 == found.tokens
    assert not any("teaches" in text for text in plan(separating, steps=1).warnings)
    done = succeed("train", separating, "--data", "book.txt", "--epochs", 1, "--dry-run")
    text = (
        f"context     {found.long_tokens:,} of {found.tokens:,} tokens (50 %) have at least {OLD} "
        "tokens of their document before them"
    )
    assert text in done.stdout.splitlines()
    assert (
        f"steps       {plan(separating, epochs=1).steps} steps (1 epoch) of 8 sequences"
        in done.stdout
    )


@pytest.mark.parametrize(("words", "share"), [(8, 0), (15, 0), (23, 1 / 6)])
def test_dry_run_counts_within_documents(words: int, share: float, separating: Path) -> None:
    write_documents([words] * 200)
    found = plan(separating, "documents.jsonl", steps=1)
    assert found.long_context.has_documents
    assert found.long_context.share == pytest.approx(share, rel=0.05)
    warnings = [text for text in found.warnings if "Pass longer documents with --data" in text]
    assert len(warnings) == (1 if share == 0 else 0)


def test_dry_run_warns_of_texts_without_a_long_context(separating: Path) -> None:
    write_documents([8] * 200)
    flags = ("--data", "documents.jsonl", "--steps", 1, "--dry-run", "--json")
    done = succeed("train", separating, *flags)
    values = json.loads(done.stdout)
    check(values, "train")
    assert values["long_context"]["long_tokens"] == 0
    (warning,) = values["warnings"]
    assert warning.startswith("0 of ")
    assert f"(0 %) have at least {OLD} tokens of their document before them" in warning


def test_dry_run_does_not_warn_of_windows_at_random_positions(gpt2: Path) -> None:
    found = plan(gpt2, steps=1, window=OLD)
    assert found.long_context.long_tokens == 0
    assert not any("teaches" in text for text in found.warnings)


def test_dry_run_counts_within_sequences_if_nothing_separates_documents(gpt2: Path) -> None:
    write_documents([8] * 200)
    found = plan(gpt2, "documents.jsonl", steps=1).long_context
    assert not found.has_documents
    assert str(found).endswith(f"have at least {OLD} tokens of their sequence before them")


def test_dry_run_counts_no_context_without_a_base(tmp_path: Path) -> None:
    source = make_source(tmp_path / "unknown", "gpt2")
    assert plan(source, steps=1).long_context is None


def test_dry_run_counts_the_context_of_rotary_models(tmp_path: Path) -> None:
    rotary_models.make(max_position_embeddings=16)
    succeed("resize", "llama", "--to", 32, "-o", "longer")
    found = plan("longer", steps=1).long_context
    assert found.base_length == 16
    assert found.long_tokens * 2 == found.tokens


def test_dry_run_counts_the_context_of_encoders(tmp_path: Path) -> None:
    source = make_resized(tmp_path / "bert", "bert")
    found = plan(source, steps=1).long_context
    assert found.base_length == OLD
    assert 0 < found.share < 0.5  # special tokens take positions
