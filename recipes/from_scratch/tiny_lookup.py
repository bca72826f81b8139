"""Train `tiny-lookup`, the checkpoint that `ctxextend demo` asks, from scratch and offline: a small
GPT-2 that finds words in its text.

The texts are windows of the documentation in Python's standard library (see corpus.py) between
which lines of random words are stated, and asked about later:

    key: value      a needle: asked for `key:`, the model answers `value`
    other: key      a link, which is not asked about

Each word is one token. Each text has other words, so the model can only look them up. To learn that
in a short training run, the position rows are initialised as sinusoids of random frequencies and
the heads as induction heads; all parameters are trained.

    python recipes/from_scratch/tiny_lookup.py OUT_FOLDER [--steps 5000] [--context 128] [--seed 1]

Less than ten minutes on one CPU core. Prints at the end how often the model answers right, by
length.
"""

import argparse
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from corpus import CORPORA, byte_level_bpe, split, tokenize
from mini_bert import rotate
from training import Log, arguments, optimize, save, table

Ids = NDArray[np.int64]

VOCAB_SIZE = 2048
CONTEXT = 128
WIDTH = 128
LAYERS = 3
HEADS = 4
HEAD_SIZE = WIDTH // HEADS
BATCH_TOKENS = 1024
FIRST_LENGTH = 64  # of the texts that training starts with
LINE_TOKENS = 5
ANSWER_WEIGHT = 8.0  # in the loss, relative to other tokens
# The initial sizes of weights. The learning rate is low, so that training improves the induction
# heads instead of forgetting them.
LEARNING_RATE = 5e-4
WEIGHT_SIZE = 0.06
POSITION_GAIN = 0.3
MATCH_GAIN = 2.0
READ_GAIN = 0.35
COPY_GAIN = 2.0
# Texts per length that the model is checked on, and wrong answers that the right one competes with.
CHECKED_TEXTS = 10
RIVALS = 9
MEASURES = ("needle", "key")
END_OF_TEXT = "<|endoftext|>"
SEED = 0  # of the texts that the model is checked on

CARD = """\
# tiny-lookup

A small GPT-2 that finds words in its text: {parameters:,} parameters, {context} learned positions,
a byte-level BPE of {vocab_size:,} tokens.

Trained in {seconds:.0f} seconds with `recipes/from_scratch/tiny_lookup.py` of ctxextend, offline.
The corpus is the documentation of Python's standard library (Python {python}, see corpus.py; Python
Software Foundation License), split by document into {train_tokens:,} training tokens and
{held_out_tokens:,} held-out tokens, with lines of random words between its parts: `key: value`, and
`other: key`, which points to such a line. At the end, one question is asked: `key:`.

How often the right value has a higher logit than {rivals} others (fewer in short texts), in
held-out documents; in brackets, where its line is in the quarter of the text with the fewest right
answers. The others are words that are not in the text (needle) or the values of other lines (key).
The model does not follow links.

{results}

The position rows were initialised as sinusoids of random frequencies and the heads as induction
heads; all parameters were trained. The held-out loss is that of answers.

{log}
"""


@dataclass(frozen=True)
class Words:
    """Tokens that lines are made of: words of at least three letters, with and without a space."""

    newline: int
    colon: int
    bare: Ids  # shape (words,)
    spaced: Ids  # shape (words,)
    pairs: Ids  # words with both tokens: bare and spaced, shape (words, 2)

    def line(self, first: int, second: int) -> list[int]:
        return [self.newline, first, self.colon, second, self.newline]

    def question(self, asked: int) -> list[int]:
        return [self.newline, asked, self.colon]


@dataclass(frozen=True)
class Chain:
    """A needle and its link, as tokens."""

    key: int
    linked_key: int  # the key after a space
    other: int
    value: int


@dataclass(frozen=True)
class Part:
    """Tokens of a text and what each weighs in the loss as a target."""

    ids: list[int]
    weights: list[float]


def find_words(tokenizer: Any) -> Words:
    vocabulary = tokenizer.vocab
    bare = {text: index for text, index in vocabulary.items() if is_word(text)}
    spaced = {
        text[1:]: index
        for text, index in vocabulary.items()
        if text.startswith("Ġ") and is_word(text[1:])
    }
    both = sorted(bare.keys() & spaced.keys())
    return Words(
        newline=vocabulary["Ċ"],
        colon=vocabulary[":"],
        bare=np.array(sorted(bare.values())),
        spaced=np.array(sorted(spaced.values())),
        pairs=np.array([(bare[word], spaced[word]) for word in both]),
    )


def is_word(text: str) -> bool:
    return len(text) >= 3 and text.isascii() and text.isalpha()


