"""Train `mini-bert`, a small BERT with a masked language modelling head, from scratch and offline.

The corpus is the documentation in Python's standard library; see corpus.py. To learn word order in
a short training run, the position rows are initialised as sinusoids of random frequencies and the
heads to attend to near tokens; all parameters are trained.

    python recipes/from_scratch/mini_bert.py OUT_FOLDER [--steps 3500] [--corpus code] [--seed 1]

With --roberta, it is a RoBERTa of the same size, whose first position row is that of padding.
About seven minutes on one CPU core.
"""

import argparse
import math
import platform
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

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

CONTEXT = 128
VOCAB_SIZE = 260
WIDTH = 128
BATCH = 8
MASK_PROBABILITY = 0.15
# The relative position that each head of a layer attends to before training.
DISTANCES = [-1, 1, -2, 2]
PAD, CLS, SEP, MASK = SPECIAL_TOKENS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
PAD_ID, CLS_ID, SEP_ID, MASK_ID = range(4)
SEED = 0

Model = BertForMaskedLM | RobertaForMaskedLM

CARD = """\
# mini-bert

A small model of type {architecture} with a trained masked language modelling head: {parameters:,}
parameters, {context} learned positions and a byte vocabulary, {vocab_size:,} tokens with [PAD],
[CLS], [SEP] and [MASK].

Trained with `recipes/from_scratch/mini_bert.py` of ctxextend, offline. The corpus is the {corpus}
of Python's standard library (Python {python}, see corpus.py; Python Software Foundation License):
{train_tokens:,} training tokens and {held_out_tokens:,} held-out tokens, split by document.

Held-out perplexity per masked token, with 15 % of the tokens masked: **{perplexity:.2f}**. A
unigram model has a perplexity of {unigram:.2f} on the same tokens, and this model with its position
rows in random order {permuted:.2f}.

The position rows were initialised as sinusoids of random frequencies and the heads to attend one or
two tokens to either side; all parameters were trained.

{log}
"""


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = byte_level_bpe(texts, VOCAB_SIZE, SPECIAL_TOKENS)
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


def new_model(*, roberta: bool = False) -> Model:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": len(DISTANCES),
        "intermediate_size": 4 * WIDTH,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        # BERT's default of 0.02 is for wider models.
        "initializer_range": 0.05,
        "pad_token_id": PAD_ID,
    }
    model: Model
    if roberta:
        settings["max_position_embeddings"] += PAD_ID + 1
        special: dict[str, Any] = {"bos_token_id": CLS_ID, "eos_token_id": SEP_ID}
        model = RobertaForMaskedLM(RobertaConfig(**settings, **special))
    else:
        model = BertForMaskedLM(BertConfig(**settings))
    initialize_positions(model)
    return model


def rows_of(model: Model) -> torch.Tensor:
    """Return the position rows without reserved ones, shape (CONTEXT, WIDTH)."""
    base: Any = model.base_model
    rows: torch.Tensor = base.embeddings.position_embeddings.weight
    return rows[-CONTEXT:]


