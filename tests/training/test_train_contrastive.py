"""Contrastive training of sentence encoders."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend import resize
from ctxextend.evaluation.eval_model import open_eval_model
from ctxextend.recipe import CheckpointRef
from ctxextend.training.memory import disable_dropout
from ctxextend.training.objectives import Contrastive
from ctxextend.training.pairs import Documents, PairDataset
from ctxextend.training.train_data import IGNORE_INDEX, SequenceSettings, Text
from ctxextend.training.trainer import RunCallback
from tests.helpers.repository import ROOT
from tests.helpers.trainings import NEW, invoke, log_of, make_encoder, make_resized
from tests.helpers.word_tokenizer import text_of

FLAGS = ("--steps", 6, "--batch-size", 8, "--lr", 0.01, "--save", "last")
TOPICS = 12


def topic(draw: random.Random, number: int, words: int) -> str:
    """Return a text of one topic: pairs of words that only it has."""
    return text_of(
        [
            word
            for _ in range(words // 2)
            for word in (number, draw.choice((number + 5, number + 11)))
        ]
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder, resized from 16 to 32 positions, and texts next to it."""
    folder = tmp_path_factory.mktemp("contrastive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        resize(make_encoder(folder / "source"), to=NEW, output="long")
        draw = random.Random(0)
        texts = [topic(draw, number % TOPICS, 80) for number in range(5 * TOPICS)]
        Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        pairs = [(topic(draw, number % TOPICS, 8), text) for number, text in enumerate(texts)]
        lines = [json.dumps({"anchor": anchor, "positive": positive}) for anchor, positive in pairs]
        Path("pairs.jsonl").write_text("\n".join(lines))
        Path("pairs.tsv").write_text(
            "anchor\tpositive\n" + "".join(f"{one}\t{other}\n" for one, other in pairs)
        )
        negatives = [
            f"{one}\t{other}\t{topic(draw, (number + 1) % TOPICS, 20)}"
            for number, (one, other) in enumerate(pairs)
        ]
        Path("negatives.tsv").write_text("anchor\tpositive\tnegative\n" + "\n".join(negatives))
    return folder


@pytest.fixture(autouse=True)
def inside(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(encoder)


def run(output: str, *flags: object) -> dict[str, Any]:
    done = invoke("train", "long", *FLAGS, *flags, "-o", output, "--json")
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_train_learns_to_find_documents_by_their_passages() -> None:
    result = run("passages", "--contrastive", "--data", "texts.jsonl")
    assert (result["objective"], result["trainable"], result["distill"]) == (
        "contrastive",
        "all",
        5,
    )
    assert result["loss_after"] < 0.9 * result["loss_before"]


def test_train_learns_pairs_of_a_file_at_random_positions() -> None:
    result = run(
        "negatives", "--pairs", "negatives.tsv", "--window", 24, "--per-device-batch-size", 4
    )
    assert (result["objective"], result["window"]) == ("contrastive", 24)
    assert result["loss_after"] < 0.9 * result["loss_before"]
    recipe = Path("negatives", "ctxextend.yaml").read_text()
    assert "objective: contrastive" in recipe
    assert "name: negatives.tsv" in recipe
    assert "to find the text of each pair" in Path("negatives", "README.md").read_text()


def test_train_computes_similarities_in_float32() -> None:
    exact = run("fp32", "--pairs", "pairs.jsonl", "--steps", 1)
    rounded = run(
        "bf16",
        "--pairs",
        "pairs.jsonl",
        "--steps",
        1,
        "--precision",
        "bf16",
        "--per-device-batch-size",
        4,
    )
    assert rounded["precision"] == "bf16"
    assert rounded["loss_before"] == pytest.approx(exact["loss_before"], rel=0.02)
    assert (
        rounded["loss_before"] * 128 % 1
    )  # bfloat16 has steps of 1/128 from 1 to 2, and larger ones above


def test_train_reads_pairs_from_both_formats_alike() -> None:
    outputs = [f"format-{suffix}" for suffix in ("jsonl", "tsv")]
    for output in outputs:
        run(output, "--pairs", f"pairs.{output[7:]}", "--steps", 1, "--distill", 0)
    one, other = (
        Path(output, "0_Transformer", "model.safetensors").read_bytes() for output in outputs
    )
    assert one == other
    assert log_of(Path(outputs[0])) == log_of(Path(outputs[1]))


def test_train_resumes_contrastive_training_bit_identically() -> None:
    flags = ("--contrastive", "--data", "texts.jsonl", "--window", 24)
    run("uninterrupted", *flags)
    on_log = RunCallback.on_log

    def interrupt(self: RunCallback, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_log(self, args, state, control, **others)
        if state.global_step == 3:
            self.stop._receive(15, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunCallback, "on_log", interrupt)
        assert invoke("train", "long", *FLAGS, *flags, "-o", "resumed").exit_code == 143
    run("resumed", *flags, "--resume", "--per-device-batch-size", 8)
    files = [
        Path(name, "0_Transformer", "model.safetensors").read_bytes()
        for name in ("uninterrupted", "resumed")
    ]
    assert files[0] == files[1]
    assert log_of(Path("resumed")) == log_of(Path("uninterrupted"))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--per-device-batch-size", 2), ("--fsdp",)])
def test_train_compares_the_pairs_of_all_processes(
    flags: tuple[object, ...], tmp_path: Path
) -> None:
    common = ("--pairs", "negatives.tsv", "--window", 24)
    run(f"{tmp_path}/one", *common)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "ctxextend",
    ]
    arguments = map(str, ("train", "long", *FLAGS, *common, *flags, "-o", tmp_path / "two"))
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [*launcher, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "two").exists(), done.stderr
    for line, expected in zip(log_of(tmp_path / "two"), log_of(tmp_path / "one"), strict=True):
        assert line == pytest.approx(expected, abs=1e-4)


def test_contrastive_loss_equals_that_of_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    student = open_eval_model(CheckpointRef("long"))
    disable_dropout(student.model)
    theirs: Any = SentenceTransformer(str(Path("long").absolute()), device="cpu")
    texts = [("w1 w2 w3", "w4 w5"), ("w6 w7 w8 w9 w10", "w11"), ("w2 w2", "w20 w21 w22")]
    columns = [theirs.preprocess(list(column)) for column in zip(*texts, strict=True)]
    expected = MultipleNegativesRankingLoss(theirs)(columns, None)
    padded = [
        column["input_ids"].masked_fill(column["attention_mask"] == 0, IGNORE_INDEX)
        for column in columns
    ]
    ids = torch.stack(
        [
            torch.nn.functional.pad(part, (0, 9 - part.shape[1]), value=IGNORE_INDEX)
            for part in padded
        ],
        1,
    )
    plain = Contrastive(student, None, 0.0, position_ids=False)
    # With the distance from a teacher too, which is 0 as long as both are the same.
    distilled = Contrastive(
        student, open_eval_model(CheckpointRef("long")), 3.0, position_ids=False
    )
    expected.backward()
    weights = dict(theirs[0].auto_model.named_parameters())
    for ours, size in ((plain, 4), (plain, 1), (distilled, 2)):
        ours.micro_batch_size = size
        student.model.zero_grad()
        loss = ours(ids)["loss"]
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        loss.backward()
        for name, value in student.model.named_parameters():
            if "pooler" not in name:
                assert torch.allclose(value.grad, weights[name].grad, atol=1e-5), name
    with torch.no_grad():
        student.model.get_input_embeddings().weight.mul_(2)
    assert distilled(ids)["loss"].item() > plain(ids)["loss"].item() + 0.01
    assert distilled.eval()(ids)["loss"].item() == pytest.approx(plain(ids)["loss"].item())


def test_pairs_are_a_passage_and_its_document_with_borders() -> None:
    model = open_eval_model(CheckpointRef("long"))
    documents = [
        np.arange(1000 * n, 1000 * n + size) for n, size in ((1, 200), (2, 20), (3, 700), (4, 5))
    ]
    tokens = np.concatenate(
        [part for document in documents for part in (document, [model.tokenizer.separator])]
    )
    settings = SequenceSettings((7,), (8,), 64, 128, "encoder", seed=1)
    text = Text.whole(tokens.astype(np.int32))
    documents_of = Documents(text, settings, model.tokenizer.separator)
    data = PairDataset(documents_of, settings, 400, is_held_out=False, model=model, batch=2)
    seen = set[int]()
    removed = 0
    positions = set[int]()
    for item in (data[number] for number in range(400)):
        anchor, document = (ids[ids != IGNORE_INDEX].tolist() for ids in item["input_ids"])
        assert [anchor[0], anchor[-1], document[0], document[-1]] == [7, 8, 7, 8]
        assert len({token // 1000 for token in (*anchor[1:-1], *document[1:-1])}) == 1
        assert np.all(np.diff(anchor[1:-1]) == 1)
        assert 8 <= len(anchor) - 2 <= 62
        seen.add(anchor[1] // 1000)
        removed += not {*anchor[1:-1]} & {*document[1:-1]}
        positions.add(int(item["position_ids"][1, 1]))
        assert item["position_ids"].max() < 128
    assert seen == {1, 2, 3}
    assert removed > 360
    assert {1, 65} <= positions
    # Each document occurs once in an epoch.
    firsts = [int(data[number]["input_ids"][0, 1]) // 1000 for number in range(data.epoch_size)]
    assert len({*firsts}) == len(firsts)
    assert len([*iter(data)]) == len(data)
    with pytest.raises(IndexError):
        data[len(data)]


def test_train_refuses_contrastive_training_that_cannot_work(tmp_path: Path) -> None:
    make_resized(tmp_path / "bert", "bert")
    Path(tmp_path, "one.jsonl").write_text('{"anchor": "w1", "positive": "w2"}\n')
    Path(tmp_path, "mixed.jsonl").write_text(
        '{"anchor": "w1", "positive": "w2"}\n{"anchor": "w1", "positive": "w2", "negative": "w3"}\n'
    )
    Path(tmp_path, "empty.tsv").write_text("w1\t \n")
    for name, negative in (("blank", ""), ("null", None)):
        rows = [
            {"anchor": "w1", "positive": "w2"},
            {"anchor": "w1", "positive": "w2", "negative": negative},
        ]
        Path(tmp_path, f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for code, source, flags, message in (
        (2, "long", (), "No training text."),
        (
            2,
            "long",
            ("--pairs", "pairs.tsv", "--data", "texts.jsonl"),
            "--pairs cannot be used with --data",
        ),
        (
            2,
            "long",
            ("--pairs", "pairs.tsv", "--window", 24, "--window-skip"),
            "--window-skip cannot be used with",
        ),
        (
            2,
            "long",
            ("--pairs", "pairs.tsv", "--batch-size", 1),
            "--batch-size must be at least 2 to compare texts",
        ),
        (
            1,
            tmp_path / "bert",
            ("--contrastive", "--data", "texts.jsonl"),
            "apply to encoders without an LM head: ",
        ),
        (1, "long", ("--pairs", "missing.tsv"), "missing.tsv cannot be read"),
        (1, "long", ("--pairs", tmp_path / "one.jsonl"), "fewer than two documents or positives"),
        (1, "long", ("--pairs", tmp_path / "mixed.jsonl"), "has 3 texts instead of 2."),
        (1, "long", ("--pairs", tmp_path / "empty.tsv"), "has 1 text instead of 2."),
        (1, "long", ("--pairs", tmp_path / "blank.jsonl"), "has 1 empty text."),
        (1, "long", ("--pairs", tmp_path / "null.jsonl"), "has 1 empty text."),
    ):
        done = invoke("train", source, "--steps", 1, *flags, "-o", "refused")
        assert done.exit_code == code, done.stderr
        assert message in " ".join(done.stderr.split()), done.stderr