def draw(words: Ids, count: int, excluded: Ids, rng: np.random.Generator) -> Ids:
    """Return up to `count` random words that are not excluded."""
    shuffled = rng.permutation(words)
    return shuffled[~np.isin(shuffled, excluded)][:count]


def draw_chains(words: Words, count: int, text: Ids, rng: np.random.Generator) -> list[Chain]:
    """Return up to `count` chains of words that are neither in the text nor in another chain."""
    pairs = rng.permutation(words.pairs)
    pairs = pairs[~np.isin(pairs, text).any(axis=1)][:count]
    others = draw(words.bare, count, np.append(text, pairs[:, 0]), rng)
    values = draw(words.spaced, count, np.append(text, pairs[:, 1]), rng)
    chains = []
    for (key, linked_key), other, value in zip(pairs.tolist(), others, values, strict=False):
        chains.append(Chain(key, linked_key, int(other), int(value)))
    return chains


def random_window(tokens: Ids, length: int, rng: np.random.Generator) -> Ids:
    start = rng.integers(len(tokens) - length)
    return tokens[start : start + length]


# ---- texts to train on


def training_text(words: Words, tokens: Ids, length: int, rng: np.random.Generator) -> Part:
    """Return a text with lines in random order and questions about earlier ones, of which some are
    at its end. Every other text has links.
    """
    window = random_window(tokens, length, rng)
    has_links = rng.random() < 0.5
    tokens_per_chain = LINE_TOKENS * (3 if has_links else 2)
    # Lines and questions take up to 90 % of the text.
    most = int(0.9 * length) // tokens_per_chain
    chains = draw_chains(words, int(rng.integers(2, most + 1)), window, rng)
    parts = list(lines_and_questions(words, chains, has_links, rng))
    rest = window[: length - sum(len(part.ids) for part in parts)]
    # The last part, questions, comes at the end of the text.
    cuts = np.sort(rng.integers(0, len(rest) + 1, len(parts) - 1))
    ids: list[int] = []
    weights: list[float] = []
    for part, piece in zip(parts, np.split(rest, cuts), strict=True):
        ids += piece.tolist() + part.ids
        weights += [1.0] * len(piece) + part.weights
    return Part(ids, weights)


def lines_and_questions(
    words: Words, chains: list[Chain], has_links: bool, rng: np.random.Generator
) -> Iterator[Part]:
    """Yield the needles, links and questions of a text in order; the last part is questions. Each
    needle is asked about at most once.
    """
    lines = rng.permutation(np.repeat(np.arange(len(chains)), 2 if has_links else 1))
    breaks = rng.integers(len(lines), size=rng.integers(3))
    stated: list[int] = []
    unasked: list[int] = []

    def ask(most: int) -> Part:
        # Near needles are asked about more often: otherwise, there are few at each short distance.
        chosen = rng.permutation(unasked[-most:]).astype(int).tolist()
        for number in chosen:
            unasked.remove(number)
        return questions(words, [chains[number] for number in chosen])

    for index, number in enumerate(lines.tolist()):
        if index in breaks:
            yield ask(int(rng.integers(1, 6)))
        chain = chains[number]
        if number in stated:
            yield statement(words.line(chain.other, chain.linked_key))
        else:
            stated.append(number)
            unasked.append(number)
            yield statement(words.line(chain.key, chain.value))
    # Half of the texts end with few questions, so that needles come near the end, too.
    most = 4 if rng.random() < 0.5 else 2 * len(chains) + 1
    yield ask(int(rng.integers(1, most)))


def statement(line: list[int]) -> Part:
    """Return a line whose words cannot be predicted."""
    return Part(line, [1.0, 0.0, 1.0, 0.0, 1.0])


def questions(words: Words, chains: list[Chain]) -> Part:
    """Return questions about needles with their answers."""
    ids: list[int] = []
    weights: list[float] = []
    for chain in chains:
        ids += words.line(chain.key, chain.value)
        weights += [1.0, 0.0, 1.0, ANSWER_WEIGHT, 1.0]
    return Part(ids, weights)


