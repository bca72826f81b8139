"""`verify`: what passes, and every kind of corruption that must fail."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file

from ctxextend import (
    RecipeError,
    SourceError,
    UnsupportedModelError,
    inspect,
    resize,
    verify,
)
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.checkpoint.writing import write_layout
from ctxextend.tables.methods import METHODS
from tests.helpers import pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import invoke, unwrapped
from tests.helpers.verifications import (
    INDEX,
    Change,
    Damage,
    edit,
    failed_checks,
    file_of,
    flip_bit_in,
    modify,
    passed_checks,
    rewrite,
)

MakePico = Callable[..., pico.Pico]
TINY = BUNDLED["tiny-gpt2"]
TABLE = "transformer.wpe.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"
OTHER = "transformer.h.1.mlp.c_fc.weight"
NEW = 512
WIDTH = "intermediate_size"
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
SCHEMA = Draft202012Validator(SCHEMAS["verify"])


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint saved as shards with an index, and its tokenizer files."""
    folder = tmp_path_factory.mktemp("sharded") / "tiny"
    transformers.GPT2LMHeadModel.from_pretrained(TINY).save_pretrained(folder, max_shard_size="1MB")
    for name in SIDE_FILES:
        shutil.copy(TINY / name, folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.fixture
def pair(sharded: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The sharded checkpoint and a resized copy (method copy) that a test can damage."""
    return sharded, resize(sharded, to=NEW, method="copy", output=tmp_path / "out").output


def forget_hash(folder: Path) -> None:
    """Remove the hash of the written table from a recipe, as if the table were as written."""
    recipe = folder / RECIPE_FILE
    without_hash = re.sub(r" +sha256: .*\n", "", recipe.read_text())
    recipe.write_text(without_hash)


def add_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 1


def in_rows_from(first: int, change: Change) -> Change:
    """Change the rows of a table from `first` on."""

    def changed(table: torch.Tensor) -> torch.Tensor:
        return torch.cat([table[:first], change(table[first:])])

    return changed


def times(factor: float) -> Change:
    return lambda tensor: tensor * factor


# What passes


FLAGS = [
    ("hierarchical:alpha=0.3", {}),
    ("random:seed=5", {}),
    ("stretch", {"keep_first": 0}),
    ("linear", {"keep_first": 1}),
]


@pytest.mark.parametrize(
    ("method", "flags"), [*((method, {}) for method in pico.LEARNED_METHODS), *FLAGS]
)
def test_verify_passes_for_every_method(
    sharded: Path, tmp_path: Path, method: str, flags: dict[str, Any]
) -> None:
    out = resize(sharded, to=NEW, method=method, output=tmp_path / "out", **flags).output
    found = verify(out, sharded)
    evidence = passed_checks(found)
    assert list(evidence) == ["tensors", "table", "files"]
    name = method.partition(":")[0]
    if name == "auto":  # the recipe records what it chose
        name = "bands"
    assert found.method == name
    facts = METHODS[name]
    is_kept = "128 of 128 learned rows are bit-identical" in evidence["table"]
    assert is_kept == facts.keeps_learned_rows
    exactness = "within 0.001 of the median norm" if facts.tolerance else "bit for bit"
    assert f"512 of 512 rows match method {name} {exactness}" in evidence["table"]

    (out / RECIPE_FILE).unlink()
    with pytest.raises(RecipeError, match="has no recipe"):
        verify(out, sharded)


@pytest.mark.parametrize(("to", "method"), [(1, "truncate"), (128, "copy")])
def test_verify_passes_for_shorter_and_unchanged_tables(
    sharded: Path, tmp_path: Path, to: int, method: str
) -> None:
    out = resize(sharded, to=to, output=tmp_path / "out").output
    found = verify(out, sharded)
    assert passed_checks(found)
    assert found.method == method


def test_verify_fails_if_the_recipe_is_for_another_base(sharded: Path, tmp_path: Path) -> None:
    middle = resize(sharded, to=256, method="copy", output=tmp_path / "middle").output
    out = resize(middle, to=512, method="copy", output=tmp_path / "out").output
    assert passed_checks(verify(out))
    assert passed_checks(verify(out, middle))
    failed = failed_checks(verify(out, sharded))
    assert failed["table"] == (
        f"The recipe is for a table with 256 rows, and {TABLE} of {sharded} has 128. | Pass the "
        "checkpoint that was resized: --base MODEL."
    )


def test_verify_accepts_fixed_limits(sharded: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(sharded, base)
    pico.edit_json(base / "tokenizer_config.json", model_max_length=64)
    out = resize(base, to=128, fix_limits=True, output=tmp_path / "out").output
    found = verify(out, base)
    assert passed_checks(found)
    assert found.conclusion == f"Verified: {out} differs from {base} only in its length limits."


@pytest.mark.parametrize("form", ["bin", "sentence", "weights file"])
def test_verify_reads_every_form_of_a_source(
    form: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("bert", base=True).folder
    flags = dict[str, Any]()
    weights = source / "model.safetensors"
    if form == "weights file":
        source = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
        flags = {"model_type": "bert"}
    elif form == "bin":
        tensors = load_file(weights)
        tensors[QUERY] = tensors[QUERY].T.contiguous().T  # the same values with other strides
        torch.save(tensors, source / "pytorch_model.bin")
        weights.unlink()
    else:
        source = pico.nest_in_module(source, tmp_path / "sentence")
    out = resize(source, to=40, output=tmp_path / "out", verify=True, **flags).output
    assert passed_checks(verify(out, source, **flags))


def test_verify_accepts_an_explicit_table(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", model_type="custom")
    table = f"{TABLE}:n_positions"
    out = resize(source, to=40, output=tmp_path / "out", table=table).output
    assert passed_checks(verify(out, source, table=table))
    with pytest.raises(UnsupportedModelError, match="--table transformer.wpe.weight:n_positions"):
        verify(out, source)


def test_verify_applies_a_methods_tolerance_to_new_rows_only(sharded: Path, tmp_path: Path) -> None:
    copied = resize(sharded, to=NEW, method="copy", output=tmp_path / "copy").output
    fitted = resize(
        sharded, to=NEW, method="bands", keep_first=128, output=tmp_path / "bands"
    ).output
    nudge = times(1 + 1e-6)
    rewrite(copied, TABLE, in_rows_from(128, nudge))
    rewrite(fitted, TABLE, in_rows_from(128, nudge))

    failed = failed_checks(verify(fitted, sharded))
    changed = f"{TABLE} has changed since it was written: its SHA-256 is not that in ctxextend.yaml"
    assert changed in failed["table"]
    failed = failed_checks(verify(copied, sharded))
    assert "rows do not match method copy" in failed["table"]

    forget_hash(fitted)
    assert passed_checks(verify(fitted, sharded))
    rewrite(fitted, TABLE, nudge)
    failed = failed_checks(verify(fitted, sharded))
    assert "128 of 512 rows do not match method bands" in failed["table"]


# What fails


def replace(name: str, old: str, new: str, encoding: str = "utf-8") -> Damage:
    """Replace text in a file."""

    def damage(out: Path) -> None:
        path = out / name
        text = path.read_text().replace(old, new, 1)
        path.write_text(text, encoding)

    return damage


def remove_from_index(out: Path) -> None:
    index = json.loads((out / INDEX).read_text())
    del index["weight_map"][OTHER]
    (out / INDEX).write_text(json.dumps(index))


def write(name: str, text: str) -> Damage:
    return lambda out: (out / name).write_text(text)


def remove(name: str) -> Damage:
    return lambda out: (out / name).unlink()


def remove_tensor(out: Path) -> None:
    path = file_of(out, OTHER)
    tensors = load_file(path)
    del tensors[OTHER]
    save_file(tensors, path, metadata={"format": "pt"})
    remove_from_index(out)


def change_element(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[1000] += 1
    return tensor


def add_tensor(out: Path) -> None:
    path = file_of(out, OTHER)
    tensors = load_file(path)
    tensors["extra"] = torch.ones(2)
    save_file(tensors, path, metadata={"format": "pt"})


def change_metadata(out: Path) -> None:
    path = file_of(out, OTHER)
    save_file(load_file(path), path, metadata={"format": "tf"})


def truncate_shard(out: Path) -> None:
    path = file_of(out, OTHER)
    path.write_bytes(path.read_bytes()[:-1])


def negate_first_row(table: torch.Tensor) -> torch.Tensor:
    return torch.cat([-table[:1], table[1:]])


LIMITS = "tokenizer_config.json"
# The check that fails, its evidence, and the damage done to the output.
DAMAGES: list[tuple[str, str, Damage]] = [
    (
        "files",
        f"{LIMITS}: model_max_length is 128, expected 512",
        edit(LIMITS, model_max_length=128),
    ),
    ("files", "config.json: attn_pdrop is 0.5, expected 0", edit("config.json", attn_pdrop=0.5)),
    ("files", "metadata.total_size is 4, expected ", edit(INDEX, metadata={"total_size": 4})),
    (
        "files",
        "tokenizer.json: model.vocab.the is missing, expected ",
        replace("tokenizer.json", '"the"', '"teh"'),
    ),
    ("files", "tokenizer_config.json is not UTF-8", replace(LIMITS, "", "", "utf-16")),
    (
        "files",
        "unexpected pytorch_model.bin: ",
        write("pytorch_model.bin", "old"),
    ),
    (
        "tensors",
        "has __metadata__ {'format': 'tf'}, expected {'format': 'pt'}",
        change_metadata,
    ),
    ("tensors", f"{OTHER} is missing", remove_tensor),
    (
        "tensors",
        f"{OTHER} is F16 [128, 512], expected F32 [128, 512]",
        modify(OTHER, torch.Tensor.half),
    ),
    ("tensors", f"{OTHER} differs, first at byte 4,00", modify(OTHER, change_element)),
    (
        "table",
        "identical; changed: 0",
        modify(TABLE, negate_first_row),
    ),
    ("table", "512 of 512 rows do not match method copy", modify(TABLE, add_one)),
    (
        "table",
        "rows do not match method linear",
        replace(RECIPE_FILE, "method: copy", "method: linear"),
    ),
    (
        "readable",
        "file not fully covered",
        truncate_shard,
    ),
]


@pytest.mark.parametrize(
    ("check", "evidence", "damage"), DAMAGES, ids=[evidence for _, evidence, _ in DAMAGES]
)
def test_verify_fails_for_damaged_output(
    check: str, evidence: str, damage: Damage, pair: tuple[Path, Path]
) -> None:
    base, out = pair
    assert passed_checks(verify(out, base))
    damage(out)
    found = failed_checks(verify(out, base))
    assert evidence in found.get(check, ""), found


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_verify_fails_for_any_flipped_bit(pair: tuple[Path, Path], data: st.DataObject) -> None:
    base, out = pair
    paths = sorted(out.glob("*.safetensors"))
    path = data.draw(st.sampled_from(paths))
    content = path.read_bytes()
    header_size = int.from_bytes(content[:8], "little")
    byte = data.draw(st.integers(8 + header_size, len(content) - 1))
    bit = data.draw(st.integers(0, 7))

    flip_bit_in(path, byte, bit)
    found = failed_checks(verify(out, base))
    path.write_bytes(content)
    assert set(found) in ({"tensors"}, {"table"}), found


def test_verify_fails_for_weights_of_another_variant(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    out = resize(source, to=40, output=tmp_path / "out").output
    (out / "model.safetensors").rename(out / "model.fp16.safetensors")
    failed = failed_checks(verify(out, source))
    assert "are variant fp16, expected no variant" in failed["files"]


@pytest.mark.parametrize(
    "change",
    [
        write("README.md", "another card"),
        write("train_log.jsonl", "{}"),
        replace(
            "config.json",
            '"transformers_version": "',
            '"_name_or_path": "", "transformers_version": "9.',
        ),
    ],
)
def test_verify_ignores_changes_that_no_model_uses(change: Damage, pair: tuple[Path, Path]) -> None:
    base, out = pair
    change(out)
    assert passed_checks(verify(out, base))


def test_verify_does_not_trust_the_recipes_table(pair: tuple[Path, Path]) -> None:
    base, out = pair
    rewrite(out, "transformer.wte.weight", lambda tensor: tensor * 0 + 7)
    table = "transformer.wte.weight:vocab_size"
    forged: dict[str, Any] = {"source": str(base), "table": table, "resize": {"to": 1024}}
    trained = forged | {"train": {"data": "x", "steps": 1, "trainable": "positions"}}
    for recipe in (forged, trained):
        (out / RECIPE_FILE).write_text(json.dumps(recipe))
        failed = failed_checks(verify(out, base))
        assert "transformer.wte.weight differs" in failed["tensors"]


@pytest.mark.parametrize(
    ("valid", "invalid"),
    [
        ("provenance:", "- 1"),
        ("provenance:", "!!python/object/apply:os.system ['id']"),
        ("rows_before: 128", "rows_before: -5"),
        ("rows_before: 128", f"rows_before: 0x1{'f' * 8000}"),
    ],
)
def test_verify_refuses_an_invalid_recipe_and_inspect_ignores_it(
    valid: str, invalid: str, pair: tuple[Path, Path]
) -> None:
    base, out = pair
    damage = replace(RECIPE_FILE, valid, invalid)
    damage(out)
    with pytest.raises(RecipeError, match="is not a valid recipe of an output"):
        verify(out, base)
    assert inspect(out).tables[0].new_rows is None


# After training


# `trainable` in the recipe, what was actually trained, and the checks that fail.
TRAINED: list[tuple[str, dict[str, Change], dict[str, str]]] = [
    ("positions", {TABLE: add_one}, {}),
    ("new", {TABLE: in_rows_from(128, add_one)}, {}),
    (
        "new",
        {TABLE: in_rows_from(300, times(math.nan))},
        {"table": "212 rows with NaN"},
    ),
    (
        "new",
        {TABLE: add_one},
        {"table": "128 of 512 rows do not match method copy, although only new"},
    ),
    ("all", {}, {"tensors": "all weights were trained according to the recipe"}),
    (
        "all-but-positions",
        {TABLE: in_rows_from(300, add_one)},
        {
            "tensors": "all weights except the position table were trained according to the recipe",
            "table": "212 of 512 rows do not match method copy, although the table was not "
            "trained: 300-511",
        },
    ),
]


@pytest.mark.parametrize(("trainable", "trained", "failures"), TRAINED)
def test_verify_checks_only_untrained_rows_of_a_trained_checkpoint(
    trainable: str, trained: dict[str, Change], failures: dict[str, str], pair: tuple[Path, Path]
) -> None:
    base, out = pair
    for name, change in trained.items():
        rewrite(out, name, change)
    train = f"train: {{data: x, steps: 1, trainable: {trainable}}}\nprovenance:"
    add_training = replace(RECIPE_FILE, "provenance:", train)
    add_training(out)
    if TABLE in trained and "table" not in failures:
        failed = failed_checks(verify(out, base))
        assert "has changed since it was written" in failed["table"]
        forget_hash(out)

    found = verify(out, base)
    failed = failed_checks(found)
    assert failed.keys() == failures.keys()
    for name, text in failures.items():
        assert text in failed[name]
    (note,) = found.notes
    assert "cannot recreate the trained values" in note
    if not failures:
        rows = "new rows" if trainable == "new" else "rows"
        assert found.conclusion.endswith(f"only in its position table ({rows} trained).")
        assert "; trained afterwards" in passed_checks(found)["table"]


# --deep


@pytest.mark.parametrize("model_type", sorted(pico.CONFIGS))
def test_verify_deep_reports_identical_outputs_if_learned_rows_are_kept(
    model_type: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type).folder
    copied = resize(source, to=40, output=tmp_path / "copy").output
    kept = passed_checks(verify(copied, source, deep=True))
    assert list(kept) == ["tensors", "table", "files", "loads", "runs", "outputs"]
    assert "bit-identical to the base's on inputs of 4 tokens" in kept["outputs"]

    stretched = resize(source, to=40, method="linear", output=tmp_path / "linear").output
    changed = passed_checks(verify(stretched, source, deep=True))
    assert "outputs on short inputs may differ from the base's" in changed["outputs"]
    assert "largest difference: " in changed["outputs"]


@pytest.mark.parametrize(
    ("method", "config", "failures"),
    [
        ("copy", {"n_positions": 60}, {"loads": "mismatched key: transformer.wpe.weight"}),
        ("linear", {"n_positions": 4}, {"runs": "fails on 40 tokens: ", "outputs": "fails ("}),
        (
            "copy",
            {"vocab_size": 20},
            {"loads": "mismatched key: transformer.wte", "outputs": "[1, 16, 20] instead of"},
        ),
        (
            "copy",
            {"layer_norm_epsilon": 0.5},
            {"outputs": "must be identical to the base's"},
        ),
    ],
    ids=str,
)
def test_verify_deep_fails_for_a_config_that_does_not_load_or_changes_outputs(
    method: str,
    config: dict[str, Any],
    failures: dict[str, str],
    make_pico: MakePico,
    tmp_path: Path,
) -> None:
    source = make_pico("gpt2").folder
    out = resize(source, to=40, method=method, output=tmp_path / "out").output
    pico.edit_json(out / "config.json", **config)
    failed = failed_checks(verify(out, source, deep=True))
    assert "files" in failed
    for name, text in failures.items():
        assert text in failed[name], failed


def test_verify_deep_accepts_a_base_with_nan(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    rewrite(source, "transformer.ln_f.bias", times(math.nan))
    out = resize(source, to=40, output=tmp_path / "nan").output
    assert passed_checks(verify(out, source, deep=True))


def test_verify_deep_does_not_run_code_of_a_checkpoint(
    make_pico: MakePico, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_pico("gpt2").folder
    marker = tmp_path / "code-was-run"
    pico.edit_json(source / "config.json", architectures=None)
    out = resize(source, to=40, output=tmp_path / "out").output
    auto_map = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    pico.edit_json(out / "config.json", model_type="evil", auto_map=auto_map)
    (out / "code.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.setattr(
        "builtins.input", lambda *_: "y"
    )  # transformers asks before it runs remote code
    assert "loads" in failed_checks(verify(out, source, deep=True))
    assert not marker.exists()


# The commands


def test_verify_prints_its_checks_and_sets_the_exit_code(pair: tuple[Path, Path]) -> None:
    base, out = pair
    done = invoke("verify", out, "--base", base)
    assert done.exit_code == 0
    assert done.stdout.startswith(
        f"Verified: {out} differs from {base} only in its position table.\npassed  tensors  "
    )

    flip_bit_in(file_of(out, OTHER), -1)
    done = invoke("verify", out, "--base", base)
    assert done.exit_code == 3
    assert done.stdout.startswith(
        f"Not verified: {out} is not a pure resize of {base} (failed: tensors).\nFAILED  tensors  "
    )

    done = invoke("verify", out, "--base", base, "--json")
    values = json.loads(done.stdout)
    SCHEMA.validate(values)
    assert done.exit_code == 3
    assert values["passed"] is False
    assert values["checks"][0]["status"] == "failed"


def test_verify_flags_for_the_base_override_its_recipe(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    weights = tmp_path / "weights.safetensors"
    shutil.copy(source / "model.safetensors", weights)
    resize(weights, to=NEW, output="out", model_type="gpt2")
    done = invoke("verify", "out")
    assert done.exit_code == 0

    done = invoke("verify", "out", "--model-type", "bert")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "no position table found; in a bert model it is" in done.stderr


def test_resize_verify_writes_nothing_if_the_output_is_wrong(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("resize", sharded, "--to", NEW, "-o", "out", "--force", "--verify", "--json")
    done = invoke(*arguments)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verified"] is True
    before = pico.contents(Path("out"))

    def damaging(file: Any, source: Any, layout: Any, tensors: Any, output: Any, _: Any) -> None:
        write_layout(file, source, layout, tensors, output, lambda *_: None)
        flip_bit_in(Path(output.name), -1)

    monkeypatch.setattr("ctxextend.checkpoint.writing.write_layout", damaging)
    done = invoke(*arguments)
    assert done.exit_code == 3
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "VerificationError"
    assert error["message"].startswith("The output does not match the plan. t")
    assert [path.name for path in Path().iterdir()] == ["out"]
    assert pico.contents(Path("out")) == before


# ---- a checkpoint that would be compared with itself


def test_verify_rejects_the_checkpoint_itself_as_its_base() -> None:
    source = pico.make(Path("model"), "bert").folder
    shutil.copytree(source, "before")
    output = resize(source, to=32, output="out").output
    Path("link").symlink_to("out")
    for base in ("out", "./out", "link"):
        with pytest.raises(SourceError, match="are the same: there is nothing to compare"):
            verify("out", base)

    shutil.copytree(output, source, dirs_exist_ok=True)  # its recipe now names itself
    pico.edit_json(source / "config.json", intermediate_size=99)
    for name in ("model", "./model/"):
        done = invoke("verify", name)
        assert done.exit_code == 1
        assert f"The recipe of {name} names {name} as its base" in unwrapped(done.stderr)
        assert "Pass --base MODEL" in unwrapped(done.stderr)
        assert done.stdout == ""
    assert failed_checks(verify("model", "before")).keys() == {"files"}
