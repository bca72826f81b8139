"""Contrastive training of sentence encoders."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend import resize, train
from ctxextend.lab.eval_model import open_eval_model
from ctxextend.settings import CheckpointRef
from ctxextend.training.memory import disable_dropout
from ctxextend.training.objectives import Contrastive
from ctxextend.training.pairs import Documents
from ctxextend.training.train_data import IGNORE_INDEX, SequenceSettings, Text
from ctxextend.training.train_result import TrainResult
from tests.helpers.trainings import (
    NEW,
    ctrl_c_after,
    invoke,
    log_of,
    make_encoder,
    make_resized,
)
from tests.helpers.word_tokenizer import text_of

FLAGS = ("--steps", 6, "--batch-size", 8, "--lr", 0.01, "--save", "last")
TOPICS = 12


def topic(draw: random.Random, number: int, words: int) -> str:
    """Return a text of one topic: pairs of words that only it has."""
    numbers: list[int] = []
    for _ in range(words // 2):
        partner = draw.choice((number + 5, number + 11))
        numbers += [number, partner]
    return text_of(numbers)


def write_lines(name: str, lines: list[str]) -> None:
    Path(name).write_text("\n".join(lines))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder, resized from 16 to 32 positions, and texts next to it."""
    folder = tmp_path_factory.mktemp("contrastive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        resize(make_encoder(folder / "source"), to=NEW, output="long")
        write_texts()
    return folder


@pytest.fixture(autouse=True)
def inside(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(encoder)


def run(output: str, data: str, contrastive: str = "pairs", **changes: Any) -> TrainResult:
    given = {"steps": 6, "batch_size": 8, "lr": 0.01, "save": "last", "output": output, **changes}
    return train("long", data, contrastive=contrastive, **given)


def write_texts() -> None:
    """Write texts, and pairs of a passage and its text, without and with negatives."""
    draw = random.Random(0)
    texts = [topic(draw, number % TOPICS, 80) for number in range(5 * TOPICS)]
    anchors = [topic(draw, number % TOPICS, 8) for number in range(len(texts))]
    negatives = [topic(draw, (number + 1) % TOPICS, 20) for number in range(len(texts))]

    documents: list[str] = []
    pairs: list[str] = []
    rows = ["anchor\tpositive"]
    triples = ["anchor\tpositive\tnegative"]
    for anchor, positive, negative in zip(anchors, texts, negatives, strict=True):
        documents.append(json.dumps({"text": positive}))
        pairs.append(json.dumps({"anchor": anchor, "positive": positive}))
        rows.append(f"{anchor}\t{positive}")
        triples.append(f"{anchor}\t{positive}\t{negative}")
    write_lines("texts.jsonl", [*documents, ""])
    write_lines("pairs.jsonl", pairs)
    write_lines("pairs.tsv", [*rows, ""])
    write_lines("negatives.tsv", triples)


def test_train_learns_to_find_documents_by_their_passages() -> None:
    result = run("passages", "texts.jsonl", "passages")
    assert result.objective == "contrastive"
    assert result.trainable == "all"
    assert result.distill == 5
    assert result.loss_after < 0.9 * result.loss_before


def test_train_learns_pairs_of_a_file_at_random_positions() -> None:
    result = run("negatives", "negatives.tsv", window=24, per_device_batch_size=4)
    assert result.objective == "contrastive"
    assert result.window == 24
    assert result.loss_after < 0.9 * result.loss_before
    recipe = Path("negatives", "ctxextend.yaml").read_text()
    assert "objective: contrastive" in recipe
    assert "name: negatives.tsv" in recipe
    card = Path("negatives", "README.md").read_text()
    assert "to find the text of each pair" in card


def test_run_resizes_and_then_trains_on_pairs() -> None:
    changes = ["train.contrastive=pairs", "train.data=pairs.jsonl", "train.steps=1"]
    changes += ["train.window=24", "train.batch_size=4", "evaluate=null"]
    changes += ["source=root", "resize.to=32"]
    flags = [word for change in changes for word in ("--set", change)]
    done = invoke("run", "minilm-2048", *flags, "-o", "from-recipe", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["train"]["objective"] == "contrastive"

    flags += ["--set", "train.data=pairs-with-a-gap.jsonl"]
    Path("pairs-with-a-gap.jsonl").write_text('{"anchor": "a", "positive": ""}\n')
    failed = invoke("run", "minilm-2048", *flags, "-o", "not-written")
    assert failed.exit_code == 1
    assert "pairs-with-a-gap.jsonl" in failed.stderr
    assert not Path("not-written").exists()


def test_train_computes_similarities_in_float32() -> None:
    exact = run("fp32", "pairs.jsonl", steps=1)
    rounded = run("bf16", "pairs.jsonl", steps=1, precision="bf16", per_device_batch_size=4)

    loss = rounded.loss_before
    assert rounded.precision == "bf16"
    assert loss == pytest.approx(exact.loss_before, rel=0.02)
    # bfloat16 has steps of 1/128 from 1 to 2, and larger ones above.
    assert loss * 128 % 1


def encoder_weights(output: str | Path) -> bytes:
    return Path(output, "0_Transformer", "model.safetensors").read_bytes()


def test_train_reads_pairs_from_both_formats_alike() -> None:
    for suffix in ("jsonl", "tsv"):
        run(f"format-{suffix}", f"pairs.{suffix}", steps=1, distill=0)
    assert encoder_weights("format-jsonl") == encoder_weights("format-tsv")
    assert log_of(Path("format-jsonl")) == log_of(Path("format-tsv"))


@pytest.mark.slow
def test_train_resumes_contrastive_training_bit_identically() -> None:
    run("uninterrupted", "texts.jsonl", "passages", window=24)
    flags = ("--contrastive", "passages", "--data", "texts.jsonl", "--window", 24)
    with ctrl_c_after(step=3):
        done = invoke("train", "long", *FLAGS, *flags, "-o", "resumed")
    assert done.exit_code == 130

    more = {"resume": True, "per_device_batch_size": 8}
    run("resumed", "texts.jsonl", "passages", window=24, **more)
    assert encoder_weights("uninterrupted") == encoder_weights("resumed")
    assert log_of(Path("resumed")) == log_of(Path("uninterrupted"))


def test_contrastive_loss_equals_that_of_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    student = open_eval_model(CheckpointRef("long"))
    teacher = open_eval_model(CheckpointRef("long"))
    disable_dropout(student.model)
    theirs: Any = SentenceTransformer(str(Path("long").absolute()), device="cpu")
    anchors = theirs.preprocess(["w1 w2 w3", "w6 w7 w8 w9 w10", "w2 w2"])
    positives = theirs.preprocess(["w4 w5", "w11", "w20 w21 w22"])
    expected = MultipleNegativesRankingLoss(theirs)([anchors, positives], None)
    expected.backward()
    weights = dict(theirs[0].auto_model.named_parameters())

    padded: list[torch.Tensor] = []
    for column in (anchors, positives):
        part = column["input_ids"].masked_fill(column["attention_mask"] == 0, IGNORE_INDEX)
        missing = 9 - part.shape[1]
        padded.append(torch.nn.functional.pad(part, (0, missing), value=IGNORE_INDEX))
    ids = torch.stack(padded, 1)
    plain = Contrastive(student, None, 0.0, position_ids=False)
    # With the distance from a teacher too, which is 0 as long as both are the same.
    distilled = Contrastive(student, teacher, 3.0, position_ids=False)
    for ours, size in ((plain, 4), (plain, 1), (distilled, 2)):
        ours.micro_batch_size = size
        student.model.zero_grad()
        loss = ours(ids)["loss"]
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        loss.backward()
        for name, value in student.model.named_parameters():
            if "pooler" not in name:
                # Sums of many terms: processors round them in different orders.
                tolerance = 1e-5 * max(1.0, weights[name].grad.abs().max().item())
                assert torch.allclose(value.grad, weights[name].grad, atol=tolerance), name

    with torch.no_grad():
        student.model.get_input_embeddings().weight.mul_(2)
    plain_loss = plain(ids)["loss"].item()
    training_loss = distilled(ids)["loss"].item()
    assert training_loss > plain_loss + 0.01
    held_out_loss = distilled.eval()(ids)["loss"].item()
    assert held_out_loss == pytest.approx(plain_loss)


def test_pairs_are_a_passage_and_its_document_with_borders() -> None:
    model = open_eval_model(CheckpointRef("long"))
    # The thousands of a token tell its document.
    parts: list[Any] = []
    for number, size in ((1, 200), (2, 20), (3, 700), (4, 5)):
        first = 1000 * number
        parts.append(np.arange(first, first + size))
        parts.append([model.tokenizer.separator])
    tokens = np.concatenate(parts).astype(np.int32)
    text = Text(tokens, np.array([[0, len(tokens)]]))
    settings = SequenceSettings((7,), (8,), 64, 128, "encoder", seed=1)
    data = Documents(text, settings, 400, model=model, batch=2)

    seen: set[int] = set()
    removed = 0
    positions: set[int] = set()
    for number in range(400):
        item = data[number]
        anchor, document = (ids[ids != IGNORE_INDEX].tolist() for ids in item["input_ids"])
        for ids in (anchor, document):
            assert ids[0] == 7
            assert ids[-1] == 8
        passage = anchor[1:-1]
        rest = document[1:-1]
        documents = {token // 1000 for token in passage + rest}
        assert len(documents) == 1
        assert np.all(np.diff(passage) == 1)
        assert len(passage) >= 8
        assert len(passage) <= 62
        seen |= documents
        if set(passage).isdisjoint(rest):
            removed += 1
        first_position = item["position_ids"][1, 1]
        positions.add(int(first_position))
        assert item["position_ids"].max() < 128
    assert seen == {1, 2, 3}
    assert removed > 360
    assert {1, 65} <= positions

    # Each document occurs once in an epoch.
    firsts = [int(data[number]["input_ids"][0, 1]) // 1000 for number in range(data.epoch_size)]
    assert len(set(firsts)) == len(firsts)


def test_train_refuses_contrastive_training_that_cannot_work(tmp_path: Path) -> None:
    bert = make_resized(tmp_path / "bert", "bert")
    one_pair = tmp_path / "one.jsonl"
    one_pair.write_text('{"anchor": "w1", "positive": "w2"}\n')
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(
        '{"anchor": "w1", "positive": "w2"}\n{"anchor": "w1", "positive": "w2", "negative": "w3"}\n'
    )
    empty = tmp_path / "empty.tsv"
    empty.write_text("w1\t \n")
    null = tmp_path / "null.jsonl"
    null.write_text(
        '{"anchor": "w1", "positive": "w2"}\n{"anchor": "w1", "positive": "w2", "negative": null}\n'
    )

    refuse(2, "--window-skip cannot be used with", "pairs.tsv", "--window", 24, "--window-skip")
    refuse(2, "--batch-size must be at least 2 to compare texts", "pairs.tsv", "--batch-size", 1)
    refuse(1, "applies to encoders without an LM head: ", "pairs.tsv", source=bert)
    refuse(1, "missing.tsv cannot be read", "missing.tsv")
    refuse(1, "fewer than two documents or positives", one_pair)
    for file in (mixed, empty, null):
        refuse(1, "has an empty text, or more or fewer texts than the first line.", file)


def refuse(code: int, message: str, pairs: object, *flags: object, source: object = "long") -> None:
    """Check that training on pairs with these flags ends with an exit code and a message."""
    given = ("--data", pairs, "--contrastive", "pairs", "--steps", 1, *flags)
    done = invoke("train", source, *given, "-o", "refused")
    assert done.exit_code == code, done.stderr
    shown = " ".join(done.stderr.split())
    assert message in shown, done.stderr
