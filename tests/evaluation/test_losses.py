"""Losses compared with logits of transformers, one forward pass per token; and rejected models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from ctxextend.lab.evaluation_result import MODEL, SLIDING, TRUNCATED
from safetensors.torch import load_file, save_file

from ctxextend import evaluate
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.lab.embedding import open_embedder
from ctxextend.lab.eval_model import ENCODER, EvalModel, check_vocabulary, open_eval_model
from ctxextend.lab.losses import LossTask, plan_losses
from ctxextend.lab.scorer import ScoredWindow, Scorer, open_scorer
from ctxextend.resizing import resize
from ctxextend.settings import CheckpointRef
from tests.helpers.pico import Pico, add_tensors, edit_json
from tests.helpers.word_tokenizer import add_tokenizer

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


def open_pair(make_pico: Make, name: str) -> tuple[EvalModel, EvalModel]:
    """Return a model resized to 32 positions, and its base with 16."""
    folder = add_tokenizer(make_pico(name).folder, special_tokens=name == "bert")
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    model = open_eval_model(CheckpointRef(str(longer)))
    base = open_eval_model(CheckpointRef(str(folder)))
    return model, base


def score(
    model: EvalModel, base: EvalModel | None, lengths: tuple[int, ...], *texts: Any, seed: int = 0
) -> LossTask:
    base_scorer = None
    if base is not None:
        base_scorer = open_scorer(base)
    task = plan_losses(open_scorer(model), base_scorer, texts, lengths, seed)
    progress: list[int] = []
    task.measure(progress.append)
    assert sum(progress) == task.tokens + task.base_tokens
    return task


def losses_of(task: LossTask, measure: str, window: int = 0) -> dict[tuple[str, int], Any]:
    """Return the losses of a window's targets by mode name and context length."""
    return {mode: losses[window] for mode, losses in task.losses(measure).items()}


def loss(model: EvalModel, ids: list[int], index: int, label: int) -> float:
    scores = log_probabilities(model, ids)
    return float(-scores[index, label])


def next_token_losses(model: EvalModel, starts: list[int], targets: range) -> list[float]:
    """Return the loss of each target after a context that begins at its start."""
    losses = []
    for start, target in zip(starts, targets, strict=True):
        context = TEXT[start:target].tolist()
        losses.append(loss(model, context, -1, int(TEXT[target])))
    return losses


def check_causal_losses(
    model: EvalModel,
    base: EvalModel,
    found: dict[tuple[str, int], Any],
    starts: dict[tuple[str, int], list[int]],
    targets: range,
) -> None:
    """Compare losses with one forward pass per target, from the start of its chunk by mode."""
    assert set(found) == set(starts)
    for mode, starts_of_mode in starts.items():
        name, _ = mode
        scored_by = base
        if name == MODEL:
            scored_by = model
        expected = next_token_losses(scored_by, starts_of_mode, targets)
        np.testing.assert_allclose(found[mode], expected, rtol=0, atol=1e-5, err_msg=str(mode))


