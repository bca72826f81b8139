"""Losses compared with logits of transformers, one forward pass per token; and rejected models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ctxextend import evaluate
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, check_vocabulary, open_eval_model
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED
from ctxextend.evaluation.losses import LossTask, ScoredWindow, Scorer, open_scorer, plan_losses
from ctxextend.recipe import CheckpointRef
from ctxextend.resizing import resize
from tests.helpers.pico import Pico, add_tensors, edit_json, make_bart
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
    return open_eval_model(
        CheckpointRef(str(add_tokenizer(folder, special_tokens="gpt2" not in folder.name)))
    )


def make_unusual(folder: Path, name: str, positions: int = 16) -> EvalModel:
    torch.manual_seed(0)
    sizes = SIZES | {"intermediate_size": 16, "max_position_embeddings": positions} | UNUSUAL[name]
    auto: Any = (
        transformers.AutoModelForCausalLM if name == "opt" else transformers.AutoModelForMaskedLM
    )
    auto.from_config(transformers.AutoConfig.for_model(name, **sizes)).save_pretrained(folder)
    return load_model(folder)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", *UNUSUAL])
def test_scorer_losses_equal_logits_of_transformers(
    name: str, make_pico: Make, tmp_path: Path
) -> None:
    model = (
        make_unusual(tmp_path / name, name)
        if name in UNUSUAL
        else load_model(make_pico(name).folder)
    )
    generator = np.random.default_rng(0)
    windows = [
        ScoredWindow(
            generator.integers(5, 32, length),
            np.array([0, length - 1, 3, 3]),
            generator.integers(5, 32, 4),
        )
        for length in (9, 12, 9, 12, 9)
    ]
    scorer = open_scorer(model, 2)
    assert scorer.has_separate_head == (name not in ("mobilebert", "esm"))
    for window, losses in zip(windows, scorer.losses(windows), strict=True):
        with torch.no_grad():
            scores = (
                model.model(input_ids=torch.from_numpy(window.input_ids)[None])
                .logits[0]
                .log_softmax(-1)
                .numpy()
            )
        np.testing.assert_allclose(
            losses, -scores[window.outputs, window.labels], rtol=0, atol=2e-5
        )


def test_open_scorer_uses_whole_model_if_logits_are_capped(make_pico: Make) -> None:
    model = load_model(make_pico("gpt2").folder)
    forward = model.model.forward

    def capped(**inputs: Any) -> Any:
        outputs = forward(**inputs)
        outputs.logits = outputs.logits.tanh()
        return outputs

    model.model.forward = capped
    assert not open_scorer(model).has_separate_head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scorer_computes_logits_in_chunks(
    dtype: torch.dtype, make_pico: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(make_pico("bert").folder)
    model.model.to(dtype)
    ids = np.random.default_rng(2).integers(5, 32, 16)
    scorer, window = Scorer(model, None, True), ScoredWindow(ids, np.arange(15), ids[1:])
    expected = scorer.losses([window])[0]
    monkeypatch.setattr("ctxextend.evaluation.losses.MAX_LOGITS", 4 * 32)
    sizes: list[int] = []
    model.model.get_output_embeddings().register_forward_hook(
        lambda head, states, logits: sizes.append(len(logits))
    )
    np.testing.assert_allclose(scorer.losses([window])[0], expected, rtol=0, atol=1e-6)
    assert [size for size in sizes if size != 1] == [4, 4, 4, 3]


def test_scorer_resets_attention_type_of_big_bird(tmp_path: Path) -> None:
    model = make_unusual(tmp_path, "big_bird", positions=64)
    scorer = open_scorer(model)
    for length, attention in ((10, "original_full"), (64, "block_sparse"), (10, "original_full")):
        scorer.losses([ScoredWindow(np.full(length, 5), np.array([1]), np.array([6]))])
        assert model.model.base_model.attention_type == attention


# ---- by position and by context


def open_pair(make_pico: Make, name: str) -> tuple[EvalModel, EvalModel]:
    """Return a model resized to 32 positions, and its base with 16."""
    folder = add_tokenizer(make_pico(name).folder, special_tokens=name == "bert")
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    model, base = (open_eval_model(CheckpointRef(str(path))) for path in (longer, folder))
    return model, base


def score(
    model: EvalModel, base: EvalModel | None, lengths: tuple[int, ...], *texts: Any, seed: int = 0
) -> LossTask:
    task = plan_losses(
        open_scorer(model), open_scorer(base) if base else None, texts, lengths, seed
    )
    progress: list[int] = []
    task.measure(progress.append)
    assert sum(progress) == task.tokens + task.base_tokens
    return task


def losses_of(task: LossTask, measure: str, window: int = 0) -> dict[tuple[str, int], Any]:
    """Return the losses of a window's targets by mode name and context length."""
    return {mode: losses[window] for mode, losses in task.losses(measure).items()}