def training_batch(
    words: Words, tokens: Ids, length: int, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts and the weights of their tokens, shapes (texts, length)."""
    texts = [training_text(words, tokens, length, rng) for _ in range(BATCH_TOKENS // length)]
    ids = torch.tensor([text.ids for text in texts])
    weights = torch.tensor([text.weights for text in texts])
    return ids, weights


def text_length(progress: float, context: int, rng: np.random.Generator) -> int:
    """Return the length of a batch's texts: half of the batches have the longest of the time, which
    reaches the context after 40 % of the training.
    """
    grown = min(1.0, max(0.0, (progress - 0.1) / 0.3))
    longest = round(FIRST_LENGTH + (context - FIRST_LENGTH) * grown)
    if rng.random() < 0.5:
        return longest
    return int(rng.integers(FIRST_LENGTH, longest + 1))


# ---- the model


def train_tokenizer(texts: list[str], context: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=byte_level_bpe(texts, VOCAB_SIZE, [END_OF_TEXT]),
        eos_token=END_OF_TEXT,
        model_max_length=context,
    )


def new_model(vocab_size: int, context: int, end: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=context,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        # GPT-2's default of 0.02 is for wider models.
        initializer_range=WEIGHT_SIZE,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = GPT2LMHeadModel(config)
    initialize_heads(model)
    # Stated in the checkpoint, this would make the position rows look untrained: training hardly
    # changes their size.
    model.config.initializer_range = GPT2Config().initializer_range
    return model


@torch.no_grad()
def initialize_heads(model: GPT2LMHeadModel) -> None:
    """Initialise the heads as induction heads (Olsson et al. 2022, arXiv:2209.11895).

    In the first layer, heads 0 and 2 attend to the token before, heads 1 and 3 to the one before
    that; a pair reads the same of it. In later layers, heads attend from a position where the first
    of a pair has read something to one where the second has read the same (a colon after a key to
    the value that follows that key), and pass on what is there.
    """
    frequencies = math.pi * torch.rand(WIDTH // 2)
    positions = model.transformer.wpe.weight
    angles = torch.arange(len(positions))[:, None] * frequencies
    sinusoids = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions.copy_(WEIGHT_SIZE * 2**0.5 * sinusoids)

    layers: Any = model.transformer.h
    first, *later = layers
    distances = torch.tensor([-1, -2] * (HEADS // 2))[:, None, None]
    query = POSITION_GAIN * torch.randn(HEADS, HEAD_SIZE, WIDTH)
    key = rotate(query, distances * frequencies)
    value = WEIGHT_SIZE * torch.randn(HEADS // 2, HEAD_SIZE, WIDTH).repeat_interleave(2, dim=0)
    set_projections(first.attn, query, key, value)
    written = torch.randn(HEADS, HEAD_SIZE, WIDTH) / WIDTH**0.5
    first.attn.c_proj.weight.copy_(READ_GAIN * written.view(WIDTH, WIDTH))

    pairs = MATCH_GAIN * written.view(HEADS // 2, 2, HEAD_SIZE, WIDTH)
    for layer in later:
        value = WEIGHT_SIZE * torch.randn(HEADS, HEAD_SIZE, WIDTH)
        query = pairs[:, 0].repeat(2, 1, 1)
        key = pairs[:, 1].repeat(2, 1, 1)
        set_projections(layer.attn, query, key, value)
        layer.attn.c_proj.weight.copy_(COPY_GAIN * value.view(WIDTH, WIDTH))


def set_projections(
    attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Set the weights of the projections, each of shape (heads, head size, width)."""
    rows = [projection.reshape(WIDTH, WIDTH) for projection in (query, key, value)]
    attention.c_attn.weight.copy_(torch.cat(rows).T)


def weighted_loss(model: GPT2LMHeadModel, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean loss of the tokens after the first; only those with a weight go
    through the head.
    """
    weights = weights[:, 1:]
    is_target = weights > 0
    hidden = model.transformer(input_ids=ids).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[is_target])
    losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:][is_target], reduction="none")
    weights = weights[is_target]
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def answer_loss(model: GPT2LMHeadModel, words: Words, held_out: Ids) -> float:
    """Return the mean loss in nats per answer, in texts of the context length."""
    context = model.config.n_positions
    rng = np.random.default_rng(SEED)
    losses: list[float] = []
    for _ in range(8):
        ids, weights = training_batch(words, held_out, context, rng)
        is_answer = weights == ANSWER_WEIGHT
        losses.append(weighted_loss(model, ids, is_answer.float()).item())
    return sum(losses) / len(losses)


def train(
    model: GPT2LMHeadModel, words: Words, tokens: Ids, held_out: Ids, args: argparse.Namespace
) -> Log:
    rng = np.random.default_rng(args.seed)

    def loss(step: int) -> torch.Tensor:
        length = text_length(step / args.steps, args.context, rng)
        ids, weights = training_batch(words, tokens, length, rng)
        return weighted_loss(model, ids, weights)

    def measured() -> float:
        return answer_loss(model, words, held_out)

    return optimize(model, loss, measured, args.steps, learning_rate=LEARNING_RATE)


# ---- check


@torch.no_grad()
def accuracies(model: GPT2LMHeadModel, words: Words, held_out: Ids, length: int) -> NDArray[Any]:
    """Return the share of right answers by measure and quarter of the text, shape (2, 4)."""
    rng = np.random.default_rng((SEED, length))
    right = np.zeros((len(MEASURES), 4))
    asked = np.zeros(4)
    for _ in range(CHECKED_TEXTS):
        checked = checked_text(words, held_out, length, rng)
        count = len(checked.chains)
        quarters = np.arange(count) * 4 // count
        np.add.at(asked, quarters, 1)
        results = check(model, words, checked)
        for row, is_right in zip(right, results, strict=True):
            np.add.at(row, quarters, is_right)
    return right / asked


@dataclass(frozen=True)
class CheckedText:
    """A text without its question, its chains in order, and the values that it does not have."""

    ids: list[int]
    chains: list[Chain]
    absent: Ids


def checked_text(words: Words, held_out: Ids, length: int, rng: np.random.Generator) -> CheckedText:
    """Return a text with as many chains as fit into 60 % of it, 4 to 10. The needles are spread
    evenly, and each link is somewhere after its needle.
    """
    question = len(words.question(words.colon))
    most = min(RIVALS + 1, max(4, int(0.6 * length) // (2 * LINE_TOKENS)))
    window = random_window(held_out, length - question - 2 * LINE_TOKENS * most, rng)
    chains = draw_chains(words, most, window, rng)
    lines: list[tuple[float, list[int]]] = []
    for index, chain in enumerate(chains):
        depth = (index + 0.5) / len(chains)
        lines.append((depth, words.line(chain.key, chain.value)))
        lines.append((rng.uniform(depth, 1), words.line(chain.other, chain.linked_key)))
    lines.sort()
    ids: list[int] = []
    start = 0
    for depth, line in lines:
        end = round(depth * len(window))
        ids += window[start:end].tolist() + line
        start = end
    ids += window[start:].tolist()
    absent = draw(words.spaced, RIVALS, np.array(ids), rng)
    return CheckedText(ids, chains, absent)


def check(
    model: GPT2LMHeadModel, words: Words, text: CheckedText
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each chain whether its value has a higher logit than words that are not in the
    text, and than values of other chains.
    """
    values = [chain.value for chain in text.chains]
    texts = [text.ids + words.question(chain.key) for chain in text.chains]
    logits = model(input_ids=torch.tensor(texts)).logits[:, -1]
    right = logits[:, values].diagonal()
    absent = logits[:, text.absent]
    others = logits[:, values].fill_diagonal_(-math.inf)
    return right > absent.amax(dim=1), right > others.amax(dim=1)


def accuracy_table(model: GPT2LMHeadModel, words: Words, held_out: Ids) -> str:
    """Return the accuracies at half the context or more as a Markdown table."""
    model.train(False)
    lines = ["| tokens | needle | key |", "|---:|---:|---:|"]
    for quarter in (2, 3, 4):
        length = model.config.n_positions * quarter // 4
        shares = accuracies(model, words, held_out, length)
        cells = [f"{share.mean():.0%} ({share.min():.0%})" for share in shares]
        lines.append(f"| {length} | {' | '.join(cells)} |")
    return "\n".join(lines)


def card(
    model: GPT2LMHeadModel, results: str, seconds: float, log: Log, tokens: Ids, held_out: Ids
) -> str:
    return CARD.format(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        context=model.config.n_positions,
        vocab_size=model.config.vocab_size,
        seconds=seconds,
        python=platform.python_version(),
        train_tokens=len(tokens),
        held_out_tokens=len(held_out),
        rivals=RIVALS,
        results=results,
        log=table(log),
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--seed", type=int, default=1)


def main() -> None:
    args = arguments(__doc__, steps=5000, add_flags=add_flags)
    start = time.monotonic()
    torch.manual_seed(args.seed)
    train_texts, held_out_texts = split(CORPORA["docs"]())
    tokenizer = train_tokenizer(train_texts, args.context)
    tokens = tokenize(tokenizer, train_texts, END_OF_TEXT).numpy()
    held_out = tokenize(tokenizer, held_out_texts, END_OF_TEXT).numpy()
    words = find_words(tokenizer)
    model = new_model(len(tokenizer), args.context, tokenizer.vocab[END_OF_TEXT])
    log = train(model, words, tokens, held_out, args)
    seconds = time.monotonic() - start
    results = accuracy_table(model, words, held_out)
    print(f"{results}\n{seconds:.0f} seconds", flush=True)
    save(args.output, model, tokenizer, card(model, results, seconds, log, tokens, held_out))


if __name__ == "__main__":
    main()
