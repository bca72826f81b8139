"""Train `tiny-gpt2`, the checkpoint that ships with ctxextend, from nothing and offline.

The corpus is the documentation in Python's own standard library: every docstring of its modules and
the language reference in `pydoc_data.topics`. Which documents are held out follows from a hash of their
text, so the same document is held out under every Python version.

    python recipes/from_scratch/tiny_gpt2.py OUT_FOLDER [--steps 5000]

About half an hour on two CPU cores.
"""

import argparse
import ast
import hashlib
import inspect
import json
import math
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CONTEXT = 128
VOCABULARY = 1024
BATCH = 32
END_OF_TEXT = "<|endoftext|>"
HELD_OUT_SHARE = 1 / 20
SEED = 0

CARD = """\
---
license: other
license_name: psf-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [gpt2, ctxextend]
---
# tiny-gpt2

A GPT-2 small enough to ship inside a Python package and trained until it writes English: {parameters:,}
parameters, {context} learned positions, a byte-level BPE of {vocabulary:,} tokens.

Made by `recipes/from_scratch/tiny_gpt2.py` of ctxextend, offline. The corpus is the documentation in Python's
standard library (Python {python}, docstrings and `pydoc_data.topics`; Python Software Foundation License):
{train_tokens:,} tokens to train on and {held_out_tokens:,} held out, document by document.

Held-out perplexity per token, windows of {context} tokens: **{perplexity:.2f}**.

| step | training loss | held-out loss | held-out perplexity |
|---:|---:|---:|---:|
{log}
"""


def documents() -> Iterator[str]:
    """Yield every docstring of the standard library and every topic of its reference, once each."""
    seen = set()
    for text in [*docstrings(Path(sysconfig.get_paths()["stdlib"])), *topics.values()]:
        if len(text) >= 40 and text not in seen:
            seen.add(text)
            yield text


def docstrings(library: Path) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "idle_test", "lib2to3"} & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield inspect.cleandoc(text)


def is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] < 256 * HELD_OUT_SHARE


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, model_max_length=CONTEXT
    )


def tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Join the texts into one stream of token ids, shape (tokens,), each text ended by END_OF_TEXT."""
    rows = tokenizer(texts, verbose=False)["input_ids"]
    return torch.tensor([token for row in rows for token in [*row, tokenizer.eos_token_id]])


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, tokens: torch.Tensor) -> float:
    """Return the mean negative log-likelihood in nats per token over whole windows of CONTEXT tokens."""
    model.train(False)
    windows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    batches = torch.split(windows, 64)
    losses: list[float] = [model(input_ids=batch, labels=batch).loss.item() * len(batch) for batch in batches]
    model.train()
    return sum(losses) / len(windows)


def train(model: GPT2LMHeadModel, tokens: torch.Tensor, held_out: torch.Tensor, steps: int) -> list[dict[str, float]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.1)
    warmup = max(1, steps // 20)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    generator = torch.Generator().manual_seed(SEED)
    log, running = [], 0.0
    every = max(1, steps // 10)
    for step in range(1, steps + 1):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH, 1), generator=generator)
        batch = tokens[starts + torch.arange(CONTEXT)]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
        running += loss.item()
        if step % every == 0:
            log.append({"step": step, "loss": running / every, "held_out_loss": held_out_loss(model, held_out)})
            running = 0.0
            print(json.dumps(log[-1]), flush=True)
    return log


def card(model: GPT2LMHeadModel, log: list[dict[str, float]], train_tokens: int, held_out_tokens: int) -> str:
    lines = [
        f"| {row['step']:.0f} | {row['loss']:.3f} | {row['held_out_loss']:.3f} | {math.exp(row['held_out_loss']):.2f} |"
        for row in log
    ]
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        context=CONTEXT,
        vocabulary=VOCABULARY,
        python=platform.python_version(),
        train_tokens=train_tokens,
        held_out_tokens=held_out_tokens,
        perplexity=math.exp(log[-1]["held_out_loss"]),
        log="\n".join(lines),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    texts = list(documents())
    learned = [text for text in texts if not is_held_out(text)]
    tokenizer = train_tokenizer(learned)
    tokens = tokenize(tokenizer, learned)
    held_out = tokenize(tokenizer, [text for text in texts if is_held_out(text)])
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    log = train(model, tokens, held_out, arguments.steps)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    (arguments.output / "README.md").write_text(card(model, log, len(tokens), len(held_out)), "utf-8")


if __name__ == "__main__":
    main()
