"""`resize` and `plan_resize` on pico models, checked with transformers and by their bytes."""

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ctxextend import (
    CheckpointError,
    ResizeError,
    inspect,
    plan_resize,
    register_method,
    resize,
    run,
    verify,
)
from ctxextend.errors import OutputError
from ctxextend.json_output import to_json
from ctxextend.tables.methods import METHODS
from tests.helpers import pico
from tests.helpers.notes import text_of, texts

MakePico = Callable[..., pico.Pico]

OLD, NEW = 16, 40
MOVED = f"{METHODS['linear'].short_inputs[:1].upper()}{METHODS['linear'].short_inputs[1:]}"
WPE, MASK = "transformer.wpe.weight", "transformer.h.0.attn.bias"


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("gpt2", {}), ("roberta", {"pad_token_id": 4, "max_position_embeddings": 21})],
)
def test_resize_changes_only_the_table_and_keeps_the_source(
    model_type: str, changes: dict[str, Any], shards: bool, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type, **changes).folder
    if shards:
        assert len(pico.shard(source)) > 1
    files = pico.contents(source)
    plan = plan_resize(source, to=NEW)
    result = plan.execute(tmp_path / "out")
    assert pico.contents(source) == files
    before = pico.tensor_bytes(source)
    after = pico.tensor_bytes(result.output)
    table = plan.plan.changes[0].name
    assert list(after) == list(before)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {table}

    dtype, shape, data = before[table]
    new_dtype, new_shape, new_data = after[table]
    offset = shape[0] - OLD
    assert new_dtype == dtype
    assert new_shape == (NEW + offset, pico.WIDTH)
    assert new_data.startswith(data)

    out = pico.contents(result.output)
    weights = [name for name in files if name.endswith(".safetensors")]
    rewritten = {name for name in weights if files[name] != out[name]}
    assert rewritten == set(plan.output.files.rewritten)
    assert len(rewritten) == 1


@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
@pytest.mark.parametrize("to", [1, 5, OLD, 17])
def test_resize_supports_any_length(
    model_type: str, to: int, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type)
    result = resize(source.folder, to=to, output=tmp_path / "out")
    new = source.load(tmp_path / "out")
    method = "truncate" if to < OLD else "copy"
    assert result.plan.method == method
    pico.logits(new, to)
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(new, to + 1)
    length = min(to, OLD)
    expected = pico.logits(source.load(), length)
    found = pico.logits(new, length)
    assert torch.equal(expected, found)


