"""`verify` recomputes query projections that a query scale multiplies."""

from pathlib import Path

import pytest
import torch
import transformers

from ctxextend import extend_model, resize, train, verify
from tests.helpers import pico, rotary_models
from tests.helpers.trainings import make_source
from tests.helpers.verifications import failed_checks, passed_checks, rewrite
from tests.helpers.word_tokenizer import text_of

SCALE = 1.25
WEIGHT = "transformer.h.1.attn.c_attn.weight"
BIAS = "transformer.h.0.attn.c_attn.bias"
VALUES = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    source = pico.make(tmp_path / "base", "gpt2").folder
    return resize(source, 64, query_scale=SCALE, output=tmp_path / "scaled").output


def test_scaled_queries_are_a_check_with_its_evidence(scaled: Path) -> None:
    verification = verify(scaled)
    passed = passed_checks(verification)
    assert list(passed) == ["tensors", "table", "queries", "files"]
    assert "4 of 4 tensors are 1.25 times the base's, bit for bit" in passed["queries"]
    assert "only in its position table and in its query projections" in verification.conclusion


def test_other_outputs_have_no_such_check(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "base", "gpt2").folder
    plain = resize(source, 64, query_scale=1, output=tmp_path / "plain").output
    assert "queries" not in passed_checks(verify(plain))


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (1 / SCALE, f"{WEIGHT} is not multiplied by 1.25: it is the base's"),
        (SCALE, f"{WEIGHT} is multiplied by 1.25 twice"),
        (2.0, f"{WEIGHT}: 64 values are not 1.25 times the base's"),
    ],
)
def test_a_projection_with_another_factor_fails(
    factor: float, message: str, scaled: Path, tmp_path: Path
) -> None:
    base = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base").state_dict()[WEIGHT]

    def rescaled(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[:, :8] = (base[:, :8].double() * SCALE * factor).float()
        return changed

    if factor == SCALE:  # each resize rounds
        once = (base[:, :8].double() * SCALE).float()
        rewrite(
            scaled,
            WEIGHT,
            lambda tensor: torch.cat([(once.double() * SCALE).float(), tensor[:, 8:]], dim=1),
        )
    else:
        rewrite(scaled, WEIGHT, rescaled)
    failed = failed_checks(verify(scaled))
    assert failed.keys() == {"queries"}
    assert message in failed["queries"]


@pytest.mark.parametrize("index", [0, 8, 16])
def test_one_changed_value_of_queries_keys_or_values_fails(index: int, scaled: Path) -> None:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor[index] += 1e-3
        return tensor

    rewrite(scaled, BIAS, changed)
    failed = failed_checks(verify(scaled))
    assert failed.keys() == {"queries"}
    assert f"{BIAS}: 1 values" in failed["queries"]


def test_other_weights_must_still_be_identical(scaled: Path) -> None:
    rewrite(scaled, VALUES, lambda tensor: tensor * SCALE)
    assert failed_checks(verify(scaled)).keys() == {"tensors"}


def test_a_projection_of_another_shape_fails(scaled: Path) -> None:
    rewrite(scaled, BIAS, lambda tensor: tensor[:8])
    assert f"{BIAS} is F32 [8], expected F32 [24]" in failed_checks(verify(scaled))["queries"]


def test_without_a_recipe_scaled_queries_are_no_pure_resize(scaled: Path, tmp_path: Path) -> None:
    (scaled / "ctxextend.yaml").unlink()
    failed = failed_checks(verify(scaled, tmp_path / "base", method="copy", to=64))
    assert failed.keys() == {"tensors"}


def test_deep_does_not_expect_the_outputs_of_the_base(scaled: Path) -> None:
    passed_checks(verify(scaled, deep=True))


def test_deep_of_switch_with_a_query_scale(tmp_path: Path) -> None:
    source = rotary_models.make("llama", str(tmp_path / "base"), max_position_embeddings=64).folder
    resize(source, 256, "switch", query_scale="auto", output=tmp_path / "longer")
    checks = passed_checks(verify(tmp_path / "longer", deep=True))
    assert "queries" in checks


def test_a_model_that_was_extended_in_memory_and_saved_is_verified(
    scaled: Path, tmp_path: Path
) -> None:
    recipe = (scaled / "ctxextend.yaml").read_text()
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base")
    extend_model(model, 64, query_scale=SCALE)
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "ctxextend.yaml").write_text(recipe)
    passed = passed_checks(verify(tmp_path / "saved", tmp_path / "base"))
    assert "4 of 4" in passed["queries"]


@pytest.mark.parametrize("trainable", ["positions", "new", "all-but-positions"])
def test_trained_outputs_keep_their_scaled_queries(
    trainable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    make_source(Path("base"), "gpt2")
    Path("book.txt").write_text(text_of([index * index % 16 for index in range(2000)]))
    resize("base", 32, "copy", query_scale=SCALE, output="scaled")
    train("scaled", "book.txt", 2, output="trained", trainable=trainable, seq_len=32, save="last")
    verification = verify("trained")
    if trainable == "all-but-positions":
        assert not verification
        return
    assert "4 of 4" in passed_checks(verification)["queries"]
