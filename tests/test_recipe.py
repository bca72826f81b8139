import ntpath
import re
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctxextend import recipe as recipe_module
from ctxextend import recipe_names
from ctxextend.errors import RecipeError
from ctxextend.kinds import MAX_COUNT
from ctxextend.provenance import parse_provenance
from ctxextend.recipe import (
    MAX_CHARACTERS,
    Recipe,
    RecipeFile,
    parse_recipe,
    read_recipe,
    recipe_values,
    yaml_text,
)
from ctxextend.settings import CheckpointRef, Evaluate, Resize, Train

WHOLE = """\
source: owner/name
revision: main
resize:
  to: 1024
  method: stretch
  keep-first: 4
train:
  data: book.txt
  steps: 20
  lr: 1e-4
  weight_decay: 0
evaluate:
  data:
    - book.txt
  length: 512
  measure: [position, context]
output: longer
"""
STRETCHED = Resize(64, method="stretch", keep_first=2)


def read(text: str, *changes: str) -> Recipe:
    return parse_recipe(text, "recipe.yaml", changes).recipe


def error_lines(text: str, *changes: str) -> list[str]:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "recipe.yaml", changes)
    assert error.value.hint
    return error.value.message.splitlines()


def test_parse_recipe_reads_every_section() -> None:
    recipe = read(WHOLE)
    assert recipe == Recipe(
        CheckpointRef("owner/name", revision="main"),
        Resize(1024, method="stretch", keep_first=4),
        Train(("book.txt",), 20, lr=1e-4, weight_decay=0.0),
        Evaluate(("book.txt",), length=(512,), measure=("position", "context")),
        "longer",
    )


# Revisions that YAML reads as numbers, a boolean and a date unless they are in quotes.
REVISIONS = st.sampled_from(["1e5", "0123", "no", "2020-01-01"])
CHECKPOINTS = st.builds(
    CheckpointRef,
    st.sampled_from(["a/b", "../c", "./d"]),
    revision=st.none() | REVISIONS,
)
RESIZE_STEPS = st.builds(
    Resize,
    st.integers(1, 99),
    method=st.just("stretch"),
    keep_first=st.integers(0, 9),
)
TRAIN_STEPS = st.builds(
    Train,
    st.just(("./a.txt", "hf:b/c", "../d")),
    st.integers(1, MAX_COUNT),
    lr=st.floats(1e-9, 1),
    seed=st.integers(0, MAX_COUNT),
)
EVALUATE_STEPS = st.builds(
    Evaluate,
    st.just(("./null", "./c: d")),
    length=st.just((8, 9)),
    base=st.none() | st.just("none"),
)


@given(CHECKPOINTS, RESIZE_STEPS, st.none() | TRAIN_STEPS, st.none() | EVALUATE_STEPS)
def test_parse_recipe_round_trips_with_yaml_text(
    ref: CheckpointRef, settings: Resize, train: Train | None, evaluate: Evaluate | None
) -> None:
    recipe = Recipe(ref, settings, train, evaluate)
    provenance = {"method": "stretch"}
    values = recipe_values(recipe) | {"provenance": provenance}
    text = yaml_text(values, Path())
    found = parse_recipe(text, "recipe.yaml")
    assert found == RecipeFile(recipe, provenance, yaml.safe_load(text))