def loss(model: EvalModel, ids: list[int], index: int, label: int) -> float:
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([ids])).logits[0, index]
    return float(-logits.log_softmax(-1)[label])


def test_causal_losses_equal_one_forward_pass_per_token(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "gpt2")
    task, tokens = score(model, base, (8, 16, 32), TEXT), range(1, 32)
    assert task.targets(0)["position"].tolist() == list(tokens)
    # First token of the chunk that scores each of the tokens 1 to 31.
    by_position = {
        (MODEL, 32): [0] * 31,
        (TRUNCATED, 16): [
            (token - 1) // 15 * 15 for token in tokens
        ],  # each scores 15, not its first
        (SLIDING, 16): [
            max((token - 1) // 7 * 7 + 8 - 16, 0) for token in tokens
        ],  # each scores its last 7
    }
    # For the last four tokens: a chunk of 8 scores one, a chunk of 16 scores three.
    starts = {8: [21, 22, 23, 24], 16: [15, 15, 15, 18], 32: [0] * 4}
    modes = ((MODEL, 8), (MODEL, 16), (MODEL, 32), (SLIDING, 8), (SLIDING, 16))
    by_context = {mode: starts[mode[1]] for mode in modes}
    for measure, first, expected in (("position", 1, by_position), ("context", 28, by_context)):
        found = losses_of(task, measure)
        assert set(found) == set(expected)
        for mode, begin in expected.items():
            scored_by = model if mode[0] == MODEL else base
            pairs = zip(begin, range(first, 32), strict=True)
            single = [
                loss(scored_by, TEXT[start:token].tolist(), -1, int(TEXT[token]))
                for start, token in pairs
            ]
            np.testing.assert_allclose(
                found[mode], single, rtol=0, atol=1e-5, err_msg=f"{measure} {mode}"
            )


def test_masked_losses_score_the_same_targets_in_each_mode(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "bert")
    text = TEXT[:30]
    task = score(model, base, (16, 32), text)
    # Chunk start by chunk end; the last chunk is moved back so that it is full.
    starts = {14: 0, 28: 14, 30: 16}
    by_position: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (TRUNCATED, 16): lambda target: next(
            start for end, start in starts.items() if target < end
        ),
    }
    # The target that all contexts share is in the middle.
    by_context: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (MODEL, 16): lambda target: 8,
        (SLIDING, 16): lambda target: 8,
    }
    for measure, count, modes in (
        ("position", round(0.15 * 30), by_position),
        ("context", 1, by_context),
    ):
        targets = task.targets(0)[measure]
        assert len(targets) == count
        inputs = text.copy()
        inputs[targets] = MASK
        for mode, start_of in modes.items():
            scored_by = model if mode[0] == MODEL else base
            size = mode[1] - 2
            for target, value in zip(targets, losses_of(task, measure)[mode], strict=True):
                start = start_of(target)
                ids = [CLS, *inputs[start : start + size].tolist(), SEP]
                assert value == pytest.approx(
                    loss(scored_by, ids, target - start + 1, int(text[target])), abs=1e-5
                )


