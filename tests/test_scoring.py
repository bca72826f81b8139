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
from ctxextend.evaluation import scoring
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, check_vocabulary, open_eval_model
from ctxextend.evaluation.scoring import ScoredWindow, Scorer, open_scorer
from ctxextend.recipe import CheckpointRef
from tests.pico import Pico, edit_json, make_bart
from tests.words import add_tokenizer

Make = Callable[..., Pico]
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


def reader_of(pico: Pico) -> EvalModel:
    return open_eval_model(CheckpointRef(str(add_tokenizer(pico.folder, is_framed="gpt2" not in pico.folder.name))))


def others(tmp_path: Path, name: str) -> EvalModel:
    """Models whose heads are not plain: two matrices in one, a projection in front, a bias of its own behind."""
    torch.manual_seed(0)
    configs = {
        "mobilebert": transformers.MobileBertConfig(
            **SIZES,
            embedding_size=8,
            intra_bottleneck_size=8,
            intermediate_size=16,
            max_position_embeddings=16,
        ),
        "opt": transformers.OPTConfig(
            vocab_size=32,
            hidden_size=8,
            ffn_dim=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            word_embed_proj_dim=4,
            max_position_embeddings=16,
        ),
        "albert": transformers.AlbertConfig(
            **SIZES, embedding_size=4, intermediate_size=16, max_position_embeddings=16
        ),
        "esm": transformers.EsmConfig(
            **SIZES,
            intermediate_size=16,
            max_position_embeddings=16,
            pad_token_id=0,
            mask_token_id=4,
            position_embedding_type="absolute",
        ),
    }
    auto: Any = transformers.AutoModelForCausalLM if name == "opt" else transformers.AutoModelForMaskedLM
    auto.from_config(configs[name]).save_pretrained(tmp_path / name)
    return open_eval_model(CheckpointRef(str(add_tokenizer(tmp_path / name, is_framed=True))))


def by_transformers(reader: EvalModel, ids: Any) -> Any:
    """Return the log-probabilities of every word at every place, by the whole model."""
    with torch.no_grad():
        return reader.model(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1).numpy()


def check(reader: EvalModel) -> None:
    generator = np.random.default_rng(0)
    windows = [
        ScoredWindow(generator.integers(5, 32, length), np.array([0, length - 1, 3, 3]), generator.integers(5, 32, 4))
        for length in (9, 12, 9, 12, 9)
    ]
    for window, losses in zip(windows, open_scorer(reader, 2).losses(windows), strict=True):
        expected = -by_transformers(reader, window.input_ids)[window.places, window.labels]
        np.testing.assert_allclose(losses, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_scorer_losses_equal_transformers_logits(name: str, make_pico: Make) -> None:
    reader = reader_of(make_pico(name))
    assert open_scorer(reader).has_separate_head
    check(reader)


@pytest.mark.parametrize("name", ["opt", "albert", "mobilebert", "esm"])
def test_scorer_losses_equal_transformers_logits_of_unusual_heads(name: str, tmp_path: Path) -> None:
    reader = others(tmp_path, name)
    assert open_scorer(reader).has_separate_head == (name not in ("mobilebert", "esm"))
    check(reader)


def test_scorer_losses_of_a_whole_text_equal_transformers_own_loss() -> None:
    reader = open_eval_model(CheckpointRef("tiny-gpt2"))
    ids = np.random.default_rng(1).integers(0, 1024, 100)
    found = open_scorer(reader).losses([ScoredWindow(ids, np.arange(99), ids[1:])])[0]
    text = torch.from_numpy(ids)[None]
    with torch.no_grad():
        theirs = reader.model(input_ids=text, labels=text).loss.item()
    assert found.mean() == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "bert"])  # heads without and with a bias
def test_scorer_losses_hold_few_logits_at_once(
    name: str, dtype: torch.dtype, make_pico: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(make_pico(name))
    reader.model.to(dtype)
    ids = np.random.default_rng(2).integers(5, 32, 16)
    scorer, window = Scorer(reader, None, True), ScoredWindow(ids, np.arange(15), ids[1:])
    whole = scorer.losses([window])[0]
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 4 * 32)
    seen: list[tuple[int, int]] = []
    cross_entropy = scoring._cross_entropy

    def counted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append((logits.numel(), logits.data_ptr()))
        return cross_entropy(logits, targets)

    monkeypatch.setattr(scoring, "_cross_entropy", counted)
    np.testing.assert_allclose(scorer.losses([window])[0], whole, rtol=0, atol=1e-6)
    assert [size for size, _ in seen] == [4 * 32] * 3 + [3 * 32]
    assert dtype != torch.float32 or len({place for _, place in seen}) == 1  # one buffer for all