def test_causal_losses_by_position_equal_one_forward_pass_per_token(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "gpt2")
    targets = range(1, 32)
    # First token of the chunk that scores each of the tokens 1 to 31. With truncation, a chunk
    # scores 15 tokens, not its first; sliding, its last 7.
    truncated = [(token - 1) // 15 * 15 for token in targets]
    sliding = [max((token - 1) // 7 * 7 + 8 - 16, 0) for token in targets]
    starts = {(MODEL, 32): [0] * 31, (TRUNCATED, 16): truncated, (SLIDING, 16): sliding}

    task = score(model, base, (8, 16, 32), TEXT)

    assert task.windows.targets(0)["position"].tolist() == list(targets)
    check_causal_losses(model, base, losses_of(task, "position"), starts, targets)


def test_causal_losses_by_context_equal_one_forward_pass_per_token(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "gpt2")
    # For the last four tokens: a chunk of 8 scores one, a chunk of 16 scores three.
    starts = {
        (MODEL, 8): [21, 22, 23, 24],
        (MODEL, 16): [15, 15, 15, 18],
        (MODEL, 32): [0] * 4,
        (SLIDING, 8): [21, 22, 23, 24],
        (SLIDING, 16): [15, 15, 15, 18],
    }

    task = score(model, base, (8, 16, 32), TEXT)

    check_causal_losses(model, base, losses_of(task, "context"), starts, range(28, 32))


def test_masked_losses_score_the_same_targets_in_each_mode(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "bert")
    text = TEXT[:30]
    # Chunks of 14 tokens; the last one is moved back so that it is full.
    truncated = [0] * 14 + [14] * 14 + [16] * 2
    # First token of the chunk that scores each token. The target that all contexts share is in the
    # middle.
    by_position = {(MODEL, 32): [0] * 30, (TRUNCATED, 16): truncated}
    by_context = {(MODEL, 32): [0] * 30, (MODEL, 16): [8] * 30, (SLIDING, 16): [8] * 30}
    modes_of = {"position": by_position, "context": by_context}
    counts = {"position": round(0.15 * 30), "context": 1}

    task = score(model, base, (16, 32), text)

    for measure, modes in modes_of.items():
        targets = task.windows.targets(0)[measure]
        assert len(targets) == counts[measure]
        inputs = text.copy()
        inputs[targets] = MASK
        found = losses_of(task, measure)
        for (name, length), starts in modes.items():
            scored_by = base
            if name == MODEL:
                scored_by = model
            for target, value in zip(targets, found[name, length], strict=True):
                start = starts[target]
                ids = [CLS, *inputs[start : start + length - 2].tolist(), SEP]
                expected = loss(scored_by, ids, target - start + 1, int(text[target]))
                assert value == pytest.approx(expected, abs=1e-5)


def mean_changes(
    task: LossTask, measure: str, mode: tuple[str, int], against: tuple[str, int]
) -> Any:
    """Return how much the mean loss of a mode differs from another, for each of three windows."""
    changes = []
    for window in range(3):
        losses = losses_of(task, measure, window)
        changes.append(losses[mode].mean() - losses[against].mean())
    return np.array(changes)


@pytest.fixture
def task_of_three_windows(make_pico: Make) -> LossTask:
    model, base = open_pair(make_pico, "gpt2")
    texts = [np.roll(TEXT, number) for number in range(3)]
    return score(model, base, (8, 16, 32), *texts)


def test_loss_task_report_pairs_losses_by_token(task_of_three_windows: LossTask) -> None:
    task = task_of_three_windows
    positions = task.report()["positions"]

    for mode in (TRUNCATED, SLIDING):
        expected = mean_changes(task, "position", (MODEL, 32), (mode, 16))
        change = positions.changes[mode]
        assert change.mean == pytest.approx(expected.mean())
        assert change.standard_error == pytest.approx(expected.std(ddof=1) / np.sqrt(3))


def test_loss_task_report_compares_contexts_with_that_of_the_base(
    task_of_three_windows: LossTask,
) -> None:
    task = task_of_three_windows
    contexts = task.report()["contexts"]

    assert contexts.reference == 16
    assert [point.context for point in contexts.points] == [8, 16, 32]
    _, reference, last = contexts.points
    assert reference.change.mean == 0
    assert last.base is None
    expected = mean_changes(task, "context", (MODEL, 32), (SLIDING, 16))
    assert last.against_base.mean == pytest.approx(expected.mean())


@pytest.mark.parametrize(("cost", "warns"), [(0.2, True), (0.0, False), (-0.2, False)])
def test_loss_task_report_warns_of_a_text_that_the_base_reads_worse_with_context(
    cost: float, warns: bool, task_of_three_windows: LossTask
) -> None:
    task = task_of_three_windows
    keys = {key.name: key for key in task.losses_by_mode if key.measure == "position"}
    separate = task.losses_by_mode[keys[TRUNCATED]]
    noise = np.random.default_rng(0)
    task.losses_by_mode[keys[SLIDING]] = [
        losses + cost + noise.normal(scale=0.01, size=len(losses)) for losses in separate
    ]
    warnings = task.report()["warnings"]
    assert len(warnings) == warns
    for warning in warnings:
        assert warning.startswith("This text does not show what a longer context is worth: ")
        assert "than in separate ones, by 0.2" in warning


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


def test_open_eval_model_rejects_a_missing_tokenizer(make_pico: Make) -> None:
    folder = make_pico("bert").folder
    with pytest.raises(CheckpointError, match="No tokenizer found in"):
        open_eval_model(CheckpointRef(str(folder)))


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
    found = evaluate(folder, "text.txt", measure=["position"])
    warnings = "\n".join(found.warnings)
    assert "losses are NaN or infinite" in warnings
