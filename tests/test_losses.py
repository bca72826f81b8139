"""Losses of tokens against transformers' own logits, each token's from a forward pass of its own, and refusals."""

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
from ctxextend.plan.plan import resize
from ctxextend.recipe import CheckpointRef
from tests.pico import Pico, add_tensors, edit_json, make_bart
from tests.words import add_tokenizer

Make = Callable[..., Pico]
TEXT = np.random.default_rng(3).integers(5, 32, 32)
CLS, SEP, MASK = 2, 3, 4
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
# Models whose heads are not plain: two matrices in one, a projection in front, a bias of its own behind.
OTHERS: dict[str, dict[str, Any]] = {
    "mobilebert": {"embedding_size": 8, "intra_bottleneck_size": 8},
    "opt": {"ffn_dim": 16, "word_embed_proj_dim": 4},
    "albert": {"embedding_size": 4},
    "esm": {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "absolute"},
    "big_bird": {"block_size": 2, "num_random_blocks": 1},
}


def reader_of(folder: Path) -> EvalModel:
    return open_eval_model(CheckpointRef(str(add_tokenizer(folder, special_tokens="gpt2" not in folder.name))))


def others(folder: Path, name: str, positions: int = 16) -> EvalModel:
    torch.manual_seed(0)
    sizes = SIZES | {"intermediate_size": 16, "max_position_embeddings": positions} | OTHERS[name]
    auto: Any = transformers.AutoModelForCausalLM if name == "opt" else transformers.AutoModelForMaskedLM
    auto.from_config(transformers.AutoConfig.for_model(name, **sizes)).save_pretrained(folder)
    return reader_of(folder)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", *OTHERS])
def test_scorer_losses_equal_transformers_logits(name: str, make_pico: Make, tmp_path: Path) -> None:
    reader = others(tmp_path / name, name) if name in OTHERS else reader_of(make_pico(name).folder)
    generator = np.random.default_rng(0)
    windows = [
        ScoredWindow(generator.integers(5, 32, length), np.array([0, length - 1, 3, 3]), generator.integers(5, 32, 4))
        for length in (9, 12, 9, 12, 9)
    ]
    scorer = open_scorer(reader, 2)
    assert scorer.has_separate_head == (name not in ("mobilebert", "esm"))
    for window, losses in zip(windows, scorer.losses(windows), strict=True):
        with torch.no_grad():
            whole = reader.model(input_ids=torch.from_numpy(window.input_ids)[None]).logits[0].log_softmax(-1).numpy()
        np.testing.assert_allclose(losses, -whole[window.places, window.labels], rtol=0, atol=2e-5)