@torch.no_grad()
def initialize_positions(model: Model) -> None:
    """Initialise the position rows as sinusoids, and each head to attend to one relative
    position.
    """
    frequencies = math.pi * CONTEXT ** -torch.rand(WIDTH // 2)
    angles = torch.arange(CONTEXT)[:, None] * frequencies
    sinusoids = torch.cat([angles.cos(), angles.sin()], dim=1)
    rows_of(model).copy_(0.1 * sinusoids)

    heads = len(DISTANCES)
    distances = torch.tensor(DISTANCES)[:, None, None]
    base: Any = model.base_model
    for layer in base.encoder.layer:
        attention = layer.attention.self
        query = 0.09 * torch.randn(heads, WIDTH // heads, WIDTH)
        key = rotate(query, distances * frequencies)
        attention.query.weight.copy_(query.view(WIDTH, WIDTH))
        attention.key.weight.copy_(key.view(WIDTH, WIDTH))


def rotate(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate projections of one position's sinusoids to match those of a position `angles`
    further.
    """
    cosines, sines = rows.chunk(2, dim=-1)
    rotated_cosines = cosines * angles.cos() - sines * angles.sin()
    rotated_sines = cosines * angles.sin() + sines * angles.cos()
    return torch.cat([rotated_cosines, rotated_sines], dim=-1)


def add_special_tokens(windows: torch.Tensor) -> torch.Tensor:
    """Add [CLS] before and [SEP] after each window; return shape (windows, CONTEXT)."""
    with_start = torch.nn.functional.pad(windows, (1, 0), value=CLS_ID)
    return torch.nn.functional.pad(with_start, (0, 1), value=SEP_ID)


def mask_tokens(
    tokens: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input ids and a mask of the targets: 80 % of them masked, 10 % replaced, 10 %
    kept.
    """
    is_drawn = torch.rand(tokens.shape, generator=generator) < MASK_PROBABILITY
    is_target = is_drawn & (tokens > MASK_ID)
    draw = torch.rand(tokens.shape, generator=generator)
    random_ids = torch.randint(len(SPECIAL_TOKENS), VOCAB_SIZE, tokens.shape, generator=generator)
    input_ids = torch.where(is_target & (draw < 0.8), MASK_ID, tokens)
    input_ids = torch.where(is_target & (draw >= 0.9), random_ids, input_ids)
    return input_ids, is_target


def masked_loss(
    model: Model, input_ids: torch.Tensor, tokens: torch.Tensor, is_target: torch.Tensor
) -> torch.Tensor:
    """Return the mean loss over the targets; only these go through the head."""
    hidden = model.base_model(input_ids=input_ids).last_hidden_state
    head = model.lm_head if isinstance(model, RobertaForMaskedLM) else model.cls
    logits = head(hidden[is_target])
    return torch.nn.functional.cross_entropy(logits, tokens[is_target])


def held_out_sample(held_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = add_special_tokens(whole_windows(held_out, CONTEXT - 2))
    input_ids, is_target = mask_tokens(tokens, torch.Generator().manual_seed(SEED))
    return input_ids, tokens, is_target


@torch.no_grad()
def held_out_loss(model: Model, held_out: torch.Tensor) -> float:
    """Return the mean loss in nats per masked token."""
    model.train(False)
    total = 0.0
    count = 0
    batches = (torch.split(part, 64) for part in held_out_sample(held_out))
    for input_ids, tokens, is_target in zip(*batches, strict=True):
        targets = int(is_target.sum())
        loss = masked_loss(model, input_ids, tokens, is_target)
        total += loss.item() * targets
        count += targets
    model.train()
    return total / count


@torch.no_grad()
def permuted_loss(model: Model, held_out: torch.Tensor) -> float:
    """Return the held-out loss with the position rows in random order."""
    rows = rows_of(model)
    trained = rows.clone()
    order = torch.randperm(CONTEXT, generator=torch.Generator().manual_seed(SEED))
    rows.copy_(trained[order])
    loss = held_out_loss(model, held_out)
    rows.copy_(trained)
    return loss


def unigram_loss(tokens: torch.Tensor, held_out: torch.Tensor) -> float:
    """Return the loss of a unigram model on the masked held-out tokens."""
    counts = 1.0 + torch.bincount(tokens[tokens > MASK_ID], minlength=VOCAB_SIZE)
    losses = -(counts / counts.sum()).log()
    _, targets, is_target = held_out_sample(held_out)
    return losses[targets[is_target]].mean().item()


def train(
    model: Model, tokens: torch.Tensor, held_out: torch.Tensor, args: argparse.Namespace
) -> Log:
    generator = torch.Generator().manual_seed(args.seed)

    def loss(step: int) -> torch.Tensor:
        texts = random_windows(tokens, BATCH, CONTEXT - 2, generator)
        windows = add_special_tokens(texts)
        input_ids, is_target = mask_tokens(windows, generator)
        return masked_loss(model, input_ids, windows, is_target)

    def measured() -> float:
        return held_out_loss(model, held_out)

    return optimize(model, loss, measured, args.steps, learning_rate=1e-3)


def card(model: Model, corpus: str, log: Log, tokens: torch.Tensor, held_out: torch.Tensor) -> str:
    return CARD.format(
        architecture=model.config.model_type,
        parameters=sum(p.numel() for p in model.parameters()),
        context=CONTEXT,
        vocab_size=VOCAB_SIZE,
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
    parser.add_argument("--roberta", action="store_true")


def main() -> None:
    args = arguments(__doc__, steps=3500, add_flags=add_flags)
    torch.manual_seed(args.seed)
    train_texts, held_out_texts = split(CORPORA[args.corpus]())
    tokenizer = train_tokenizer(train_texts)
    tokens = tokenize(tokenizer, train_texts, SEP)
    held_out = tokenize(tokenizer, held_out_texts, SEP)
    model = new_model(roberta=args.roberta)
    log = train(model, tokens, held_out, args)
    text = card(model, args.corpus, log, tokens, held_out)
    save(args.output, model, tokenizer, text, task="fill-mask")


if __name__ == "__main__":
    main()
