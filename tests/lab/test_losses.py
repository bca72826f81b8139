"""Losses compared with logits of transformers, one forward pass per token; and rejected models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ctxextend import evaluate
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.lab import losses as losses_module
from ctxextend.lab.embedding import open_embedder
from ctxextend.lab.eval_model import ENCODER, EvalModel, check_vocabulary, open_eval_model
from ctxextend.lab.losses import Targets, all_targets, late_targets
from ctxextend.lab.measures.context import context
from ctxextend.lab.measures.position import position
from ctxextend.lab.reader import Reader
from ctxextend.lab.scorer import ScoredWindow, Scorer, open_scorer
from ctxextend.lab.scores import ONE_PASS, SEPARATE, SLIDING, Score, select
from ctxextend.lab.texts import Texts
from ctxextend.resizing import resize
from ctxextend.settings import CheckpointRef
from tests.helpers.pico import Pico, add_tensors, edit_json
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

Make = Callable[..., Pico]
TEXT = np.random.default_rng(3).integers(5, 32, 32)
CLS, SEP, MASK = 2, 3, 4
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
# Models with unusual LM heads: two concatenated matrices, a projection before the head, a separate
# bias after it.
UNUSUAL: dict[str, dict[str, Any]] = {
    "mobilebert": {"embedding_size": 8, "intra_bottleneck_size": 8},
    "opt": {"ffn_dim": 16, "word_embed_proj_dim": 4},
    "albert": {"embedding_size": 4},
    "esm": {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "absolute"},
    "big_bird": {"block_size": 2, "num_random_blocks": 1},
}


def load_model(folder: Path) -> EvalModel:
    add_tokenizer(folder, special_tokens="gpt2" not in folder.name)
    return open_eval_model(CheckpointRef(str(folder)))


def make_unusual(folder: Path, name: str, positions: int = 16) -> EvalModel:
    torch.manual_seed(0)
    lengths = {"intermediate_size": 16, "max_position_embeddings": positions}
    sizes = SIZES | lengths | UNUSUAL[name]
    config = transformers.AutoConfig.for_model(name, **sizes)
    auto: Any = transformers.AutoModelForMaskedLM
    if name == "opt":
        auto = transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    return load_model(folder)


def random_window(generator: np.random.Generator, length: int) -> ScoredWindow:
    """Return a window that scores its ends, and one token twice, with random labels."""
    input_ids = generator.integers(5, 32, length)
    outputs = np.array([0, length - 1, 3, 3])
    labels = generator.integers(5, 32, 4)
    return ScoredWindow(input_ids, outputs, labels)


def log_probabilities(model: EvalModel, input_ids: Any) -> Any:
    """Return the log-probabilities that transformers computes, (tokens, vocabulary)."""
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor(input_ids)[None]).logits[0]
    return logits.log_softmax(-1).numpy()


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", *UNUSUAL])
def test_scorer_losses_equal_logits_of_transformers(
    name: str, make_pico: Make, tmp_path: Path
) -> None:
    if name in UNUSUAL:
        model = make_unusual(tmp_path / name, name)
    else:
        model = load_model(make_pico(name).folder)
    generator = np.random.default_rng(0)
    windows = [random_window(generator, length) for length in (9, 12, 9, 12, 9)]

    scorer = open_scorer(model, 2)
    found = list(scorer.losses(windows))

    assert scorer.has_separate_head == (name not in ("mobilebert", "esm"))
    for window, losses in zip(windows, found, strict=True):
        scores = log_probabilities(model, window.input_ids)
        expected = -scores[window.outputs, window.labels]
        np.testing.assert_allclose(losses, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scorer_computes_logits_in_chunks(
    dtype: torch.dtype, make_pico: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(make_pico("bert").folder)
    model.model.to(dtype)
    scorer = Scorer(model, None, True)
    ids = np.random.default_rng(2).integers(5, 32, 16)
    window = ScoredWindow(ids, np.arange(15), ids[1:])
    expected = scorer.losses([window])[0]
    sizes: list[int] = []

    def note_size(head: Any, states: Any, logits: torch.Tensor) -> None:
        sizes.append(len(logits))

    monkeypatch.setattr("ctxextend.lab.scorer.MAX_LOGITS", 4 * 32)
    model.model.get_output_embeddings().register_forward_hook(note_size)
    found = scorer.losses([window])[0]

    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    chunks = [size for size in sizes if size != 1]
    assert chunks == [4, 4, 4, 3]


def test_scorer_resets_attention_type_of_big_bird(tmp_path: Path) -> None:
    model = make_unusual(tmp_path, "big_bird", positions=64)
    scorer = open_scorer(model)
    for length, attention in ((10, "original_full"), (64, "block_sparse"), (10, "original_full")):
        window = ScoredWindow(np.full(length, 5), np.array([1]), np.array([6]))
        scorer.losses([window])
        assert model.model.base_model.attention_type == attention


# ---- by position and by context


@dataclass(frozen=True)
class Pair:
    """A model of 32 positions and its base of 16, which read the same windows."""

    model: EvalModel
    base: EvalModel
    texts: Texts

    def scores(self) -> list[Score]:
        readers = [self.texts.base, Reader("model", self.model)]
        scores = list[Score]()
        for reader in readers:
            assert reader is not None
            for measure in (position, context):
                scores += measure.scores(reader, self.texts)
        return scores


def open_pair(make_pico: Make, name: str, lengths: tuple[int, ...], *windows: Any) -> Pair:
    folder = add_tokenizer(make_pico(name).folder, special_tokens=name == "bert")
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    base = open_eval_model(CheckpointRef(str(folder)))
    texts = Texts(windows=windows, length=32, lengths=lengths, base=Reader("base", base))
    return Pair(open_eval_model(CheckpointRef(str(longer))), base, texts)


def losses_of(scores: list[Score], measure: str) -> dict[tuple[str, str, int], Any]:
    """Return the losses of the first window by model, reading and context length."""
    found = select(scores, measure=measure, part=None)
    return {(score.model, score.reading, score.length): score.values[0] for score in found}


def loss(model: EvalModel, ids: list[int], index: int, label: int) -> float:
    scores = log_probabilities(model, ids)
    return float(-scores[index, label])


def check_causal_losses(
    pair: Pair, measure: str, starts: dict[tuple[str, str, int], list[int]], targets: range
) -> None:
    """Compare losses with one forward pass per target, from the start of its chunk."""
    found = losses_of(pair.scores(), measure)
    assert set(found) == set(starts)
    for key, starts_of_key in starts.items():
        model = pair.base if key[0] == "base" else pair.model
        expected = []
        for start, target in zip(starts_of_key, targets, strict=True):
            expected.append(loss(model, TEXT[start:target].tolist(), -1, int(TEXT[target])))
        np.testing.assert_allclose(found[key], expected, rtol=0, atol=1e-5, err_msg=str(key))


def test_causal_losses_by_position_equal_one_forward_pass_per_token(make_pico: Make) -> None:
    pair = open_pair(make_pico, "gpt2", (8, 16, 32), TEXT)
    targets = range(1, 32)
    # First token of the chunk that scores each of the tokens 1 to 31. A separate chunk scores 15
    # tokens, not its first; a sliding one its last 7.
    separate = [(token - 1) // 15 * 15 for token in targets]
    sliding = [max((token - 1) // 7 * 7 + 8 - 16, 0) for token in targets]
    starts = {
        ("model", ONE_PASS, 32): [0] * 31,
        ("base", SEPARATE, 16): separate,
        ("base", SLIDING, 16): sliding,
    }
    check_causal_losses(pair, "position", starts, targets)


def test_causal_losses_by_context_equal_one_forward_pass_per_token(make_pico: Make) -> None:
    pair = open_pair(make_pico, "gpt2", (8, 16, 32), TEXT)
    # For the last four tokens: a chunk of 8 scores one, a chunk of 16 scores three.
    starts = {
        ("model", ONE_PASS, 8): [21, 22, 23, 24],
        ("model", ONE_PASS, 16): [15, 15, 15, 18],
        ("model", ONE_PASS, 32): [0] * 4,
        ("base", ONE_PASS, 8): [21, 22, 23, 24],
        ("base", ONE_PASS, 16): [15, 15, 15, 18],
    }
    check_causal_losses(pair, "context", starts, range(28, 32))


def test_masked_losses_score_the_same_targets_in_each_reading(make_pico: Make) -> None:
    text = TEXT[:30]
    pair = open_pair(make_pico, "bert", (16, 32), text)
    reader = Reader("model", pair.model)
    scores = pair.scores()
    # First token of the chunk that scores each token. Separate chunks have 14 tokens; the last one
    # is moved back so that it is full. The target that all contexts share is in the middle.
    separate = [0] * 14 + [14] * 14 + [16] * 2
    by_position = {("model", ONE_PASS, 32): [0] * 30, ("base", SEPARATE, 16): separate}
    by_context = {
        ("model", ONE_PASS, 32): [0] * 30,
        ("model", ONE_PASS, 16): [8] * 30,
        ("base", ONE_PASS, 16): [8] * 30,
    }
    measured: list[tuple[str, Targets, int, dict[tuple[str, str, int], list[int]]]] = [
        ("position", all_targets(reader, pair.texts), round(0.15 * 30), by_position),
        ("context", late_targets(reader, pair.texts), 1, by_context),
    ]
    for measure, targets, count, readings in measured:
        (indices,) = targets.indices
        assert len(indices) == count
        inputs = text.copy()
        inputs[indices] = MASK
        found = losses_of(scores, measure)
        for key, starts in readings.items():
            model = pair.base if key[0] == "base" else pair.model
            for target, value in zip(indices, found[key], strict=True):
                start = starts[target]
                ids = [CLS, *inputs[start : start + key[2] - 2].tolist(), SEP]
                expected = loss(model, ids, target - start + 1, int(text[target]))
                assert value == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("cost", "warns"), [(0.2, True), (0.0, False), (-0.2, False)])
def test_evaluate_warns_of_a_text_that_the_base_reads_worse_with_context(
    cost: float, warns: bool, gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0)
    read = losses_module.read_losses

    def read_losses(reader: Any, texts: Any, targets: Any, context: int, *given: Any) -> list[Any]:
        losses = read(reader, texts, targets, context)
        if given[0] < 1:  # in sliding windows
            losses = [one + cost + noise.normal(scale=0.01, size=len(one)) for one in losses]
        return losses

    monkeypatch.setattr(losses_module, "read_losses", read_losses)
    found = evaluate(gpt2, data=write_texts(), measure="position", tokens=512)
    assert len(found.warnings) == warns
    for warning in found.warnings:
        assert warning.startswith("This text does not show what a longer context is worth: ")
        assert "in separate ones, with a perplexity 22" in warning


# ---- rejected models


@pytest.mark.parametrize(
    ("open_evaluator", "what"), [(open_scorer, "logits"), (open_embedder, "embeddings")]
)
def test_open_evaluator_rejects_models_that_need_more(
    open_evaluator: Any, what: str, make_pico: Make
) -> None:
    def needs_more(**inputs: Any) -> None:
        raise ValueError("Input language unknown.")

    model = load_model(make_pico("bert").folder)
    model.model.forward = needs_more
    model.model.base_model.forward = needs_more
    message = f"cannot compute {what} from text only: ValueError: Input lang"
    with pytest.raises(UnsupportedModelError, match=message):
        open_evaluator(model)


def test_check_vocabulary_rejects_tokens_beyond_it(make_pico: Make) -> None:
    model = load_model(make_pico("gpt2", vocab_size=20).folder)
    tokens = model.tokenizer.encode("w1 w26")
    message = "has a vocabulary of 20, but its tokenizer returned token 31"
    with pytest.raises(CheckpointError, match=message):
        check_vocabulary(model, tokens)


def test_open_eval_model_rejects_missing_tensors(make_pico: Make) -> None:
    folder = make_pico("gpt2").folder
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    message = r"missing or have the wrong shape \(1\): .*h\.1\.mlp\.c_fc\.weight"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_open_eval_model_notes_missing_lm_head(make_pico: Make) -> None:
    folder = make_pico("bert", base=True).folder
    edit_json(folder / "config.json", architectures=["BertForMaskedLM"])
    model = load_model(folder)
    assert model.kind == ENCODER
    notes = "\n".join(model.notes)
    assert "has no LM head of BertForMaskedLM" in notes


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate_warns_of_nan_losses(make_pico: Make) -> None:
    folder = add_tokenizer(make_pico("gpt2").folder, special_tokens=False)
    nan = torch.full((8,), float("nan"))
    add_tensors(folder, {"transformer.ln_f.weight": nan})
    Path("text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 " * 20)
    found = evaluate(folder, data="text.txt", measure="position")
    warnings = "\n".join(found.warnings)
    assert "losses are NaN or infinite" in warnings
