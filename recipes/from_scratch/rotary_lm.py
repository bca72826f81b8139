"""Train `rotary-lm`, a small Llama, from scratch and offline.

The corpus is the code of Python's standard library, whose documents are far longer than the
context; see corpus.py. Nine of the 16 frequencies of a head never complete a turn within the
context of 256, as most of a Llama's never do.

    python recipes/from_scratch/rotary_lm.py OUT_FOLDER [--steps 4000] [--corpus docs] [--context
    128] [--seed 1]

About a quarter of an hour on one CPU core.
"""

import argparse
import math
import platform
from itertools import pairwise

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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

VOCAB_SIZE = 512
WIDTH = 128
LAYERS = 4
HEADS = 4
BATCH = 8
END_OF_TEXT = "<|endoftext|>"
SEED = 0

CARD = """\
# rotary-lm

A small Llama with rotary positions: {parameters:,} parameters, a trained length of {context}, a
byte-level BPE of {vocab_size:,} tokens.

Trained with `recipes/from_scratch/rotary_lm.py` of ctxextend, offline. The corpus is the {corpus}
of Python's standard library (Python {python}, see corpus.py; Python Software Foundation License):
{train_tokens:,} training tokens and {held_out_tokens:,} held-out tokens, split by document.

Held-out perplexity per token, windows of {context} tokens: **{perplexity:.2f}**. By position in the
window:

{bands}

{log}
"""


def train_tokenizer(texts: list[str], context: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=byte_level_bpe(texts, VOCAB_SIZE, [END_OF_TEXT]),
        eos_token=END_OF_TEXT,
        model_max_length=context,
    )


def new_model(context: int, end: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=context,
        hidden_size=WIDTH,
        intermediate_size=5 * WIDTH // 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        # Llama's default of 0.02 is for wider models.
        initializer_range=0.05,
        bos_token_id=end,
        eos_token_id=end,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def held_out_losses(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token in nats, on windows of the trained length, shape (windows,
    context - 1).
    """
    model.train(False)
    windows = whole_windows(tokens, model.config.max_position_embeddings)
    losses: list[torch.Tensor] = []
    for batch in torch.split(windows, 64):
        logits = model(input_ids=batch).logits[:, :-1].transpose(1, 2)
        targets = batch[:, 1:]
        losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    model.train()
    return torch.cat(losses)


def train(
    model: LlamaForCausalLM, tokens: torch.Tensor, held_out: torch.Tensor, args: argparse.Namespace
) -> Log:
    generator = torch.Generator().manual_seed(args.seed)

    def loss(step: int) -> torch.Tensor:
        batch = random_windows(tokens, BATCH, args.context, generator)
        result: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return result

    def held_out_loss() -> float:
        return held_out_losses(model, held_out).mean().item()

    return optimize(model, loss, held_out_loss, args.steps, learning_rate=2e-3)


def position_table(losses: torch.Tensor) -> str:
    """Return the perplexity by position as a Markdown table: the first eighth, and then doubling
    bands.
    """
    context = losses.shape[1] + 1
    ends = [context * share // 8 for share in (0, 1, 2, 4, 8)]
    lines = ["| positions | perplexity |", "|---|---:|"]
    for start, end in pairwise(ends):
        # The loss at index t is that of position t + 1; position 0 has none.
        band = losses[:, max(0, start - 1) : end - 1]
        perplexity = band.mean().exp().item()
        lines.append(f"| {start} to {end - 1} | {perplexity:.2f} |")
    return "\n".join(lines)


def card(
    model: LlamaForCausalLM, corpus: str, log: Log, tokens: torch.Tensor, held_out: torch.Tensor
) -> str:
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        context=model.config.max_position_embeddings,
        vocab_size=VOCAB_SIZE,
        corpus=CORPUS_NAMES[corpus],
        python=platform.python_version(),
        train_tokens=len(tokens),
        held_out_tokens=len(held_out),
        perplexity=math.exp(log[-1]["held_out_loss"]),
        bands=position_table(held_out_losses(model, held_out)),
        log=table(log),
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--corpus", choices=sorted(CORPORA), default="code")


def main() -> None:
    args = arguments(__doc__, steps=4000, add_flags=add_flags)
    torch.manual_seed(args.seed)
    train_texts, held_out_texts = split(CORPORA[args.corpus]())
    tokenizer = train_tokenizer(train_texts, args.context)
    tokens = tokenize(tokenizer, train_texts, END_OF_TEXT)
    held_out = tokenize(tokenizer, held_out_texts, END_OF_TEXT)
    model = new_model(args.context, tokenizer.vocab[END_OF_TEXT])
    log = train(model, tokens, held_out, args)
    text = card(model, args.corpus, log, tokens, held_out)
    save(args.output, model, tokenizer, text)


if __name__ == "__main__":
    main()