def test_resize_updates_the_shard_index(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    pico.shard(source.folder)
    index = source.folder / "model.safetensors.index.json"
    values = pico.read_json(index)
    metadata = values["metadata"] | {"note": "kept"}
    pico.edit_json(index, metadata=metadata)
    output = tmp_path / "out"
    resize(source.folder, to=NEW, output=output)

    new = pico.read_json(output / index.name)
    assert new["weight_map"] == values["weight_map"]
    tensors = pico.tensor_bytes(output)
    size = sum(len(data) for _, _, data in tensors.values())
    model = source.load(output)
    assert new["metadata"] == {
        "total_parameters": model.num_parameters(),
        "total_size": size,
        "note": "kept",
    }


def test_resize_edits_config_in_place_and_keeps_its_formatting(
    make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2").folder
    text = (source / "config.json").read_text()
    text = text.rstrip().removesuffix("}").rstrip()
    text += ',\n  "n_ctx" : 16,\n\n\t"max_position_embeddings":16\n}'
    (source / "config.json").write_text(text)
    result = resize(source, to=NEW, output=tmp_path / "out")

    expected = text.replace('"n_positions": 16', '"n_positions": 40')
    expected = expected.replace('"n_ctx" : 16', '"n_ctx" : 40')
    expected = expected.replace('embeddings":16', 'embeddings":40')
    assert (result.output / "config.json").read_text() == expected


def test_resize_adds_a_missing_length_to_the_config(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert", max_position_embeddings=512)
    pico.edit_json(source.folder / "config.json", max_position_embeddings=None)
    resize(source.folder, to=600, output=tmp_path / "out")
    config = pico.config_of(tmp_path / "out")
    assert config["max_position_embeddings"] == 600
    model = source.load(tmp_path / "out")
    pico.logits(model, 600)


def test_resize_copies_other_files_and_keeps_modes(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert").folder
    files = {
        "vocab.txt": b"\x00\xff words",
        "1_Pooling/config.json": b"{}",
        "LICENSE": b"mine",
        "a/b/c.bin": b"deep",
    }
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    modes = {"vocab.txt": 0o600, "config.json": 0o640, "model.safetensors": 0o604}
    for name, mode in modes.items():
        (source / name).chmod(mode)
    resize(source, to=NEW, output=tmp_path / "out")
    out = pico.contents(tmp_path / "out")
    copied = {name: out[name] for name in files}
    assert copied == files
    expected = {*pico.contents(source), "README.md", "ctxextend.yaml"}
    assert set(out) == expected
    for name, mode in modes.items():
        status = (tmp_path / "out" / name).stat()
        assert status.st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "method", [*pico.LEARNED_METHODS, "hierarchical:alpha=0.25", "random:seed=7"]
)
def test_resize_recipe_reproduces_the_output_of_every_method(
    method: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2").folder
    settings = pico.resize_settings(method)
    result = resize(source, to=NEW, **settings, output=tmp_path / "out")
    out = result.output

    recipe = pico.recipe_of(out)
    full_method = recipe["resize"].pop("method")
    stated = {key: value for key, value in settings.items() if key != "method" and value}
    assert recipe["resize"] == {"to": NEW, "keep_first": 0, **stated}
    chosen = METHODS[full_method.partition(":")[0]]
    optional = {"repeat", "radius", "high_gain"}
    named = set(re.findall(r"(\w+)=", full_method))
    assert named - optional == set(chosen.settings) - optional

    run(out / "ctxextend.yaml", tmp_path / "again")
    assert pico.contents(tmp_path / "again") == pico.contents(out)
    assert verify(out, source).passed

    provenance = recipe["provenance"]
    assert provenance["method"] == full_method
    assert provenance["versions"]["numpy"] == np.__version__
    table = provenance["tables"][0]
    assert table["rows_before"] == OLD
    assert table["rows_after"] == NEW
    assert table["sha256"] == sha256(out, table["name"])


def sha256(folder: Path, name: str) -> str:
    """Return the digest of a tensor's bytes."""
    _, _, data = pico.tensor_bytes(folder)[name]
    return hashlib.sha256(data).hexdigest()


def test_plan_resize_writes_nothing_and_predicts_the_size(
    make_pico: MakePico, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = make_pico("gpt2").folder
    before = pico.contents(tmp_path)
    plan = plan_resize(source, to=NEW)
    to_json(plan)
    plan.output.at(tmp_path / "out").check(force=False)
    assert pico.contents(tmp_path) == before
    steps: list[tuple[int, int]] = []

    def progress(advance: int, total: int, label: str = "") -> None:
        steps.append((advance, total))

    result = plan.execute(tmp_path / "out", progress=progress)
    files = pico.contents(result.output)
    size = sum(len(data) for data in files.values())
    assert result.bytes_written == size
    assert plan.output.bytes_to_write == size
    _, total = steps[0]
    assert total == size
    assert sum(advance for advance, _ in steps) == size


# ---- warnings


def test_resize_warns_about_rows_with_nan(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    table = torch.ones(OLD, pico.WIDTH)
    table[3, 1] = math.nan
    table[7, 0] = math.inf
    pico.add_tensors(source, {WPE: table})
    result = resize(source, to=NEW, output=tmp_path / "out")
    warning = f"{WPE} contains NaN or infinity in rows 3, 7; so do 6 of the 40 rows of the output."
    assert texts(result)[-1] == warning
    waves = resize(source, to=NEW, method="sinusoidal", output=tmp_path / "waves")
    assert "so do 26 of the 40 rows" in texts(waves)[-1]


def test_resize_warns_about_new_rows_that_overflow_the_dtype(
    make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2", dtype=torch.float16).folder
    rows = 60000.0 * (-1) ** torch.arange(OLD)
    table = rows.half()[:, None].repeat(1, pico.WIDTH)
    pico.add_tensors(source, {WPE: table})
    result = resize(source, to=NEW, method="sinusoidal", output=tmp_path / "out")
    assert texts(result)[-1] == f"24 new rows of {WPE} overflow F16 to infinity."


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"method": "linear", "keep_first": 3},
            f"{MOVED} (the first 3 rows are kept).",
        ),
        (
            {"method": "sinusoidal:scope=all", "keep_first": 3},
            "inputs change too (the first 3 rows are kept).",
        ),
        (
            {"to": 7},
            "Inputs up to 7 tokens give identical outputs; longer inputs are not supported.",
        ),
        ({"to": OLD}, "The context length already is 16: the output is a copy."),
    ],
)
def test_consequences_are_true_for_every_option(
    options: dict[str, Any], expected: str, make_pico: MakePico
) -> None:
    source = make_pico("gpt2").folder
    plan = plan_resize(source, **{"to": NEW, **options})
    is_untrained = text_of(plan).startswith("Not yet trained at 40. ")
    assert is_untrained == ("to" not in options)
    assert expected in text_of(plan)


@pytest.mark.parametrize(("to", "is_far"), [(8 * OLD, False), (8 * OLD + 1, True)])
def test_resize_warns_of_lengths_beyond_all_that_were_measured_as_useful(
    to: int, is_far: bool, make_pico: MakePico
) -> None:
    plan = plan_resize(make_pico("gpt2").folder, to)
    assert bool(texts(plan, "far", "warning")) == is_far
    if is_far:
        assert f"{to} is 8 times the trained length of 16." in text_of(plan, "far")


# ---- bad input: a clear error, an unchanged source, and no leftovers


def assert_rejected(source: Path, error: type[Exception], message: str, **options: Any) -> None:
    before = pico.contents(source.parent)
    arguments = {"to": NEW, "output": source.parent / "out", **options}
    with pytest.raises(error, match=message):
        resize(source, **arguments)
    assert pico.contents(source.parent) == before
    assert not list(source.parent.glob(".*ctxextend*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keep_first": 16, "method": "copy"},
            "--keep-first 16: copy keeps all 16 already. Remove --keep-first.",
        ),
        (
            {"method": "hierarchical", "to": 257},
            "extends 16 learned positions to at most 256, .*--to 256 or fewer",
        ),
        (
            {"to": 8, "method": "linear"},
            f"--method cannot be used when shrinking {WPE} from 16 to 8 positions: the first 8 "
            "are kept. Remove --method",
        ),
    ],
)
def test_resize_rejects_invalid_options(
    options: dict[str, Any], message: str, make_pico: MakePico
) -> None:
    source = make_pico("gpt2")
    assert_rejected(source.folder, ResizeError, message, **options)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"n_positions": 32}, {}, f"n_positions is 32, so {WPE} should have 32 rows, but has 16"),
        (
            {},
            {"wpe.weight": torch.ones(OLD, 8)},
            f"two candidate position tables, wpe.weight and {WPE}",
        ),
        (
            {},
            {WPE: torch.ones(OLD, 8, dtype=torch.int8)},
            f"{WPE} has dtype I8, which is not supported",
        ),
    ],
)
def test_resize_rejects_a_config_that_does_not_match_the_table(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], message: str, make_pico: MakePico
) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", **config)
    pico.add_tensors(source, tensors)
    assert_rejected(source, CheckpointError, message)


