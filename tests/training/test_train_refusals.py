"""Errors, notes, warnings and JSON output of `ctxextend train`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from jsonschema import Draft202012Validator
from transformers.integrations import integration_utils

from ctxextend import resize, verify
from ctxextend.errors import CheckpointError
from ctxextend.models.load import match_parameters
from ctxextend.plan.opened_model import open_model
from ctxextend.settings import CheckpointRef
from tests.helpers import pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import OLD, invoke, make_encoder, train
from tests.helpers.word_tokenizer import add_tokenizer, text_of

pytestmark = pytest.mark.usefixtures("book")
SCHEMA = SCHEMAS["train"]

TEXTS = {
    **{
        "empty.txt": b"",
        "blank.txt": b" \n ",
        "short.txt": b"w1 w2 w3",
        "latin.txt": b"w1 \xff\xfe",
    },
    "body.jsonl": b'{"body": "w1"}',
}


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--data missing.txt", 1, "missing.txt does not exist. Pass an existing file or folder."),
        ("--data empty.txt", 1, "empty.txt is empty."),
        ("--data blank.txt", 1, "blank.txt contains no text."),
        ("--data latin.txt", 1, "latin.txt cannot be read: 'utf-8' codec"),
        ("--data body.jsonl", 1, "Line 1 of body.jsonl has no field 'text'; found body."),
        (
            "--data short.txt",
            1,
            "has 3 tokens, but one sequence to train on and one to hold out require 64.",
        ),
        ("--data book.txt --eval-data blank.txt", 1, "blank.txt contains no text."),
        (
            "--data book.txt --eval-data short.txt",
            1,
            "text of --eval-data has 3 tokens, but a sequence requires 32.",
        ),
        ("--data book.txt --window 33", 1, "--window 33 is more than the 32 positions of"),
        ("--data book.txt --seq-len 40", 1, "--seq-len 40 is more than the 32 positions of"),
        ("--data book.txt --trainable new --base nowhere", 1, "nowhere is not a local folder"),
        ("--data book.txt --precision fp16", 1, "Training in fp16 is not supported on a CPU."),
        (
            "--data book.txt --batch-size 4 --per-device-batch-size 3",
            2,
            "must be a multiple of --per-device-batch-size 3, got 4",
        ),
        (
            "--data book.txt --steps 99999999999999999999999",
            2,
            "--steps must be at most 2,147,483,647",
        ),
        ("--data book.txt --seed 4294967296", 2, "--seed must be at most 2,147,483,647"),
        ("--data book.txt --steps 0", 2, "--steps must be at least 1, got 0."),
        ("--data book.txt --lr -1", 2, "--lr must be positive, got -1."),
        ("--data book.txt --distill -1", 2, "--distill must be at least 0, got -1."),
        (
            "--data book.txt --trainable some",
            2,
            "'some' is not one of 'new', 'positions', 'all-but-positions', 'all'.",
        ),
        ("--data book.txt --window-skip", 2, "--window-skip requires --window"),
    ],
)
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_train_rejects_invalid_data_and_flags_before_it_loads_the_model(
    dry_run: tuple[str, ...],
    flags: str,
    code: int,
    message: str,
    gpt2: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("ctxextend.evaluation.eval_model.load_eval_model", load)
    for name, text in TEXTS.items():
        Path(name).write_bytes(text)
    done = invoke("train", gpt2, "--steps", 2, *flags.split(), "-o", "out", *dry_run)
    shown = " ".join(done.stderr.split())
    assert done.exit_code == code
    assert message in shown
    assert not list(Path.cwd().glob("out*"))


def refuse(source: object, message: str, *flags: object) -> None:
    """Check that training ends with a message."""
    done = invoke("train", source, "--data", "book.txt", "--steps", 2, *flags, "-o", "out")
    assert done.exit_code == 1
    assert message in done.stderr


def test_train_new_rejects_a_checkpoint_without_known_new_rows_in_reach(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    resize(source, to=OLD, fix_limits=True, output="same")
    new = ("--trainable", "new")

    refuse("same", "same has no new rows: all are learned rows.", *new)
    refuse(source, "has no new rows: all are learned rows.", *new, "--base", source)
    without_base = (
        "long-old are new: no recipe names its base checkpoint.\nPass its base checkpoint "
        "with --base"
    )
    refuse(source, without_base, *new)
    too_short = f"--seq-len {OLD} does not reach any new row: the first is at position {OLD}."
    refuse(gpt2, too_short, *new, "--seq-len", OLD)
    one_short = f"Use a --seq-len above {OLD + 1}, or remove it."
    refuse(gpt2, one_short, *new, "--seq-len", OLD + 1)


def make_clip(folder: Path) -> Path:
    tower = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = tower | {"max_position_embeddings": 24, "vocab_size": 32}
    vision = tower | {"image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(folder)
    return add_tokenizer(folder, special_tokens=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            make_encoder,
            "has no LM head, and its base checkpoint is unknown. Pass --base to distil from it.",
        ),
        (
            lambda folder: add_tokenizer(pico.make_bart(folder), special_tokens=True),
            "is an encoder-decoder model",
        ),
        (make_clip, "cannot compute embeddings from text only"),
    ],
)
def test_train_rejects_models_without_an_objective(
    make: Callable[[Path], Path], message: str
) -> None:
    source = make(Path("source").absolute())
    done = invoke("train", source, "--data", "book.txt", "--steps", 2, "-o", "out")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert message in shown
    assert not list(Path.cwd().glob("out*"))


def test_train_rejects_distillation_without_a_base_or_of_an_encoder(gpt2: Path) -> None:
    encoder = make_encoder(Path("source").absolute())
    resize(encoder, to=32, output="long")
    without_base = "is to be distilled, and its base checkpoint is unknown.\nPass --base to distil"
    refuse(gpt2.with_name("long-old"), without_base, "--distill", 1)
    of_encoder = (
        "--distill applies to language models: long has no LM head, and is always "
        "distilled.\nRemove"
    )
    refuse("long", of_encoder, "--distill", 1)


def test_match_parameters_rejects_a_model_without_the_table() -> None:
    checkpoint = open_model(CheckpointRef("tiny-gpt2")).checkpoint
    model = torch.nn.Linear(2, 2)
    message = r"has no parameter with name and shape of transformer\.wpe\.weight"
    with pytest.raises(CheckpointError, match=message):
        match_parameters(model, checkpoint, ["transformer.wpe.weight"])


# ---- integrations that log losses


class LogToFile(transformers.TrainerCallback):
    """Writes logs like tensorboard."""

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        folder = Path(args.output_dir) / "runs" / "now"
        folder.mkdir(parents=True)
        (folder / "events").write_bytes(b"losses")


def test_train_keeps_the_logs_of_integrations(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "kubeflow", LogToFile)
    train(gpt2, "out", "--report-to", "kubeflow", "--save-every", 1)
    assert Path("out/runs/now/events").read_bytes() == b"losses"
    assert verify("out", gpt2).passed


def test_train_rejects_integrations_that_are_not_available(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name in ("wandb", "wamdb"):
        refuse(gpt2, f"--report-to {name} is not available: ", "--report-to", name)


# ---- notes, warnings and JSON


def test_train_warns_of_training_text_in_eval_data(gpt2: Path) -> None:
    numbers = [number % 27 for number in range(40)]
    Path("other.txt").write_text(text_of(numbers))
    done = train(gpt2, "out", "--eval-data", "./book.txt", "--json", steps=1)
    warning = (
        "book.txt is in both --data and --eval-data: the held-out loss does not measure new text."
    )
    assert warning in json.loads(done.stdout)["warnings"]
    assert done.stderr.count(warning) == 1

    done = train(gpt2, "new", "--eval-data", "other.txt", steps=1)
    assert "--eval-data" not in done.stderr


def test_train_warns_of_new_rows_that_no_sequence_reaches(gpt2: Path) -> None:
    done = train(gpt2, "out", "--seq-len", 24, "--json", steps=1)
    warning = (
        "--seq-len 24 leaves 8 new rows untrained, from position 24 on. Remove it, or use --window "
        "24 instead, which trains all positions."
    )
    assert json.loads(done.stdout)["warnings"] == [warning]
    assert done.stderr.count(f"Warning: {warning}\n") == 1

    done = train(gpt2, "windows", "--window", 24, steps=1)
    assert "untrained" not in done.stderr


def test_train_json_matches_its_schema(gpt2: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schema = SCHEMA["$defs"]["result"]
    assert set(schema["properties"]) == {*schema["required"]}
    assert schema["additionalProperties"] is False

    done = train(gpt2, "out", "--window", 8, "--window-skip", "--json")
    result = json.loads(done.stdout)
    errors = Draft202012Validator(SCHEMA).iter_errors(result)
    messages = [f"{error.json_path}: {error.message}" for error in errors]
    assert messages == []
    assert result["seq_len"] == 32
    assert result["window"] == 8
    assert result["tokens"] == 4 * 4 * 8
    assert result["objective"] == "causal"

    evaluating = 0.0
    for line in Path("out/train_log.jsonl").read_text().splitlines():
        evaluating += json.loads(line).get("eval_runtime", 0)
    rate = result["tokens"] / (result["seconds"] - evaluating)
    assert result["tokens_per_second"] == pytest.approx(rate, rel=0.01)