def test_masks_depend_on_seed_and_window(make_pico: Make) -> None:
    model, _ = open_pair(make_pico, "bert")
    one, same, other = (
        score(model, None, (32,), *[TEXT[:30]] * 2, seed=seed) for seed in (0, 0, 1)
    )
    masks = [
        task.targets(i)["position"].tolist()
        for task, i in ((one, 0), (same, 0), (one, 1), (other, 0))
    ]
    assert masks[0] == masks[1]
    assert masks[0] not in masks[2:]


def test_loss_task_report_pairs_losses_by_token(make_pico: Make) -> None:
    model, base = open_pair(make_pico, "gpt2")
    task = score(model, base, (8, 16, 32), *(np.roll(TEXT, number) for number in range(3)))
    report = task.report()
    positions, contexts = report["positions"], report["contexts"]
    windows = [losses_of(task, "position", i) for i in range(3)]
    for mode in (TRUNCATED, SLIDING):
        differences = np.array(
            [window[MODEL, 32].mean() - window[mode, 16].mean() for window in windows]
        )
        assert positions.changes[mode].mean == pytest.approx(differences.mean())
        assert positions.changes[mode].standard_error == pytest.approx(
            differences.std(ddof=1) / np.sqrt(3)
        )
    assert sum(bucket.losses[MODEL].tokens for bucket in positions.buckets) == 3 * 31
    assert [(bucket.start, bucket.stop) for bucket in positions.buckets] == [
        (i, i + 2) for i in range(0, 32, 2)
    ]
    windows = [losses_of(task, "context", i) for i in range(3)]
    assert contexts.reference == 16
    assert [point.context for point in contexts.points] == [8, 16, 32]
    assert contexts.points[1].change.mean == 0
    last = contexts.points[-1]
    expected = np.mean(
        [window[MODEL, 32].mean() - window[SLIDING, 16].mean() for window in windows]
    )
    assert last.base is None
    assert last.against_base.mean == pytest.approx(expected)


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
    model.model.forward = model.model.base_model.forward = needs_more
    with pytest.raises(
        UnsupportedModelError, match=f"cannot compute {what} from text only: ValueError: Input lang"
    ):
        open_evaluator(model)


def test_open_eval_model_rejects_encoder_decoder_and_missing_tokenizer(
    make_pico: Make, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match="BartModel is an encoder-decoder model"):
        load_model(make_bart(tmp_path / "bart"))
    with pytest.raises(CheckpointError, match="No tokenizer found in"):
        open_eval_model(CheckpointRef(str(make_pico("bert").folder)))
    model = load_model(make_pico("gpt2", vocab_size=20).folder)
    with pytest.raises(
        CheckpointError, match="has a vocabulary of 20, but its tokenizer returned token 31"
    ):
        check_vocabulary(model, model.tokenizer.encode("w1 w26"))


def test_open_eval_model_rejects_missing_tensors_and_wrong_shapes(make_pico: Make) -> None:
    folder, other = make_pico("gpt2").folder, make_pico("bert").folder
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"missing or have the wrong shape \(1\): .*h\.1\.mlp\.c_fc\.weight"
    ):
        load_model(folder)
    edit_json(other / "config.json", vocab_size=40)
    with pytest.raises(
        CheckpointError, match=r"missing or have the wrong shape .*word_embeddings\.weight"
    ):
        load_model(other)


def test_open_eval_model_notes_missing_lm_head(make_pico: Make) -> None:
    folder = make_pico("bert", base=True).folder
    edit_json(folder / "config.json", architectures=["BertForMaskedLM"])
    model = load_model(folder)
    assert model.kind == ENCODER
    assert any("has no LM head of BertForMaskedLM" in note for note in model.notes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate_warns_of_nan_losses(make_pico: Make) -> None:
    folder = add_tokenizer(make_pico("gpt2").folder, special_tokens=False)
    add_tensors(folder, {"transformer.ln_f.weight": torch.full((8,), float("nan"))})
    Path("text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 " * 20)
    found = evaluate(folder, "text.txt", measure=["position"])
    assert any("losses are NaN or infinite" in warning for warning in found.warnings)