def test_open_scorer_runs_no_head_apart_whose_logits_are_capped_afterwards(make_pico: Make) -> None:
    reader = reader_of(make_pico("gpt2").folder)
    forward = reader.model.forward

    def capped(**inputs: Any) -> Any:
        outputs = forward(**inputs)
        outputs.logits = outputs.logits.tanh()
        return outputs

    reader.model.forward = capped
    assert not open_scorer(reader).has_separate_head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scorer_losses_hold_few_logits_at_once(
    dtype: torch.dtype, make_pico: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(make_pico("bert").folder)
    reader.model.to(dtype)
    ids = np.random.default_rng(2).integers(5, 32, 16)
    scorer, window = Scorer(reader, None, True), ScoredWindow(ids, np.arange(15), ids[1:])
    whole = scorer.losses([window])[0]
    monkeypatch.setattr("ctxextend.evaluation.losses.LOGITS_AT_ONCE", 4 * 32)
    seen: list[int] = []
    reader.model.get_output_embeddings().register_forward_hook(lambda head, states, logits: seen.append(len(logits)))
    np.testing.assert_allclose(scorer.losses([window])[0], whole, rtol=0, atol=1e-6)
    assert [count for count in seen if count != 1] == [4, 4, 4, 3]


def test_scorer_reads_each_text_by_the_attention_that_the_config_names(tmp_path: Path) -> None:
    reader = others(tmp_path, "big_bird", positions=64)
    scorer = open_scorer(reader)
    for length, attention in ((10, "original_full"), (64, "block_sparse"), (10, "original_full")):
        scorer.losses([ScoredWindow(np.full(length, 5), np.array([1]), np.array([6]))])
        assert reader.model.base_model.attention_type == attention


# ---- by position and by context


def opened(make_pico: Make, name: str) -> tuple[EvalModel, EvalModel]:
    """A base that reads 16 tokens, and what was made of it, which reads 32."""
    folder = add_tokenizer(make_pico(name).folder, special_tokens=name == "bert")
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    model, base = (open_eval_model(CheckpointRef(str(path))) for path in (longer, folder))
    return model, base


def measured(
    model: EvalModel, base: EvalModel | None, lengths: tuple[int, ...], *texts: Any, seed: int = 0
) -> LossTask:
    task = plan_losses(open_scorer(model), open_scorer(base) if base else None, texts, lengths, seed)
    told: list[int] = []
    task.measure(told.append)
    assert sum(told) == task.tokens + task.base_tokens
    return task


def losses_of(task: LossTask, measure: str, window: int = 0) -> dict[tuple[str, int], Any]:
    """The losses of a window's tokens, by how it was read and with which context."""
    return {way: losses[window] for way, losses in task.losses(measure).items()}


def loss(reader: EvalModel, ids: list[int], place: int, label: int) -> float:
    with torch.no_grad():
        logits = reader.model(input_ids=torch.tensor([ids])).logits[0, place]
    return float(-logits.log_softmax(-1)[label])


def test_losses_of_a_causal_model_are_those_of_each_token_after_what_its_piece_has_read(make_pico: Make) -> None:
    model, base = opened(make_pico, "gpt2")
    task, tokens = measured(model, base, (8, 16, 32), TEXT), range(1, 32)
    assert task.targets(0)["position"].tolist() == list(tokens)
    # Which token each piece starts at, of the pieces that score tokens 1 to 31.
    by_position = {
        (MODEL, 32): [0] * 31,
        (TRUNCATED, 16): [(token - 1) // 15 * 15 for token in tokens],  # they score 15: the first is only read
        (SLIDING, 16): [max((token - 1) // 7 * 7 + 8 - 16, 0) for token in tokens],  # they score 7, up to their end
    }
    # And of those that score the last four tokens: pieces of 8 score one each, pieces of 16 three.
    starts = {8: [21, 22, 23, 24], 16: [15, 15, 15, 18], 32: [0] * 4}
    modes = ((MODEL, 8), (MODEL, 16), (MODEL, 32), (SLIDING, 8), (SLIDING, 16))
    by_context = {way: starts[way[1]] for way in modes}
    for measure, first, expected in (("position", 1, by_position), ("context", 28, by_context)):
        found = losses_of(task, measure)
        assert set(found) == set(expected)
        for way, begin in expected.items():
            reader = model if way[0] == MODEL else base
            pairs = zip(begin, range(first, 32), strict=True)
            alone = [loss(reader, TEXT[start:token].tolist(), -1, int(TEXT[token])) for start, token in pairs]
            np.testing.assert_allclose(found[way], alone, rtol=0, atol=1e-5, err_msg=f"{measure} {way}")


def test_losses_of_a_masked_model_are_of_the_same_tokens_however_the_text_is_read(make_pico: Make) -> None:
    model, base = opened(make_pico, "bert")
    text = TEXT[:30]
    task = measured(model, base, (16, 32), text)
    # What the piece around a target begins with; the last one begins where a whole piece still fits.
    pieces = {14: 0, 28: 14, 30: 16}
    by_position: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (TRUNCATED, 16): lambda target: next(start for end, start in pieces.items() if target < end),
    }
    # The one target that all contexts share stands in the middle.
    by_context: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (MODEL, 16): lambda target: 8,
        (SLIDING, 16): lambda target: 8,
    }
    for measure, count, modes in (("position", round(0.15 * 30), by_position), ("context", 1, by_context)):
        targets = task.targets(0)[measure]
        assert len(targets) == count
        inputs = text.copy()
        inputs[targets] = MASK
        for way, start_of in modes.items():
            reader, size = model if way[0] == MODEL else base, way[1] - 2
            for target, value in zip(targets, losses_of(task, measure)[way], strict=True):
                start = start_of(target)
                ids = [CLS, *inputs[start : start + size].tolist(), SEP]
                assert value == pytest.approx(loss(reader, ids, target - start + 1, int(text[target])), abs=1e-5)


def test_masks_are_drawn_by_seed_and_window(make_pico: Make) -> None:
    model, _ = opened(make_pico, "bert")
    one, same, other = (measured(model, None, (32,), *[TEXT[:30]] * 2, seed=seed) for seed in (0, 0, 1))
    drawn = [task.targets(i)["position"].tolist() for task, i in ((one, 0), (same, 0), (one, 1), (other, 0))]
    assert drawn[0] == drawn[1]
    assert drawn[0] not in drawn[2:]


def test_loss_task_report_pairs_losses_by_token(make_pico: Make) -> None:
    model, base = opened(make_pico, "gpt2")
    task = measured(model, base, (8, 16, 32), *(np.roll(TEXT, number) for number in range(3)))
    positions, contexts = task.report().values()
    windows = [losses_of(task, "position", i) for i in range(3)]
    for way in (TRUNCATED, SLIDING):
        differences = np.array([window[MODEL, 32].mean() - window[way, 16].mean() for window in windows])
        assert positions.changes[way].mean == pytest.approx(differences.mean())
        assert positions.changes[way].standard_error == pytest.approx(differences.std(ddof=1) / np.sqrt(3))
    assert sum(bucket.losses[MODEL].tokens for bucket in positions.buckets) == 3 * 31
    assert [(bucket.start, bucket.stop) for bucket in positions.buckets] == [(i, i + 2) for i in range(0, 32, 2)]
    windows = [losses_of(task, "context", i) for i in range(3)]
    assert contexts.reference == 16
    assert [point.context for point in contexts.points] == [8, 16, 32]
    assert contexts.points[1].change.mean == 0
    last = contexts.points[-1]
    expected = np.mean([window[MODEL, 32].mean() - window[SLIDING, 16].mean() for window in windows])
    assert last.base is None
    assert last.against_base.mean == pytest.approx(expected)


# ---- refusals


@pytest.mark.parametrize(("open_reader", "what"), [(open_scorer, "logits"), (open_embedder, "vectors")])
def test_a_model_that_needs_more_than_a_text_is_refused(open_reader: Any, what: str, make_pico: Make) -> None:
    def needs_more(**inputs: Any) -> None:
        raise ValueError("Input language unknown.")

    reader = reader_of(make_pico("bert").folder)
    reader.model.forward = reader.model.base_model.forward = needs_more
    with pytest.raises(UnsupportedModelError, match=f"no {what} of a text alone: ValueError: Input language unknown"):
        open_reader(reader)


def test_open_eval_model_refuses_what_it_cannot_measure(make_pico: Make, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="BartModel reads one text and writes another"):
        reader_of(make_bart(tmp_path / "bart"))
    with pytest.raises(CheckpointError, match="There is no tokenizer in"):
        open_eval_model(CheckpointRef(str(make_pico("bert").folder)))
    reader = reader_of(make_pico("gpt2", vocab_size=20).folder)
    with pytest.raises(CheckpointError, match="gives the token 31, and the model knows 20 tokens"):
        check_vocabulary(reader, reader.tokenizer.encode("w1 w26"))


def test_open_eval_model_refuses_files_of_which_one_lacks_tensors_or_tells_other_shapes(make_pico: Make) -> None:
    folder, other = make_pico("gpt2").folder, make_pico("bert").folder
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors .*h\.1\.mlp\.c_fc\.weight"):
        reader_of(folder)
    edit_json(other / "config.json", vocab_size=40)
    with pytest.raises(CheckpointError, match=r"lacks .* tensors of the shapes .*word_embeddings\.weight"):
        reader_of(other)


def test_open_eval_model_says_that_a_head_is_not_there(make_pico: Make) -> None:
    folder = make_pico("bert", base=True).folder
    edit_json(folder / "config.json", architectures=["BertForMaskedLM"])
    reader = reader_of(folder)
    assert reader.kind == ENCODER
    assert any("holds no head of a BertForMaskedLM" in note for note in reader.notes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate_warns_of_losses_that_are_no_numbers(make_pico: Make) -> None:
    folder = add_tokenizer(make_pico("gpt2").folder, special_tokens=False)
    add_tensors(folder, {"transformer.ln_f.weight": torch.full((8,), float("nan"))})
    Path("text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 " * 20)
    found = evaluate(folder, "text.txt", measure=["position"])
    assert any("no finite numbers" in warning for warning in found.warnings)
