"""Several checkpoints: numbers as of each by itself, pairing, facts, base, unseen text, errors."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import transformers
from sentence_transformers import SentenceTransformer

import ctxextend
from ctxextend.errors import CtxextendError
from ctxextend.lab import candidates, eval_model
from ctxextend.lab.eval_model import EvalModel, load_eval_model
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.scores import score_of, scores_json
from tests.helpers.trainings import make_encoder, make_source, train, write_book
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

TO = 64
LENGTHS = {"max_position_embeddings": TO, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SPEED_SECONDS", 0.0)


@pytest.fixture
def texts(_empty_folder: None) -> Path:
    return write_texts()


def resized(source: Path, *methods: str, to: int = TO) -> list[Path]:
    return [
        ctxextend.resize(source, to=to, method=method, output=method).output for method in methods
    ]


def test_scores_of_checkpoints_equal_those_of_each_by_itself(texts: Path, tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    folders = resized(source, "copy", "linear")
    calls: list[tuple[int, int, str]] = []

    def record(advance: int, total: int, label: str = "") -> None:
        calls.append((advance, total, label))

    found = ctxextend.evaluate(folders, data=texts, tokens=512, progress=record)
    assert found.base is not None
    assert found.base.source == str(source)
    assert found.base.max_len == 16
    assert found.length == TO
    assert found.documents == 2
    for facts in found.models:
        single = ctxextend.evaluate(facts.source, data=texts, tokens=512)
        for name in (facts.name, "source"):
            assert scores_json(found, name) == scores_json(single, name)
        short = found.of_short(facts.name)
        assert short is not None
        assert (short.change.mean == 0) == (facts.name == "copy")

        assert facts.model_type == "gpt2"
        assert facts.scheme == "learned"
        assert facts.max_len == TO
        parameters = transformers.AutoModelForCausalLM.from_pretrained(
            facts.source
        ).num_parameters()
        assert facts.parameters == parameters
        assert facts.bytes == 4 * parameters
        assert facts.tokens_per_second is not None
        assert facts.tokens_per_second > 0
        assert single.models[0].tokens_per_second is None

    tokens = sum(call[0] for call in calls)
    assert {call[1] for call in calls} == {tokens}
    assert {call[2] for call in calls} == {"source", "copy", "linear"}


def test_checkpoints_of_other_types_have_no_common_base(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path / "gpt2", "gpt2", n_positions=TO)
    resized(source, "zero:scope=all", "sinusoidal:scope=all", to=2 * TO)
    make_rotary("llama", "rotary", **LENGTHS)
    make_rotary("bloom", "alibi", n_layer=2, seq_length=TO)
    alive = weakref.WeakSet[Any]()

    def load_one(*arguments: Any) -> EvalModel:
        gc.collect()
        for model in alive:
            for value in model.parameters():
                assert value.device.type == "meta"
        loaded = load_eval_model(*arguments)
        alive.add(loaded.model)
        return loaded

    monkeypatch.setattr(eval_model, "load_eval_model", load_one)
    names = ["rotary", "alibi", "zero:scope=all", "sinusoidal:scope=all", str(source)]
    found = ctxextend.evaluate(names, data=texts, tokens=512, measure="context")
    assert found.base is None
    assert found.references == []
    assert found.length == TO
    assert sorted({score.length for score in found.scores}) == [8, 16, 32, TO]
    assert {model.name: model.scheme for model in found.models} == {
        "rotary": "rotary",
        "alibi": "ALiBi",
        "zero:scope=all": "none",
        "sinusoidal:scope=all": "learned",  # its rows are scaled
        "gpt2": "learned",
    }


def test_encoders_are_ranked_and_embed_short_texts_next_to_the_base(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 12)
    copy, linear = resized(source, "copy", "linear")
    found = ctxextend.evaluate([copy, linear, copy], data=texts, tokens=12 * TO)

    assert found.names == ["copy (1)", "linear", "copy (2)"]
    assert {score.name for score in found.ranking} == {"MRR"}
    for name in found.names:
        folder = name.split()[0]
        single = ctxextend.evaluate(folder, data=texts, tokens=12 * TO)
        assert scores_json(found, name) == scores_json(single, folder)
        short = found.of_short(name)
        assert short is not None
        assert (short.change.mean == 0) == (folder == "copy")

    short_texts = [
        " ".join(json.loads(line)["text"].split()[:14]) for line in texts.read_text().splitlines()
    ]
    new = SentenceTransformer("linear").encode(short_texts, normalize_embeddings=True)
    old = SentenceTransformer(str(source)).encode(short_texts, normalize_embeddings=True)
    cosines = (old * new).sum(axis=1)
    similar = score_of(found, model="linear", measure="similarity")
    assert similar.mean == pytest.approx(cosines.mean(), abs=1e-5)


def test_only_text_that_all_models_held_out_is_read(tmp_path: Path) -> None:
    write_book()
    source = make_source(tmp_path / "source", "gpt2")
    resized(source, "copy", "linear", to=32)
    train("copy", "first", steps=2)
    train("linear", "second", steps=4)
    names = ["linear", "first", "second"]
    found = ctxextend.evaluate(names, data="book.txt", measure="position", tokens=512)
    assert found.warnings == tuple(
        f"{name} was trained on book.txt: only the 128 held-out tokens are used."
        for name in names[1:]
    )
    assert found.tokens == 4 * 32
    assert found.documents == 4


def refuse(references: list[Any], texts: Path, message: str, hint: str, **settings: Any) -> None:
    """Check that an evaluation ends with a message and a hint."""
    with pytest.raises(CtxextendError, match=message) as failed:
        ctxextend.evaluate(references, data=texts, **settings)
    assert hint in str(failed.value.hint)


def test_checkpoints_that_cannot_be_compared_are_refused(texts: Path, tmp_path: Path) -> None:
    short = make_source(tmp_path / "short", "gpt2")
    (long,) = resized(short, "copy")
    masked = make_source(tmp_path / "masked", "bert")
    make_rotary("llama", "other", **LENGTHS)
    add_tokenizer(Path("other"), special_tokens=True)
    encoder = make_encoder(tmp_path / "encoder")

    too_short = "short has a context length of 16, too short for"
    refuse([long, short], texts, too_short, f"short --to {TO}", length=TO)
    tokenizers = "The tokenizers of other and .*copy cut the text"
    refuse([long, "other"], texts, tokenizers, "share a tokenizer")
    kinds = "is an encoder without an LM head, but .*masked is a masked"
    refuse([masked, encoder], texts, kinds, "one kind")
    retrieval = "Retrieval was skipped: queries from beyond 16 tokens need"
    refuse([encoder, encoder], texts, retrieval, "--length", length=16, measure="retrieval")
