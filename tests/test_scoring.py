"""Losses by models of all kinds against transformers' own logits, and models that cannot be measured."""

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
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, check_vocabulary, open_eval_model
from ctxextend.evaluation.scoring import ScoredWindow, Scorer, open_scorer
from ctxextend.recipe import CheckpointRef
from tests.pico import Pico, add_tensors, edit_json, make_bart
from tests.words import add_tokenizer

Make = Callable[..., Pico]
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
    return open_eval_model(CheckpointRef(str(add_tokenizer(folder, is_framed="gpt2" not in folder.name))))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scorer_losses_hold_few_logits_at_once(
    dtype: torch.dtype, make_pico: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(make_pico("bert").folder)
    reader.model.to(dtype)
    ids = np.random.default_rng(2).integers(5, 32, 16)
    scorer, window = Scorer(reader, None, True), ScoredWindow(ids, np.arange(15), ids[1:])
    whole = scorer.losses([window])[0]
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 4 * 32)
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
    folder = add_tokenizer(make_pico("gpt2").folder, is_framed=False)
    add_tensors(folder, {"transformer.ln_f.weight": torch.full((8,), float("nan"))})
    Path("text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 " * 20)
    found = evaluate(folder, "text.txt", measure=["position"])
    assert any("no finite numbers" in warning for warning in found.warnings)
