"""Word-level tokenizers for pico models, and texts of their words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# The first five are special tokens; the vocabulary of pico models has 32 tokens.
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(27))]


def add_tokenizer(folder: Path, *, special_tokens: bool, max_len: int = 16) -> Path:
    """Save a tokenizer in a folder and return the folder; with special tokens, texts are [CLS] ...
    [SEP].
    """
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names: dict[str, Any] = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": max_len,
    }
    if special_tokens:
        ids = [("[CLS]", 2), ("[SEP]", 3)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=ids
        )
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def text_of(numbers: list[int]) -> str:
    """Return the text of the words with these numbers."""
    return " ".join(f"w{number}" for number in numbers)


def write_texts(words: int = 300, documents: int = 4) -> Path:
    """Write documents of `words` words each to texts.jsonl; return its path."""
    generator, path = np.random.default_rng(0), Path("texts.jsonl")
    lines = [
        json.dumps({"text": text_of(generator.integers(0, 27, words).tolist())})
        for _ in range(documents)
    ]
    path.write_text("\n".join(lines))
    return path
