"""The scripts that train checkpoints from nothing, run for a few steps on few documents."""

import math
from itertools import islice
from pathlib import Path

import pytest
import transformers

import corpus
import mini_bert
import tiny_gpt2
from ctxextend import resize
from tests import pico


@pytest.fixture(scope="module")
def few() -> list[str]:
    """Few short documents, and as many like them, of which some are held out."""
    short = list(islice((text for text in corpus.documents() if len(text) < 400), 120))
    return [*short, *(f"{text} held out {i}" for i, text in enumerate(short))]


def test_tiny_gpt2_script_trains_a_checkpoint_that_resizes(
    few: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.CORPORA, "docs", lambda: few)
    monkeypatch.setattr("sys.argv", ["tiny_gpt2.py", str(tmp_path / "tiny"), "--steps", "3"])
    tiny_gpt2.main()
    assert "Held-out perplexity per token" in (tmp_path / "tiny" / "README.md").read_text()
    output = resize(tmp_path / "tiny", to=200, output=tmp_path / "out").output
    pico.logits(pico.Pico(output, transformers.GPT2LMHeadModel).load(), 200)


def test_mini_bert_script_trains_a_masked_language_model(
    few: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.CORPORA, "docs", lambda: few)
    monkeypatch.setattr("sys.argv", ["mini_bert.py", str(tmp_path), "--steps", "3"])
    mini_bert.main()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.model_max_length == 128
    ids = tokenizer("Return the name.")["input_ids"]
    assert tokenizer.decode(ids) == "[CLS]Return the name.[SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Return the name."
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    held_out = corpus.tokenize(tokenizer, corpus.split(few)[1], mini_bert.SEP)
    assert math.isfinite(mini_bert.held_out_loss(model, held_out))
    pico.logits(model, 128)
