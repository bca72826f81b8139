"""`verify` of conversions: it finds every damage, and compares outputs without positions."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend import convert, resize, verify
from ctxextend.checkpoint.filenames import RECIPE_FILE
from tests.helpers import pico
from tests.helpers.trainings import invoke
from tests.helpers.verifications import failed_checks, flip_bit_in, passed_checks, rewrite

Damage = Callable[[Path], object]
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


def config(**changes: Any) -> Damage:
    return lambda folder: pico.edit_json(folder / "config.json", **changes)


def change(name: str) -> Damage:
    """Add one to an element of a tensor."""
    return lambda folder: rewrite(folder, name, plus_one)


def remove_head(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["embed_out.weight"]
    save_file(tensors, path, metadata={"format": "pt"})


def add_tensor(folder: Path) -> None:
    pico.add_tensors(folder, {"extra": torch.ones(2)})


def set_tokenizer_class(folder: Path) -> None:
    pico.edit_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")


ROPE = {"rope_type": "default", "rope_theta": 999, "partial_rotary_factor": 1.0}
ANGLES = "roformer.encoder.embed_positions.weight"
DAMAGES: list[tuple[str, str, str, Damage]] = [
    (
        "gpt2",
        "tensors",
        f"{QKV} differs, first at byte 12 (element 3)",
        change(QKV),
    ),
    (
        "gpt2",
        "tensors",
        "embed_in.weight differs",
        change("gpt_neox.embed_in.weight"),
    ),
    (
        "gpt2",
        "tensors",
        "embed_out.weight differs",
        change("embed_out.weight"),
    ),
    (
        "gpt2",
        "tensors",
        "embed_out.weight is missing",
        remove_head,
    ),
    (
        "gpt2",
        "tensors",
        "extra is not in the base",
        add_tensor,
    ),
    (
        "gpt2",
        "table",
        "rope_theta is 999, expected 1000",
        config(rope_parameters=ROPE, rotary_emb_base=999),
    ),
    (
        "gpt2",
        "table",
        "partial_rotary_factor is 0.5 by rope_parameters, which transformers follows, but "
        "1.0 by rotary_pct.",
        config(rope_parameters=ROPE | {"rope_theta": 1000, "partial_rotary_factor": 0.5}),
    ),
    (
        "gpt2",
        "files",
        "use_parallel_residual is true, expected false",
        config(use_parallel_residual=True),
    ),
    (
        "gpt2",
        "files",
        "tie_word_embeddings is true, expected false",
        config(tie_word_embeddings=True),
    ),
    (
        "gpt2",
        "files",
        'tokenizer_class is "BertTokenizer"',
        set_tokenizer_class,
    ),
    (
        "bert",
        "table",
        f"{ANGLES}: 1 of 64 rows are not the angles of their positions: 0",
        change(ANGLES),
    ),
    (
        "bert",
        "tensors",
        "token_type_embeddings.weight differs",
        change("roformer.embeddings.token_type_embeddings.weight"),
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


def test_verify_of_a_resized_conversion(folder: Path, tmp_path: Path) -> None:
    converted = folder / "gpt2-rotary"
    longer = resize(converted, to=128, output=tmp_path / "longer").output
    assert passed_checks(verify(longer, converted))


def test_verify_of_a_trained_conversion(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder / "gpt2-rotary", out)
    recipe = (out / RECIPE_FILE).read_text()
    train = "train: {data: x, steps: 1, trainable: all}\n"
    (out / RECIPE_FILE).write_text(recipe.replace("provenance:", f"{train}provenance:"))
    failed = failed_checks(verify(out, folder / "gpt2", deep=True))
    assert failed["tensors"].startswith(
        "all weights were trained according to the recipe, so not only positions differ"
    )


def test_convert_verify_writes_nothing_if_the_output_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctxextend.checkpoint.writing import write_layout as real

    arguments = (folder / "gpt2", "--scheme", "rotary", "--to", NEW, "-o", "out", "--verify")
    done = invoke("convert", *arguments)
    assert done.exit_code == 0
    shutil.rmtree("out")

    def damaging(file: Any, source: Any, layout: Any, tensors: Any, output: Any, _: Any) -> None:
        real(file, source, layout, tensors, output, lambda *_: None)
        flip_bit_in(Path(output.name), -1)

    monkeypatch.setattr("ctxextend.checkpoint.writing.write_layout", damaging)
    done = invoke("convert", *arguments)
    assert done.exit_code == 3
    assert list(Path().iterdir()) == []
    assert "The output does not match the plan. tensors:" in done.stderr
