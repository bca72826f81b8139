"""Training corpora from Python's standard library.

The documentation corpus is every docstring of the library's modules and the language reference in
`pydoc_data.topics`; the code corpus is every module without docstrings and comments. Documents are
held out by a hash of their text, so the same document is held out in every Python version.
"""

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase

HELD_OUT_SHARE = 1 / 20
SKIPPED = {"site-packages", "test", "tests", "idle_test", "lib2to3"}  # folders
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents() -> Iterator[str]:
    """Yield each docstring of the standard library and each topic of the language reference
    once.
    """
    seen = set()
    for text in chain(docstrings(), topics.values()):
        if len(text) >= 40 and text not in seen:
            seen.add(text)
            yield text


def programs() -> Iterator[str]:
    """Yield the source of every module of the standard library, without docstrings and comments."""
    for tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        yield ast.unparse(tree)


def docstrings() -> Iterator[str]:
    for tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, DOCUMENTED):
                continue
            text = ast.get_docstring(node)
            if text:
                yield inspect.cleandoc(text)


def modules() -> Iterator[ast.Module]:
    """Yield the modules of the standard library that are not tests, parsed."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        folders = path.relative_to(library).parts
        if not SKIPPED.isdisjoint(folders):
            continue
        try:
            yield ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue


def is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] < 256 * HELD_OUT_SHARE


def split(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split texts into training and held-out texts."""
    trained: list[str] = []
    held_out: list[str] = []
    for text in texts:
        if is_held_out(text):
            held_out.append(text)
        else:
            trained.append(text)
    return trained, held_out


def byte_level_bpe(texts: list[str], vocab_size: int, special_tokens: list[str]) -> Tokenizer:
    """Train a byte-level BPE whose first ids are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str], end: str) -> torch.Tensor:
    """Join the texts into one stream of token ids, shape (tokens,), with the token `end` after each
    text.
    """
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)
    end_id: Any = tokenizer.convert_tokens_to_ids(end)
    stream: list[int] = []
    for row in encoded["input_ids"]:
        stream += row
        stream.append(end_id)
    return torch.tensor(stream)


def random_windows(
    tokens: torch.Tensor, count: int, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Return windows of the stream at random offsets, shape (count, length)."""
    starts = torch.randint(len(tokens) - length, (count, 1), generator=generator)
    return tokens[starts + torch.arange(length)]


def whole_windows(tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Split the stream into windows, shape (windows, length), without the incomplete last one."""
    count = len(tokens) // length
    return tokens[: count * length].view(count, length)


# The names are the values of --corpus.
CORPORA = {"docs": documents, "code": programs}
CORPUS_NAMES = {"docs": "documentation", "code": "code"}
