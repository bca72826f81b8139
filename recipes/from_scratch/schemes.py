"""Train one small language model for each position scheme from scratch and offline: learned,
sinusoidal, rotary, ALiBi.

All have the same width, depth, tokenizer, text and order of batches; their architectures are those
of GPT-2, XGLM, GPT-NeoX and BLOOM. The corpus is the code of Python's standard library; see
corpus.py.

    python recipes/from_scratch/schemes.py OUT_FOLDER [--only NAME] [--steps 4000] [--context 128]
    [--seed 28]

Writes one folder per scheme. About a quarter of an hour each on one CPU core.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    XGLMConfig,
    XGLMForCausalLM,
)

from corpus import programs, random_windows, split, tokenize, whole_windows
from rotary_lm import END_OF_TEXT, VOCAB_SIZE, train_tokenizer
from training import Log, arguments, optimize, save, table

WIDTH = 128
LAYERS = 4
HEADS = 4
BATCH_TOKENS = 2048
SEED = 28

CARD = """\
# {scheme}-lm

A small language model with {scheme} positions: {parameters:,} parameters, a context length of
{context}. Trained with `recipes/from_scratch/schemes.py` of ctxextend, offline, on the code of
Python's standard library (Python Software Foundation License). Held-out perplexity per token,
windows of {context} tokens: **{perplexity:.2f}**.

{log}
"""


def learned(context: int, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": context,
    }
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(vocab_size=VOCAB_SIZE, **sizes, **dropout, **ids)
    return GPT2LMHeadModel(config)


def sinusoidal(context: int, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "d_model": WIDTH,
        "ffn_dim": 4 * WIDTH,
        "num_layers": LAYERS,
        "attention_heads": HEADS,
    }
    dropout: dict[str, Any] = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "layerdrop": 0.0,
    }
    config = XGLMConfig(
        vocab_size=VOCAB_SIZE, max_position_embeddings=context, **sizes, **dropout, **ids
    )
    return XGLMForCausalLM(config)


def rotary(context: int, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
    }
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    config = GPTNeoXConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=context,
        num_attention_heads=HEADS,
        rope_parameters=rope,
        use_parallel_residual=False,
        tie_word_embeddings=True,
        **sizes,
        **ids,
    )
    return GPTNeoXForCausalLM(config)


def alibi(context: int, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "seq_length": context,
    }
    config = BloomConfig(vocab_size=VOCAB_SIZE, **sizes, **ids)
    return BloomForCausalLM(config)


SCHEMES: dict[str, Callable[[int, dict[str, Any]], Any]] = {
    "learned": learned,
    "sinusoidal": sinusoidal,
    "rotary": rotary,
    "ALiBi": alibi,
}


@torch.no_grad()
def held_out_loss(model: Any, windows: torch.Tensor) -> float:
    """Return the mean loss in nats per token on windows of the context length, shape (windows,
    context).
    """
    model.train(False)
    total = 0.0
    for batch in torch.split(windows, 64):
        total += model(input_ids=batch, labels=batch).loss * len(batch)
    model.train()
    return float(total) / len(windows)


def train(model: Any, tokens: torch.Tensor, windows: torch.Tensor, args: argparse.Namespace) -> Log:
    generator = torch.Generator().manual_seed(args.seed)

    def loss(step: int) -> torch.Tensor:
        count = BATCH_TOKENS // args.context
        batch = random_windows(tokens, count, args.context, generator)
        result: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return result

    def measured() -> float:
        return held_out_loss(model, windows)

    return optimize(model, loss, measured, args.steps, learning_rate=2e-3)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=SCHEMES)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=SEED)


def main() -> None:
    args = arguments(__doc__, steps=4000, add_flags=add_flags)
    train_texts, held_out_texts = split(programs())
    tokenizer = train_tokenizer(train_texts, args.context)
    tokens = tokenize(tokenizer, train_texts, END_OF_TEXT)
    held_out = tokenize(tokenizer, held_out_texts, END_OF_TEXT)
    end = tokenizer.vocab[END_OF_TEXT]
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    windows = whole_windows(held_out, args.context)
    schemes = list(SCHEMES)
    if args.only:
        schemes = [args.only]

    for scheme in schemes:
        torch.manual_seed(args.seed)
        model = SCHEMES[scheme](args.context, ids)
        log = train(model, tokens, windows, args)
        card = CARD.format(
            scheme=scheme,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            context=args.context,
            perplexity=math.exp(log[-1]["held_out_loss"]),
            log=table(log),
        )
        save(args.output / scheme.lower(), model, tokenizer, card)


if __name__ == "__main__":
    main()