def test_parse_recipe_reports_all_errors_with_line_and_nearest_key() -> None:
    text = """\
sorce: a
resize:
  to: 0
  method: magic
  kep-first: 3
train:
  setps: 3
  steps: two
  lr: fast
evaluate:
  data: book.txt
  length: 3
to: 4
"""
    lines = error_lines(text)
    expected = [
        "recipe.yaml: source is missing",
        "recipe.yaml, line 1: unknown key sorce; did you mean source?",
        "recipe.yaml, line 3: --to must be at least 1, got 0.",
        "recipe.yaml, line 4: Unknown method 'magic'. Methods: auto, copy",
        "recipe.yaml, line 5: unknown key resize.kep_first; did you mean resize.keep_first?",
        "recipe.yaml, line 6: train.data is missing",
        "recipe.yaml, line 7: unknown key train.setps; did you mean train.steps?",
        "recipe.yaml, line 8: --steps must be an integer, got two.",
        "recipe.yaml, line 9: --lr must be a number, got fast.",
        "recipe.yaml, line 12: --length must be at least 8, got 3.",
        "recipe.yaml, line 13: unknown key to; did you mean resize.to?",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("to: 64.0", "--to must be an integer, got 64.0."),
        ("to: null", "resize.to is missing"),
        ("to: 64\n  fix_limits: 1", "--fix-limits must be true or false, got 1."),
        ("to: 64\n  method: copy:alpha=0.3", "--method copy has no setting 'alpha'."),
        ("to: 64\n  keep-first: 0\n  keep_first: 0", "duplicate key resize.keep_first"),
        ("to: 64\n  trained_length: 2", "unknown key resize.trained_length; did you mean trained"),
        ("to: 64\n  zzz: 2", "unknown key resize.zzz; use one of resize.to, resize.method"),
    ],
)
def test_parse_recipe_rejects_a_value_or_key_of_a_section(line: str, message: str) -> None:
    lines = error_lines(f"source: a\nresize:\n  {line}\n")
    assert len(lines) == 1
    assert message in lines[0]
    assert re.match(r"recipe\.yaml, line [2-5]: ", lines[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "recipe.yaml: expected a mapping of keys"),
        ("source: a", "recipe.yaml: no steps: add one or more of convert, resize, train, evaluate"),
        ("source: a\nresize: 64", "recipe.yaml, line 2: resize must be a mapping"),
        (
            "source: ''\nresize: {to: 2}\nfoo: {a: 1}",
            "recipe.yaml, line 3: unknown key foo; use one of source",
        ),
        ("a: b: c", "recipe.yaml, line 1: invalid YAML: mapping values are not allowed here."),
        ("a: &x 1\nb: *x", "recipe.yaml, line 2: invalid YAML: aliases are not supported."),
        (
            "a: !!python/name:os.system x",
            "line 1: invalid YAML: could not determine a constructor for the tag",
        ),
        ("a: " + "9" * 5_000, "invalid YAML: Exceeds the limit"),
        ("[" * 1_000, "recipe.yaml: invalid YAML: nested too deeply."),
        ("a" * (MAX_CHARACTERS + 1), "invalid YAML: 200,001 characters, more than 200,000."),
    ],
)
def test_parse_recipe_rejects_invalid_recipes(text: str, message: str) -> None:
    lines = error_lines(text)
    assert len(lines) == 1
    assert message in lines[0]


def test_parse_recipe_reports_invalid_combinations_but_no_follow_up_errors() -> None:
    train = "source: a\ntrain:\n  data: b\n  steps: 2\n  "
    without_window = error_lines(f"{train}window_skip: true")
    assert "--window-skip requires --window." in without_window[0]
    with_invalid_window = error_lines(f"{train}window_skip: true\n  window: many")
    assert len(with_invalid_window) == 1
    uneven = error_lines(f"{train}seed: 1\n  per_device_batch_size: 3")
    message = "line 6: --batch-size must be a multiple of per_device_batch_size, which is 3,"
    assert message in uneven[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["resize.to=32", "train.lr=null"], ("a", Resize(32), Train(("b",), 9), Evaluate(("c",)))),
        (
            ["source=d", "train={data: [e], steps: 1}"],
            ("d", Resize(64), Train(("e",), 1), Evaluate(("c",))),
        ),
        (
            ["evaluate=null", "train=null", "evaluate.data=[f, g=h]"],
            ("a", Resize(64), None, Evaluate(("f", "g=h"))),
        ),
    ],
)
def test_parse_recipe_applies_changes(changes: list[str], expected: tuple[Any, ...]) -> None:
    text = "source: a\nresize: {to: 64}\ntrain: {data: b, steps: 9, lr: 0.1}\nevaluate: {data: c}\n"
    source, *steps = expected
    assert read(text, *changes) == Recipe(CheckpointRef(source), *steps)


