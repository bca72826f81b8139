"""Train `mini-bert`, a small BERT whose masked-language head works, from nothing and offline.

The corpus is the documentation in Python's own standard library; see corpus.py. So that word order is within reach of
a short training, the position rows start as waves of random frequencies and the heads looking at near tokens; from
there on everything is learned.

    python recipes/from_scratch/mini_bert.py OUT_FOLDER [--steps 3500] [--corpus code] [--seed 1]

About seven minutes on one CPU core.
"""

import argparse
import math
import platform
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from corpus import CORPORA, CORPUS_NAMES, byte_level_bpe, random_windows, split, tokenize, whole_windows
from training import Log, arguments, optimize, save, table

CONTEXT = 128
VOCABULARY = 260
WIDTH = 128
BATCH = 8
MASKED_SHARE = 0.15
# How far from its own token each head of a layer looks before training.
DISTANCES = [-1, 1, -2, 2]
PAD, CLS, SEP, MASK = SPECIAL_TOKENS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
PAD_ID, CLS_ID, SEP_ID, MASK_ID = range(4)
SEED = 0

CARD = """\
---
license: other
license_name: psf-2.0
language: en
library_name: transformers
pipeline_tag: fill-mask
tags: [bert, ctxextend]
---
# mini-bert

A small BERT whose masked-language head works: {parameters:,} parameters, {context} learned positions and
a vocabulary of bytes, {vocabulary:,} tokens with [PAD], [CLS], [SEP] and [MASK].

Made by `recipes/from_scratch/mini_bert.py` of ctxextend, offline. The corpus is the {corpus} of Python's
standard library (Python {python}, see corpus.py; Python Software Foundation License):
{train_tokens:,} tokens to train on and {held_out_tokens:,} held out, document by document.

Held-out perplexity per masked token, 15 % of the tokens of whole windows masked: **{perplexity:.2f}**. The same
tokens have a perplexity of {unigram:.2f} under their frequencies alone, and of {permuted:.2f} under this model with
the rows of its position table in random order.

The position rows started as waves of random frequencies and the heads looking one or two tokens to either side; the
rest started from noise, and all of it was trained.

{log}
"""


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = byte_level_bpe(texts, VOCABULARY, SPECIAL_TOKENS)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, CLS_ID), (SEP, SEP_ID)],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        model_max_length=CONTEXT,
    )


def new_model() -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=len(DISTANCES),
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # BERT's own 0.02 is meant for wider models.
        initializer_range=0.05,
        pad_token_id=PAD_ID,
    )
    model = BertForMaskedLM(config)
    start_order(model)
    return model