def test_scorer_losses_of_extreme_logits_are_those_of_torch() -> None:
    infinite = float("inf")
    logits = torch.tensor([[1e30, -1e30, 0], [88.0, -infinite, 90.0], [infinite, 0, 0], [torch.nan, 0, 0]])
    for word in range(3):
        words = torch.full((4,), word)
        expected = torch.nn.functional.cross_entropy(logits, words, reduction="none")
        np.testing.assert_allclose(scoring._cross_entropy(logits.clone(), words), expected, rtol=1e-6)


def test_scorer_leaves_the_model_as_it_was(make_pico: Make) -> None:
    reader = reader_of(make_pico("bert"))
    ids = torch.arange(5, 15)[None]
    before = reader.model(input_ids=ids).logits
    open_scorer(reader).losses([ScoredWindow(ids[0].numpy(), np.array([1]), np.array([7]))])
    assert torch.equal(reader.model(input_ids=ids).logits, before)


def test_scorer_refuses_a_model_that_needs_more_than_a_text(make_pico: Make) -> None:
    def needs_more(**inputs: Any) -> None:
        raise ValueError("Input language unknown.")

    reader = reader_of(make_pico("bert"))
    reader.model.forward = needs_more
    with pytest.raises(UnsupportedModelError, match="no logits of a text alone: ValueError: Input language unknown"):
        open_scorer(reader)


def saved(model: Any, folder: Path, *, is_framed: bool = True) -> EvalModel:
    model.save_pretrained(folder)
    return open_eval_model(CheckpointRef(str(add_tokenizer(folder, is_framed=is_framed))))


def test_scorer_reads_each_text_by_the_attention_that_the_config_names(tmp_path: Path) -> None:
    sizes = SIZES | {"intermediate_size": 16, "max_position_embeddings": 64, "block_size": 2, "num_random_blocks": 1}
    reader = saved(transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**sizes)), tmp_path)
    scorer = open_scorer(reader)
    for length, attention in ((10, "original_full"), (64, "block_sparse"), (10, "original_full")):
        scorer.losses([ScoredWindow(np.full(length, 5), np.array([1]), np.array([6]))])
        assert reader.model.base_model.attention_type == attention


def test_models_with_two_texts_are_refused_whatever_their_class(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="BartModel reads one text and writes another"):
        open_eval_model(CheckpointRef(str(add_tokenizer(make_bart(tmp_path), is_framed=True))))


def test_a_folder_without_tokenizer_is_refused(make_pico: Make) -> None:
    with pytest.raises(CheckpointError, match="There is no tokenizer in"):
        open_eval_model(CheckpointRef(str(make_pico("bert").folder)))


def test_check_vocabulary_refuses_tokens_that_the_model_does_not_know(make_pico: Make) -> None:
    reader = reader_of(make_pico("gpt2", vocab_size=20))
    with pytest.raises(CheckpointError, match="gives the token 31, and the model knows 20 tokens"):
        check_vocabulary(reader, reader.tokenizer.encode("w1 w26"))


def test_open_eval_model_refuses_a_file_that_lacks_tensors(make_pico: Make) -> None:
    pico = make_pico("gpt2")
    path = pico.folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors, .*h\.1\.mlp\.c_fc\.weight"):
        reader_of(pico)


def test_open_eval_model_says_that_a_head_is_not_there(make_pico: Make) -> None:
    pico = make_pico("bert", base=True)
    edit_json(pico.folder / "config.json", architectures=["BertForMaskedLM"])
    reader = reader_of(pico)
    assert reader.kind == ENCODER
    assert any("holds no head of a BertForMaskedLM" in note for note in reader.notes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_evaluate_warns_of_losses_that_are_no_numbers(make_pico: Make, tmp_path: Path) -> None:
    pico = make_pico("gpt2")
    path = pico.folder / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.ln_f.weight"][:] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 " * 20)
    found = evaluate(add_tokenizer(pico.folder, is_framed=False), tmp_path / "text.txt", measure=["position"])
    assert any("no finite numbers" in warning for warning in found.warnings)
