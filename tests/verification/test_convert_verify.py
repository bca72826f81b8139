"""`verify` of conversions: it finds every damage, and compares outputs without positions."""

import shutil
from pathlib import Path

import pytest
import torch

from ctxextend import convert, verify
from tests.helpers import pico
from tests.helpers.verifications import Damage, edit, failed_checks, modify, passed_checks

PAIRS = [("gpt2", "rotary"), ("gpt2", "alibi"), ("bert", "rotary"), ("roberta", "rotary")]
QKV = "gpt_neox.layers.1.attention.query_key_value.weight"
NEW = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source of each type, and with its conversions as ``<type>-<scheme>``."""
    root = tmp_path_factory.mktemp("pairs")
    for model_type in ("gpt2", "bert", "roberta"):
        source = root / model_type
        pico.make(source, model_type, vocab_size=128, eos_token_id=1, bos_token_id=0)
        (source / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    for model_type, scheme in PAIRS:
        convert(root / model_type, scheme, NEW, output=root / f"{model_type}-{scheme}")
    return root


@pytest.mark.parametrize(("model_type", "scheme"), PAIRS)
def test_verify_deep_finds_equal_outputs_without_positions(
    model_type: str, scheme: str, folder: Path
) -> None:
    evidence = passed_checks(verify(folder / f"{model_type}-{scheme}", deep=True))
    assert "equal the base's within float32 rounding (tolerance " in evidence["outputs"]
    assert f"runs on {NEW} tokens" in evidence["runs"]
    assert "no missing, unexpected or mismatched keys" in evidence["loads"]
    assert evidence["tensors"].endswith(" bytes): byte-identical")
    assert "changed tokenizer_config.json model_max_length 64; " in evidence["files"]
    if model_type != "gpt2":
        positions = "64 of 64 rows are the angles of their positions, bit for bit"
    elif scheme == "rotary":
        positions = "rotary positions, theta 1000"
    else:
        positions = "ALiBi positions"
    assert evidence["table"].endswith(positions)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_verify_deep_states_the_rounding_of_16_bit_weights(
    dtype: torch.dtype, name: str, tmp_path: Path
) -> None:
    source = pico.make(tmp_path / "source", "gpt2", dtype=dtype).folder
    out = convert(source, "rotary", NEW, output=tmp_path / "out").output
    evidence = passed_checks(verify(out, deep=True))
    assert f"rounding and that of the embeddings to {name}" in evidence["outputs"]


def test_verify_deep_compares_the_base_model_if_a_head_was_dropped(
    folder: Path, tmp_path: Path
) -> None:
    out = convert(folder / "bert", "rotary", NEW, output=tmp_path / "out", encoder_only=True).output
    evidence = passed_checks(verify(out, deep=True))
    assert "within float32 rounding" in evidence["outputs"]


def plus_one(weight: torch.Tensor) -> torch.Tensor:
    weight.view(-1)[3] += 1
    return weight


ROPE = {"rope_type": "default", "rope_theta": 999, "partial_rotary_factor": 1.0}
HALF_ROPE = ROPE | {"rope_theta": 1000, "partial_rotary_factor": 0.5}
ANGLES = "roformer.encoder.embed_positions.weight"
DAMAGES: list[tuple[str, str, str, Damage]] = [
    ("gpt2", "tensors", f"{QKV} differs, first at byte 12 (element 3)", modify(QKV, plus_one)),
    (
        "gpt2",
        "table",
        "rope_theta is 999, expected 1000",
        edit("config.json", rope_parameters=ROPE, rotary_emb_base=999),
    ),
    (
        "gpt2",
        "files",
        "use_parallel_residual is true, expected false",
        edit("config.json", use_parallel_residual=True),
    ),
    (
        "bert",
        "table",
        f"{ANGLES}: 1 of 64 rows are not the angles of their positions: 0",
        modify(ANGLES, plus_one),
    ),
]


@pytest.mark.parametrize(
    ("model_type", "check", "evidence", "damage"), DAMAGES, ids=[item[2] for item in DAMAGES]
)
def test_verify_fails_for_a_damaged_conversion(
    model_type: str, check: str, evidence: str, damage: Damage, folder: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(folder / f"{model_type}-rotary", tmp_path / "out"))
    damage(out)
    found = verify(out, folder / model_type)
    assert evidence in failed_checks(found)[check]
    assert "is not a pure conversion of" in found.conclusion


def test_verify_deep_fails_for_outputs_that_differ_by_more_than_rounding(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder / "gpt2-alibi", out)
    pico.edit_json(out / "config.json", layer_norm_epsilon=1e-4)
    failed = failed_checks(verify(out, folder / "gpt2", deep=True))
    assert "must equal the base's within float32 rounding" in failed["outputs"]