@torch.no_grad()
def start_order(model: BertForMaskedLM) -> None:
    """Start the position rows as waves, and each head looking at the token at a distance of its own."""
    frequencies = math.pi * CONTEXT ** -torch.rand(WIDTH // 2)
    angles = torch.arange(CONTEXT)[:, None] * frequencies
    model.bert.embeddings.position_embeddings.weight.copy_(0.1 * torch.cat([angles.cos(), angles.sin()], dim=1))
    layers: Any = model.bert.encoder.layer
    for layer in layers:
        query = 0.09 * torch.randn(len(DISTANCES), WIDTH // len(DISTANCES), WIDTH)
        key = turned(query, torch.tensor(DISTANCES)[:, None, None] * frequencies)
        layer.attention.self.query.weight.copy_(query.view(WIDTH, WIDTH))
        layer.attention.self.key.weight.copy_(key.view(WIDTH, WIDTH))


def turned(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn what reads one position's waves into what reads the same from the waves of another, `angles` further."""
    cosines, sines = rows.chunk(2, dim=-1)
    return torch.cat(
        [cosines * angles.cos() - sines * angles.sin(), cosines * angles.sin() + sines * angles.cos()], dim=-1
    )


def framed(windows: torch.Tensor) -> torch.Tensor:
    """Put [CLS] before and [SEP] after each window, shape (windows, CONTEXT)."""
    return torch.nn.functional.pad(torch.nn.functional.pad(windows, (1, 0), value=CLS_ID), (0, 1), value=SEP_ID)


def masked(tokens: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the model reads and which tokens it is to tell: of these 80 % masked, 10 % replaced, 10 % kept."""
    chosen = (torch.rand(tokens.shape, generator=generator) < MASKED_SHARE) & (tokens > MASK_ID)
    fate = torch.rand(tokens.shape, generator=generator)
    others = torch.randint(len(SPECIAL_TOKENS), VOCABULARY, tokens.shape, generator=generator)
    read = torch.where(chosen & (fate < 0.8), MASK_ID, tokens)
    return torch.where(chosen & (fate >= 0.9), others, read), chosen


def masked_loss(model: BertForMaskedLM, read: torch.Tensor, tokens: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over the chosen tokens, which alone go through the head."""
    hidden = model.bert(input_ids=read).last_hidden_state
    return torch.nn.functional.cross_entropy(model.cls(hidden[chosen]), tokens[chosen])


def held_out_sample(held_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = framed(whole_windows(held_out, CONTEXT - 2))
    read, chosen = masked(tokens, torch.Generator().manual_seed(SEED))
    return read, tokens, chosen


@torch.no_grad()
def held_out_loss(model: BertForMaskedLM, held_out: torch.Tensor) -> float:
    """Return the mean negative log-likelihood in nats per masked token over whole windows."""
    model.train(False)
    total, count = 0.0, 0
    for read, tokens, chosen in zip(*(torch.split(part, 64) for part in held_out_sample(held_out)), strict=True):
        total += masked_loss(model, read, tokens, chosen).item() * int(chosen.sum())
        count += int(chosen.sum())
    model.train()
    return total / count


@torch.no_grad()
def permuted_loss(model: BertForMaskedLM, held_out: torch.Tensor) -> float:
    """Return the held-out loss with the rows of the position table in random order."""
    rows = model.bert.embeddings.position_embeddings.weight
    trained = rows.clone()
    rows.copy_(trained[torch.randperm(CONTEXT, generator=torch.Generator().manual_seed(SEED))])
    loss = held_out_loss(model, held_out)
    rows.copy_(trained)
    return loss


def unigram_loss(tokens: torch.Tensor, held_out: torch.Tensor) -> float:
    """Return the loss of the masked held-out tokens under the frequencies of the ordinary tokens."""
    counts = 1.0 + torch.bincount(tokens[tokens > MASK_ID], minlength=VOCABULARY)
    _, whole, chosen = held_out_sample(held_out)
    return -(counts / counts.sum()).log()[whole[chosen]].mean().item()


def train(model: BertForMaskedLM, tokens: torch.Tensor, held_out: torch.Tensor, typed: argparse.Namespace) -> Log:
    generator = torch.Generator().manual_seed(typed.seed)

    def loss(step: int) -> torch.Tensor:
        windows = framed(random_windows(tokens, BATCH, CONTEXT - 2, generator))
        read, chosen = masked(windows, generator)
        return masked_loss(model, read, windows, chosen)

    return optimize(model, loss, lambda: held_out_loss(model, held_out), typed.steps, learning_rate=1e-3)


def card(model: BertForMaskedLM, corpus: str, log: Log, tokens: torch.Tensor, held_out: torch.Tensor) -> str:
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        context=CONTEXT,
        vocabulary=VOCABULARY,
        corpus=CORPUS_NAMES[corpus],
        python=platform.python_version(),
        train_tokens=len(tokens),
        held_out_tokens=len(held_out),
        perplexity=math.exp(log[-1]["held_out_loss"]),
        unigram=math.exp(unigram_loss(tokens, held_out)),
        permuted=math.exp(permuted_loss(model, held_out)),
        log=table(log),
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--corpus", choices=sorted(CORPORA), default="docs")


def main() -> None:
    typed = arguments(__doc__, steps=3500, add_flags=add_flags)
    torch.manual_seed(typed.seed)
    learned, kept = split(CORPORA[typed.corpus]())
    tokenizer = train_tokenizer(learned)
    tokens, held_out = (tokenize(tokenizer, texts, SEP) for texts in (learned, kept))
    model = new_model()
    log = train(model, tokens, held_out, typed)
    save(typed.output, model, tokenizer, card(model, typed.corpus, log, tokens, held_out))


if __name__ == "__main__":
    main()