def test_parse_recipe_reports_errors_of_changes_but_not_of_replaced_values() -> None:
    text = "source: 1\nresize: {to: long}\ntrain: {setps: 1}\n"
    recipe = read(text, "source=a", "resize.to=64", "train=null")
    assert recipe == Recipe(CheckpointRef("a"), resize=Resize(64))

    lines = error_lines(text, "source=a", "train=null", "resize.too=3", "steps", "resize.to=0")
    too_short, unknown, incomplete = lines
    assert too_short.startswith("--set resize.to: ")
    assert unknown.startswith("--set resize.too: ")
    assert "did you mean resize.to?" in unknown
    assert incomplete.startswith("--set steps: ")
    invalid = error_lines(text, "resize.part=[")
    assert invalid[0].startswith("--set resize.part: invalid YAML")


def test_read_recipe_reports_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        message = re.escape(f"The recipe {path} cannot be read")
        with pytest.raises(RecipeError, match=message):
            read_recipe(path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"source: caf\xe9")
    with pytest.raises(RecipeError, match="it is not UTF-8"):
        read_recipe(latin)


@pytest.mark.parametrize("steps", ["5", "[5]", "text", "[{source: a}]", "{source: a}"])
def test_parse_provenance_rejects_steps_that_are_no_list_of_recipes(steps: str) -> None:
    text = f"{{source: a, resize: {{to: 2}}, provenance: {{steps: {steps}}}}}"
    with pytest.raises(RecipeError, match="is not a valid recipe of an output"):
        parse_provenance(text, "ctxextend.yaml")


def test_parse_recipe_keeps_the_provenance_if_only_the_tokenizer_changes() -> None:
    text = "source: a\nresize: {to: 2}\nprovenance: {method: copy}\n"
    same_source = parse_recipe(text, "recipe.yaml", ["tokenizer=b"])
    other_source = parse_recipe(text, "recipe.yaml", ["source=b"])
    assert same_source.provenance == {"method": "copy"}
    assert other_source.provenance == {}


def test_parse_recipe_expands_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "source: ~/a\ntokenizer: ~/b\nevaluate: {data: [~/c.txt, d.txt]}\n"
    recipe = parse_recipe(text, "recipe.yaml", folder=Path.cwd()).recipe
    assert recipe.checkpoint == CheckpointRef(f"{tmp_path}/a", tokenizer=f"{tmp_path}/b")
    assert recipe.evaluate == Evaluate((f"{tmp_path}/c.txt", "d.txt"))


def test_recipes_support_windows_paths_and_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = SimpleNamespace(path=ntpath, sep="\\", curdir=".", pardir="..")
    monkeypatch.setattr(recipe_module, "os", windows)
    monkeypatch.setattr(recipe_module, "Path", PureWindowsPath)
    values = {
        "source": r"D:\models\a",
        "tokenizer": r"C:\out\b\c",
        "evaluate": {"data": [r"C:\texts\d.txt"]},
    }
    folder: Any = PureWindowsPath(r"C:\out\e")
    text = yaml_text(values, folder)
    assert yaml.safe_load(text) == {
        "source": "D:/models/a",
        "tokenizer": "../b/c",
        "evaluate": {"data": ["../../texts/d.txt"]},
    }
    recipe = parse_recipe(text, "recipe.yaml", folder=folder).recipe
    # The current folder has no drive.
    assert recipe.checkpoint == CheckpointRef("D:/models/a", tokenizer="C:/out/b/c")


def test_builtin_recipes_ignore_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_names, "__file__", str(tmp_path / "ctxextend" / "names.py"))
    project = tmp_path / "pyproject.toml"
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "soup.yaml").write_text("soup: hot\n")
    assert recipe_names.builtin_recipes() == {}

    project.write_text('[project]\nname = "soup"\n')
    assert recipe_names.builtin_recipes() == {}

    project.write_text('[project]\nname = "ctxextend"\n')
    assert list(recipe_names.builtin_recipes()) == ["soup"]
