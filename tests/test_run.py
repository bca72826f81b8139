"""`run`, from the command line and as a function."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import ctxextend
from ctxextend import RecipeError, resize
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.cli.app import build_app
from ctxextend.lab.evaluation import Evaluation
from ctxextend.opening.opened_model import open_reference
from ctxextend.planned import Planned
from ctxextend.provenance import read_provenance
from ctxextend.recipe import Recipe, read_recipe, without_folders
from ctxextend.settings import CheckpointRef, Evaluate, Resize, Train
from ctxextend.training.train_result import TrainResult
from tests.helpers import pico, trainings


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["run", *arguments])


def set_flags(changes: Iterable[str]) -> list[str]:
    """Return a --set flag for each change."""
    flags: list[str] = []
    for change in changes:
        flags += ["--set", change]
    return flags


def write(text: str) -> str:
    Path("recipe.yaml").write_text(text)
    return "recipe.yaml"


@pytest.mark.parametrize(
    "settings",
    [
        {"to": 512},
        {"to": 100},
        {"to": 128, "fix_limits": True},
        {"to": 300, "method": "stretch", "keep_first": 4},
    ],
    ids=str,
)
def test_run_reproduces_an_output_from_its_recipe(settings: dict[str, Any]) -> None:
    first = resize("tiny-gpt2", output="first", **settings).output
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.exit_code == 0
    assert done.stdout == "again\n"
    assert pico.contents(Path("again")) == pico.contents(first)
    without_output = invoke("again/ctxextend.yaml", "-q")
    assert without_output.stdout == f"tiny-gpt2-{settings['to']}\n"


def test_run_rejects_changes_of_a_recipe_that_is_not_a_file() -> None:
    recipe = Recipe(CheckpointRef("tiny-gpt2"), Resize(32))
    with pytest.raises(RecipeError, match="Changes apply only to recipe files"):
        ctxextend.run(recipe, changes=["resize.to=3"])
    assert list(Path.cwd().iterdir()) == []


def copy_of_tiny_gpt2(folder: Path, *, as_pickle: bool = False) -> Path:
    """Copy the bundled checkpoint to a folder and return its weights file."""
    shutil.copytree(BUNDLED["tiny-gpt2"], folder)
    path = folder / "model.safetensors"
    if not as_pickle:
        return path
    torch.save(load_file(path), folder / "pytorch_model.bin")
    path.unlink()
    return folder / "pytorch_model.bin"


def flip_bit(weights: Path, offset: float) -> None:
    """Flip a bit of the token embedding of ./source, at an offset from 0 to 1 of its bytes."""
    name = "transformer.wte.weight"
    checkpoint = open_reference(CheckpointRef("./source"))
    file = checkpoint.weights.file_of[name]
    values = file.read_bytes(name).tobytes()
    size = len(values)
    assert size > 100_000
    data = bytearray(weights.read_bytes())
    start = data.index(values)
    data[start + int(offset * size)] ^= 1
    weights.write_bytes(data)


@pytest.mark.parametrize("as_pickle", [False, True])
@pytest.mark.parametrize("offset", [0.0, 0.5, 0.999999])
def test_run_rejects_a_source_whose_other_weights_changed(offset: float, as_pickle: bool) -> None:
    weights = copy_of_tiny_gpt2(Path("source"), as_pickle=as_pickle)
    resize("./source", to=160, output="first")
    flip_bit(weights, offset)

    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "has changed since the recipe was written" in done.stderr

    Path("book.txt").write_text("The quick brown fox jumps over a lazy dog. " * 200)
    flags = ["--data", "book.txt", "--tokens", "320", "--measure", "position"]
    evaluated = CliRunner().invoke(build_app(), ["evaluate", "first", *flags])
    assert "has changed since the recipe was written" in evaluated.stderr


def test_run_resolves_paths_relative_to_the_recipe_and_those_in_changes_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pico.make(tmp_path / "models" / "m", "gpt2")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "recipe.yaml").write_text(
        "source: ../models/m\n"
        "resize: {to: 40}\n"
        "train: {data: [text.txt, hf:a/b], steps: 1, base: m}\n"
        "output: out\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = read_recipe("recipes/recipe.yaml", ["train.data=other.txt"]).recipe
    assert recipe.checkpoint.source == "./models/m"
    assert recipe.output == "recipes/out"
    assert recipe.train
    assert recipe.train.data == ("other.txt",)
    assert recipe.train.base == "m"

    # Now the base is also a folder next to the recipe.
    Path("recipes/m").symlink_to(tmp_path / "models" / "m")
    recipe = read_recipe("recipes/recipe.yaml").recipe
    assert recipe.train
    assert recipe.train.data == ("recipes/text.txt", "hf:a/b")
    assert recipe.train.base == "./recipes/m"

    monkeypatch.chdir(tmp_path / "models")
    recipe = read_recipe("../recipes/recipe.yaml").recipe
    assert recipe.checkpoint.source == "./m"
    done = invoke("../recipes/recipe.yaml", "--set", "train=null")
    assert done.exit_code == 0
    assert done.stdout == f"{tmp_path}/recipes/out\n"


@pytest.mark.usefixtures("book")
def test_outputs_contain_only_relative_paths_and_file_names(tmp_path: Path) -> None:
    source = trainings.make_source(tmp_path / "alice" / "source", "gpt2")
    book = Path("book.txt").resolve()
    Path("outputs").symlink_to(tmp_path)
    first = resize(source, to=24, output="outputs/first").output
    second = ctxextend.train(first, book, 1, batch_size=2, output="second").output
    third = ctxextend.train(second, book, 1, batch_size=2, output="deeper/third").output
    changes = [f"train={{data: {book}, steps: 1}}"]
    whole = ctxextend.run("outputs/first/ctxextend.yaml", "trained", changes=changes).output
    assert whole
    sources = {first: "../alice/source", second: "../../", third: "../../second", whole: "../"}
    for folder, start in sources.items():
        recipe = yaml.safe_load((folder / "ctxextend.yaml").read_text())
        assert recipe["source"].startswith(start)
        assert (folder / recipe["source"] / "config.json").is_file()
        if "train" in recipe:
            (data,) = recipe["train"]["data"]
            assert (folder / data).resolve() == book
            assert "on `book.txt`;" in (folder / "README.md").read_text()
        for name in ("ctxextend.yaml", "README.md", "train_log.jsonl"):
            path = folder / name
            if path.exists():
                text = path.read_text()
                assert str(Path.cwd()) not in text
                assert str(tmp_path) not in text

    provenance = read_provenance(open_reference(CheckpointRef(str(third))))
    assert provenance
    bases = [Path(step.source.source).resolve() for step in provenance.steps]
    assert bases == [source, first.resolve(), second.resolve()]
    shared = without_folders((third / "ctxextend.yaml").read_text())
    lines = [line.strip() for line in shared.splitlines()]
    assert ".." not in shared
    assert [line for line in lines if "source:" in line] == [
        "source: ./second",
        "- source: ./source",
        "- source: ./first",
    ]


def test_run_reports_all_errors_of_a_recipe() -> None:
    recipe = write("source: tiny-gpt2\nresize:\n  too: 256\n  method: magic\n")
    done = invoke(recipe, "--set", "resize.part=[x]", "--set", "train.steps=0")
    assert done.exit_code == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith(("recipe.yaml", "--set", "Error: --set"))]
    assert lines[0] == "Error: --set resize.part: --part must be text, got ['x']."
    assert "recipe.yaml, line 3: unknown key resize.too; did you mean resize.to?" in lines
    assert len(errors) == 6
    error = json.loads(invoke(recipe, "--json").stdout)["error"]
    assert len(error["message"].splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (
            "resize: {to: 256}",
            ["--resume"],
            "The recipe has no train section, so there is nothing to resume.",
        ),
        (
            "evaluate: {data: recipe.yaml}",
            ["-o", "out"],
            "neither resizes, converts nor trains, so out would not be written.",
        ),
        (
            "evaluate: {data: recipe.yaml}\noutput: out",
            [],
            "neither resizes, converts nor trains, so out would not be written.",
        ),
        ("resize: {to: 256}\nevaluate: {data: none.txt}", [], "none.txt does not exist."),
    ],
)
def test_run_fails_before_anything_is_written(text: str, flags: list[str], message: str) -> None:
    done = invoke(write(f"source: tiny-gpt2\n{text}\n"), *flags)
    assert done.exit_code == 1
    assert message in done.stderr
    assert [path.name for path in Path.cwd().iterdir()] == ["recipe.yaml"]


def test_run_resizes_and_evaluates_the_output() -> None:
    Path("book.txt").write_text("The quick brown fox jumps over a lazy dog. " * 300)
    recipe = write(
        "source: tiny-gpt2\nresize: {to: 160}\noutput: longer\n"
        "evaluate: {data: book.txt, tokens: 640, measure: position}\n"
    )
    done = invoke(recipe)
    assert done.exit_code == 0
    assert done.stdout == "longer\n"
    assert "Loss by position" in done.stderr
    result = json.loads(invoke(recipe, "--json", "--force").stdout)
    assert result["output"] == "longer"
    assert result["resize"]["max_len_after"] == 160
    assert result["evaluate"]["length"] == 160
    assert result["evaluate"]["base"]["max_len"] == 128
    assert result["train"] is None

    changes = set_flags(["resize=null", "output=null"])
    evaluated = json.loads(invoke(recipe, *changes, "--json").stdout)
    assert evaluated["output"] is None
    assert evaluated["resize"] is None
    assert evaluated["evaluate"]["models"][0]["source"] == "tiny-gpt2"


@pytest.mark.usefixtures("book")
def test_run_resizes_trains_and_evaluates_reproducibly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = trainings.make_source(Path("source"), "gpt2")
    train = Train(("book.txt",), 2, batch_size=2)
    evaluate = Evaluate(("book.txt",), tokens=128, measure=("position",))
    recipe = Recipe(CheckpointRef(str(source)), Resize(24), train, evaluate, output="first")
    result = ctxextend.run(recipe)
    assert isinstance(result.train, TrainResult)
    assert isinstance(result.evaluate, Evaluation)
    assert result.output == Path("first")
    assert isinstance(result.resize, Planned)
    assert result.train.steps == 2
    assert result.evaluate.models[0].source == "./first"
    assert result.evaluate.models[0].max_len == 24
    (note,) = result.evaluate.notes
    assert note.startswith("The model was trained and its base was not: differences are those of ")

    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.stdout == "again\n"
    assert "held-out loss" in done.stderr
    assert "Loss by position" in done.stderr
    for name in ("model.safetensors", "config.json", "ctxextend.yaml", "README.md"):
        assert Path("again", name).read_bytes() == Path("first", name).read_bytes()

    changes = set_flags(["train.steps=1"])
    values = json.loads(invoke("first/ctxextend.yaml", *changes, "--json").stdout)
    assert values["train"]["steps"] == 1

    book = Path("book.txt")
    book.write_text(book.read_text() + "more")
    changed = invoke("first/ctxextend.yaml", "-o", "other")
    assert changed.exit_code == 1
    assert "not the one that the recipe was written for: book.txt has changed." in changed.stderr
    accepted = invoke("first/ctxextend.yaml", "--set", "train.data=book.txt", "-o", "other")
    assert accepted.exit_code == 0


def test_run_checks_the_training_text_that_was_read_in_its_order() -> None:
    texts = Path("texts")
    texts.mkdir()
    for name in ("a", "b"):
        sentence = f"The quick brown fox jumps over a lazy dog, said {name}. "
        (texts / f"{name}.txt").write_text(sentence * 200)
    flags = ("--steps", "1", "--batch-size", "1", "--seq-len", "16", "-o", "trained")
    trained = CliRunner().invoke(build_app(), ["train", "tiny-gpt2", "--data", "texts", *flags])
    assert trained.exit_code == 0

    again = ("trained/ctxextend.yaml", "--dry-run", "-o", "again")
    assert invoke(*again).exit_code == 0
    (texts / "c.txt").write_text("After those that were read.")
    assert invoke(*again).exit_code == 0

    (texts / "c.txt").unlink()
    (texts / "b.txt").rename("b.txt")
    gone = invoke(*again)
    assert gone.exit_code == 1
    assert gone.stdout == ""
    assert "The training text is not the one that the recipe was written for." in gone.stderr
    for change in ("train.data=b.txt", "train={data: b.txt, steps: 1}"):
        assert invoke(*again, "--set", change).exit_code == 0

    recipe = write("source: tiny-gpt2\ntrain: {data: b.txt, steps: 1}\nprovenance:\n")
    unchecked = invoke(recipe, "--set", "train.data=b.txt", "--dry-run", "-o", "again")
    assert unchecked.exit_code == 0


def test_run_keeps_its_output_if_the_evaluation_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ctxextend.lab.evaluate.evaluate_models", stop)
    Path("book.txt").write_text("Some words.")
    recipe = write("source: tiny-gpt2\nresize: {to: 160}\nevaluate: {data: book.txt}\n")
    done = invoke(recipe)
    assert done.exit_code == 130
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "Stopped: tiny-gpt2-160 is complete."


def test_run_dry_run_prints_the_plan_and_writes_nothing() -> None:
    texts = ("a.txt", "b.txt", "c.txt")
    for name in texts:
        Path(name).write_text("text")
    recipe = write(
        "source: tiny-gpt2\n"
        "resize: {to: 256, method: linear}\n"
        "train: {data: [a.txt, b.txt], steps: 2}\n"
        "evaluate: {data: c.txt, length: 128}\n"
    )
    resize = ["resize", "tiny-gpt2", "--to", "256", "--method", "linear", "--dry-run"]
    plan = CliRunner().invoke(build_app(), resize).stdout
    done = invoke(recipe, "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.startswith(plan)
    assert "\ntrain     data: a.txt b.txt\n          steps: 2\n" in done.stdout
    assert "\nevaluate  data: c.txt\n          length: 128\n" in done.stdout
    assert "\n          seed: 0\n" in done.stdout
    assert "None" not in done.stdout

    values = json.loads(invoke(recipe, "--dry-run", "--json").stdout)
    assert values["output"] == "tiny-gpt2-256"
    assert values["evaluate"]["length"] == [128]

    trained = invoke(recipe, "--dry-run", "--set", "resize=null", "-o", "out").stdout
    assert trained.startswith("source    tiny-gpt2\noutput    out\ntrain     data: a.txt b.txt\n")
    names = {path.name for path in Path.cwd().iterdir()}
    assert names == {"recipe.yaml", *texts}

    Path("b.txt").unlink()
    without_text = invoke(recipe, "--dry-run")
    assert "b.txt does not exist." in without_text.stderr


def test_run_of_a_recipe_from_elsewhere_takes_the_source_that_is_set(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    output = resize(source, to=32, output=tmp_path / "sent/out").output
    moved = tmp_path / "received/from/somebody/out"
    moved.parent.mkdir(parents=True)
    output.rename(moved)
    refused = invoke(str(moved / "ctxextend.yaml"), "-o", "again")
    assert refused.exit_code == 1
    assert "source is not an existing folder" in refused.stderr

    done = invoke(str(moved / "ctxextend.yaml"), "--set", f"source={source}", "-o", "again")
    assert done.exit_code == 0
    weights = "model.safetensors"
    assert Path("again", weights).read_bytes() == (moved / weights).read_bytes()


def test_run_reproduces_an_output_of_a_custom_model_type(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    pico.edit_json(source / "config.json", model_type="my-own")
    table = "transformer.wpe.weight:n_positions"
    first = ctxextend.resize(source, 32, output="first", table=table).output
    result = ctxextend.run("first/ctxextend.yaml", "again")
    assert result.output == Path("again")
    assert pico.contents(Path("again")) == pico.contents(first)


def test_run_rejects_a_source_whose_table_changed(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    resize(source, to=32, output="first")
    pico.make(source, "gpt2", initializer_range=0.5)
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.exit_code == 1
    message = f"{source} has changed since the recipe was written."
    assert message in done.stderr
    assert not Path("again").exists()

    other = pico.make(tmp_path / "other", "gpt2", initializer_range=0.1).folder
    result = ctxextend.run("first/ctxextend.yaml", "again", changes=[f"source={other}"])
    assert result.output == Path("again")


def test_run_takes_the_length_of_the_table_with_fix_limits(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    pico.edit_json(source / "config.json", n_positions=512)
    recipe = write(f"source: {source}\nresize: {{to: 32}}\n")
    refused = invoke(recipe, "-o", "out")
    assert refused.exit_code == 1
    assert "resize with --fix-limits, which takes the length of the table" in refused.stderr

    fixed = invoke(recipe, "-o", "out", "--set", "resize.fix_limits=true")
    assert fixed.exit_code == 0
