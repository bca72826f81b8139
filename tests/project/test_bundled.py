"""The bundled checkpoints."""

import math
import re
from pathlib import Path

import pytest
import transformers

import tiny_gpt2
import tiny_lookup
from corpus import documents, split, tokenize
from ctxextend import resize
from ctxextend.checkpoint.source import BUNDLED
from tests.helpers import pico

FOLDER = BUNDLED["tiny-gpt2"]


@pytest.mark.slow
def test_tiny_gpt2_matches_its_model_card() -> None:
    """The perplexity matches only roughly: the text differs between Python versions.

    That of an untrained model is more than 1,000.
    """
    card = (FOLDER / "README.md").read_text()
    model = pico.Pico(FOLDER, transformers.GPT2LMHeadModel).load()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    _, held_out = split(documents())
    loss = tiny_gpt2.held_out_loss(model, tokenize(tokenizer, held_out, tiny_gpt2.END_OF_TEXT))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"{parameters:,}" in card
    assert (model.config.n_positions, model.config.vocab_size) == (128, 1024)
    assert sum(len(data) for data in pico.contents(FOLDER).values()) <= 4_000_000
    stated = re.search(
        r"Held-out perplexity per token, windows of 128 tokens: \*\*([\d.]+)\*\*", card
    )
    assert stated
    assert math.exp(loss) == pytest.approx(float(stated[1]), rel=0.1)


@pytest.mark.slow
def test_tiny_lookup_matches_its_model_card() -> None:
    folder = BUNDLED["tiny-lookup"]
    card = (folder / "README.md").read_text()
    model = pico.Pico(folder, transformers.GPT2LMHeadModel).load()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    _, held_out = split(documents())
    tokens = tokenize(tokenizer, held_out, tiny_lookup.END_OF_TEXT).numpy()
    shares = tiny_lookup.accuracies(model, tiny_lookup.find_words(tokenizer), tokens, 128)
    assert "| 128 | 100% (100%) | 100% (100%) |" in card
    assert shares.min() > 0.95
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters" in card
    assert sum(len(data) for data in pico.contents(folder).values()) <= 4_000_000


def test_resize_tiny_gpt2_raises_the_tokenizers_limit(tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        resize("tiny-gpt2", to=512, output=tmp_path / "out").output
    )
    assert tokenizer.model_max_length == 512
    assert len(tokenizer("word " * 2000, truncation=True)["input_ids"]) == 512
