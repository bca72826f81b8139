"""`train` as a command: what it refuses, what it shows elsewhere, and what it prints as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from jsonschema import Draft202012Validator
from transformers.integrations import integration_utils

from ctxextend import TrainingError, resize, verify
from ctxextend.training.train import train as train_in_python
from tests import pico
from tests.trainings import (
    OLD,
    invoke,
    make_encoder,
    train,
)
from tests.words import add_tokenizer

pytestmark = pytest.mark.usefixtures("book")
BOOK = b"w1 w2 w3 " * 100
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "train.json").read_text())


class Show(transformers.TrainerCallback):
    """What tensorboard would do."""

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        folder = Path(args.output_dir) / "runs" / "now"
        folder.mkdir(parents=True)
        (folder / "events").write_bytes(b"losses")


def test_train_keeps_what_other_programs_showed(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", Show)
    train(gpt2, "out", "--report-to", "tensorboard", "--save-every", 1)
    assert Path("out/runs/now/events").read_bytes() == b"losses"
    assert verify(gpt2, "out").passed


class Absent:
    """A program that is not installed."""

    def __init__(self) -> None:
        raise RuntimeError("It requires a package.")


def test_train_refuses_to_report_to_what_is_not_there(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Absent)
    for name, said in {
        "wandb": "cannot be used here: It requires a package.",
        "bogus": "--report-to bogus cannot be used here: bogus is not supported, only ",
    }.items():
        done = invoke("train", gpt2, "--data", "book.txt", "--steps", 2, "--report-to", name, "-o", "out")
        assert done.exit_code == 1
        assert said in done.stderr


# By what is refused: the text, None where there is none; flags; and what is said.
REFUSED: dict[str, tuple[bytes | None, tuple[object, ...], str]] = {
    "no text": (None, (), "There is no file or folder book.txt."),
    "an empty text": (b"", (), "book.txt is empty."),
    "too little text": (b"w1 w2 w3", (), "The text has 3 tokens, and a sequence to train on and one held out take 64"),
    "no UTF-8": (b"w1 \xff\xfe", (), "UTF-8"),
    "long windows": (BOOK, ("--window", 33), "--window 33 is more than the 32 positions of"),
    "long sequences": (BOOK, ("--seq-len", 40), "--seq-len 40 is more than the 32 positions of"),
    "unknown new rows": (BOOK, ("--trainable", "new", "--original", "nowhere"), "are new is not known"),
    "odd micro-batches": (BOOK, ("--batch-size", 4, "--micro-batch", 3), "is no multiple of --micro-batch 3"),
    "half precision": (BOOK, ("--precision", "fp16"), "A CPU does not train in fp16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_train_refuses_before_the_model_is_loaded(name: str, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxextend.training.train.load_eval_model", lambda *_: pytest.fail("a model was loaded"))
    text, flags, said = REFUSED[name]
    Path("book.txt").write_bytes(text or b"")
    if text is None:
        Path("book.txt").unlink()
    done = invoke("train", gpt2, "--data", "book.txt", "--steps", 2, *flags, "-o", "out")
    assert done.exit_code in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(Path.cwd().glob("out*"))


def test_train_new_is_refused_where_nothing_is_new(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    resize(source, to=OLD, mend_limits=True, output="same")
    for flags in (("same",), (source, "--original", source)):
        done = invoke("train", *flags, "--data", "book.txt", "--steps", 2, "--trainable", "new", "-o", "out")
        assert done.exit_code == 1
        assert "has no new rows" in done.stderr
    with pytest.raises(TrainingError, match="is not known"):
        train_in_python(gpt2.with_name("long-old"), "book.txt", 2, trainable="new", output="out")


def make_clip(folder: Path) -> Path:
    torch.manual_seed(0)
    tower = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts, images = {"max_position_embeddings": 24, "vocab_size": 32}, {"image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=tower | texts, vision_config=tower | images, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(folder)
    return folder


UNTAUGHT: dict[str, tuple[Callable[[Path], Path], tuple[object, ...], str]] = {
    "an encoder of unknown origin": (make_encoder, (), "which it could learn from, is not known. Name that with"),
    "one that writes another text": (pico.make_bart, (), "reads one text and writes another"),
    "one of texts and images": (make_clip, (), "gives no embeddings of a text alone"),
}


@pytest.mark.parametrize("name", UNTAUGHT)
def test_train_refuses_models_that_it_cannot_teach(name: str) -> None:
    make, flags, said = UNTAUGHT[name]
    source = make(Path("source").absolute())
    if make is not make_encoder:
        add_tokenizer(source, is_framed=True)
    done = invoke("train", source, "--data", "book.txt", "--steps", 2, *flags, "-o", "out")
    assert done.exit_code == 1
    assert said in " ".join(done.stderr.split())
    assert not [path for path in Path.cwd().iterdir() if path.name.startswith("out")]


@pytest.mark.parametrize(
    "flags",
    [
        ("--steps", 0),
        ("--steps", 2, "--lr", -1),
        ("--steps", 2, "--trainable", "some"),
        ("--steps", 2, "--window-skip"),
    ],
)
def test_train_flags_that_mean_nothing_exit_2(flags: tuple[object, ...], gpt2: Path) -> None:
    done = invoke("train", gpt2, "--data", "book.txt", *flags, "-o", "out", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["type"] == "UsageError"


def test_train_json_is_as_the_schema_describes_it(gpt2: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"])
    assert SCHEMA["additionalProperties"] is False
    said = json.loads(train(gpt2, "out", "--window", 8, "--window-skip", "--json").stdout)
    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(said)]
    assert errors == []
    assert (said["seq_len"], said["window"], said["tokens"], said["objective"]) == (32, 8, 4 * 4 * 8, "causal")
    assert list(Draft202012Validator(SCHEMA).iter_errors({**said, "steps": 0}))