def test_resize_reports_too_little_memory(make_pico: MakePico) -> None:
    def fail(rows: Any, length: int) -> Any:
        raise MemoryError

    register_method("too-large", fail)
    message = f"Out of memory: {WPE} of shape .40, 8. is too large. Use a smaller --to."
    try:
        assert_rejected(make_pico("gpt2").folder, ResizeError, message, method="too-large")
    finally:
        METHODS.pop("too-large")


@pytest.mark.parametrize(("name", "mode"), [("model.safetensors", 0o600), ("1_Pooling", 0o700)])
def test_resize_reports_missing_permissions(
    name: str, mode: int, make_pico: MakePico, public_path: Path
) -> None:
    folder = make_pico("gpt2").folder
    source = Path(shutil.copytree(folder, public_path / "model"))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / name).chmod(mode)
    before = pico.contents(public_path)
    os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match=f"{name} cannot be read: Permission denied"):
            resize(source, to=NEW, output=public_path / "out")
    finally:
        os.seteuid(0)
    assert pico.contents(public_path) == before


def test_resize_supports_names_that_are_not_utf8(make_pico: MakePico, tmp_path: Path) -> None:
    name = os.fsdecode(b"b\xffad: x")
    source = make_pico("gpt2").folder.rename(tmp_path / name)
    (source / "README.md").write_bytes(b"# Caf\xe9\n")
    result = resize(source, to=NEW, output=tmp_path / "out")
    card = (result.output / "README.md").read_bytes()
    assert card.startswith(b"# Caf\xe9\n")
    assert b"b\\xffad: x with its positions" in card
    recipe = pico.recipe_of(result.output)
    assert recipe["resize"]["to"] == NEW


def test_resize_leaves_a_stored_table_that_transformers_ignores(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "d_model": 64,
        "ffn_dim": 16,
        "num_layers": 1,
        "attention_heads": 2,
    }
    config = transformers.XGLMConfig(max_position_embeddings=64, **sizes)
    model = transformers.XGLMForCausalLM(config)
    model.save_pretrained(tmp_path / "xglm")
    name = "model.embed_positions.weights"
    stored = torch.randn(66, 64)
    pico.add_tensors(tmp_path / "xglm", {name: stored})  # as in files of old versions
    result = resize(tmp_path / "xglm", 128, output=tmp_path / "out")
    note = (
        f"transformers computes the rows of {name} and ignores the stored ones, which stay as "
        "they are."
    )
    assert note in inspect(tmp_path / "xglm").notes
    assert result.plan.methods == {name: "formula"}
    before = pico.tensor_bytes(tmp_path / "xglm")
    assert pico.tensor_bytes(result.output) == before
    assert verify(result.output)


def test_resize_back_restores_the_tensors(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    resize(source, to=NEW, output=tmp_path / "one")
    resize(tmp_path / "one", to=OLD, output=tmp_path / "two")
    tensors = pico.tensor_bytes(tmp_path / "two")
    assert tensors == pico.tensor_bytes(source)
    card = (tmp_path / "two" / "README.md").read_text()
    assert card.count("## Context length") == 2


def test_resize_rejects_an_output_that_exists_or_overlaps_the_source(make_pico: MakePico) -> None:
    source = make_pico("bert").folder
    for output in (source, source / "out"):
        for force in (False, True):
            assert_rejected(source, OutputError, "overlap", output=output, force=force)
    out = source.parent / "out"
    resize(source, to=NEW, output=out)
    assert_rejected(source, OutputError, "exists")
    resize(source, to=24, output=out, force=True)
    config = pico.config_of(out)
    assert config["max_position_embeddings"] == 24
