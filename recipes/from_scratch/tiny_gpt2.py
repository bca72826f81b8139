"""Train `tiny-gpt2`, the checkpoint that ships with ctxextend, from scratch and offline.

The corpus is the documentation in Python's standard library; see corpus.py.

    python recipes/from_scratch/tiny_gpt2.py OUT_FOLDER [--steps 5000]

About half an hour on two CPU cores. Flags for the variants on which methods are compared:

    --vocabulary 257    bytes as tokens: such models attend to near neighbours far more
    --context 256       more learned positions
    --corpus code       Python's source code instead of its documentation
    --waves             initialise rows as sinusoids, not noise: attention to near neighbours is
                        learned far sooner
    --sink              initialise position 0 as an attention sink, as in GPT-2
    --seed, --layers, --batch, --dropout
"""

import argparse
import math
import platform
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from corpus import (
    CORPORA,
    CORPUS_NAMES,
    byte_level_bpe,
    random_windows,
    split,
    tokenize,
    whole_windows,
)
from training import Log, arguments, optimize, save, table

END_OF_TEXT = "<|endoftext|>"
# The initial norm of a sink's row relative to other rows, and its initial logit: enough that heads
# without a better target keep attending to it, as most of GPT-2's do.
SINK_NORM = 20.0
SINK_LOGIT = 8.0

CARD = """\
# tiny-gpt2

A GPT-2 small enough to ship inside a Python package and trained until it writes English: \
{parameters:,}
parameters, {context} learned positions, a byte-level BPE of {vocab_size:,} tokens.

Trained with `recipes/from_scratch/tiny_gpt2.py` of ctxextend, offline. The corpus is the {corpus} \
of Python's
standard library (Python {python}, see corpus.py; Python Software Foundation License):
{train_tokens:,} training tokens and {held_out_tokens:,} held-out tokens, split by document.

Held-out perplexity per token, windows of {context} tokens: **{perplexity:.2f}**.

{log}
"""


@dataclass(frozen=True)
class Settings:
    """The model and its training, as given by flags."""

    steps: int
    vocabulary: int
    context: int
    layers: int
    batch: int
    seed: int
    corpus: str
    dropout: float
    waves: bool
    sink: bool


def train_tokenizer(texts: list[str], settings: Settings) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=byte_level_bpe(texts, settings.vocabulary, [END_OF_TEXT]),
        eos_token=END_OF_TEXT,
        model_max_length=settings.context,
    )


def new_model(settings: Settings, end: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=settings.vocabulary,
        n_positions=settings.context,
        n_embd=128,
        n_layer=settings.layers,
        n_head=4,
        attn_pdrop=settings.dropout,
        embd_pdrop=settings.dropout,
        resid_pdrop=settings.dropout,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = GPT2LMHeadModel(config)
    if settings.waves:
        initialize_sinusoids(model)
    if settings.sink:
        initialize_sink(model)
    return model


@torch.no_grad()
def initialize_sinusoids(model: GPT2LMHeadModel) -> None:
    """Initialise the position rows as sinusoids of random wavelengths of 8 rows or more, as large
    as noise would be.
    """
    rows = model.transformer.wpe.weight
    frequencies = math.pi / 4 * torch.rand(rows.shape[1] // 2)
    angles = torch.arange(len(rows))[:, None] * frequencies
    waves = torch.cat([angles.cos(), angles.sin()], dim=1)
    rows.copy_(waves * model.config.initializer_range * 2**0.5)


@torch.no_grad()
def initialize_sink(model: GPT2LMHeadModel) -> None:
    """Initialise position 0 far from all others, and half of the heads after the first layer to
    attend to it.
    """
    row = model.transformer.wpe.weight[0]
    row.mul_(SINK_NORM)
    normed = torch.nn.functional.layer_norm(row, row.shape)
    layers: Any = model.transformer.h
    for layer in layers[1:]:
        attention = layer.attn
        width = attention.split_size
        key_weight = attention.c_attn.weight[:, width : 2 * width]
        key = (normed @ key_weight).view(attention.num_heads, -1)
        scale = SINK_LOGIT * key.shape[1] ** 0.5
        query = scale * key / key.square().sum(dim=1, keepdim=True)
        query[: len(query) // 2] = 0
        attention.c_attn.bias[:width] = query.flatten()


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, tokens: torch.Tensor) -> float:
    """Return the mean loss in nats per token, on windows of the model's context length."""
    model.train(False)
    windows = whole_windows(tokens, model.config.n_positions)
    total = 0.0
    for batch in torch.split(windows, 64):
        loss = model(input_ids=batch, labels=batch).loss
        total += loss.item() * len(batch)
    model.train()
    return total / len(windows)


def train(
    model: GPT2LMHeadModel, tokens: torch.Tensor, held_out: torch.Tensor, settings: Settings
) -> Log:
    generator = torch.Generator().manual_seed(settings.seed)

    def loss(step: int) -> torch.Tensor:
        batch = random_windows(tokens, settings.batch, settings.context, generator)
        result: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return result

    def measured() -> float:
        return held_out_loss(model, held_out)

    return optimize(model, loss, measured, settings.steps, learning_rate=2e-3)


def card(
    model: GPT2LMHeadModel, settings: Settings, log: Log, train_tokens: int, held_out_tokens: int
) -> str:
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        context=model.config.n_positions,
        vocab_size=model.config.vocab_size,
        corpus=CORPUS_NAMES[settings.corpus],
        python=platform.python_version(),
        train_tokens=train_tokens,
        held_out_tokens=held_out_tokens,
        perplexity=math.exp(log[-1]["held_out_loss"]),
        log=table(log),
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", choices=sorted(CORPORA), default="docs")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--waves", action="store_true")
    parser.add_argument("--sink", action="store_true")


def main() -> None:
    flags = vars(arguments(__doc__, steps=5000, add_flags=add_flags))
    output = flags.pop("output")
    settings = Settings(**flags)
    torch.manual_seed(settings.seed)
    train_texts, held_out_texts = split(CORPORA[settings.corpus]())
    tokenizer = train_tokenizer(train_texts, settings)
    tokens = tokenize(tokenizer, train_texts, END_OF_TEXT)
    held_out = tokenize(tokenizer, held_out_texts, END_OF_TEXT)
    model = new_model(settings, tokenizer.vocab[END_OF_TEXT])
    log = train(model, tokens, held_out, settings)
    text = card(model, settings, log, len(tokens), len(held_out))
    save(output, model, tokenizer, text)


if __name__ == "__main__":
    main()
