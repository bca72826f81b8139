"""`run`, from the command line and as a function."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import ctxextend
from ctxextend import RecipeError, pipeline, resize
from ctxextend.checkpoints.source import BUNDLED
from ctxextend.cli.app import build_app
from ctxextend.evaluation.evaluate import EvaluationInterrupted
from ctxextend.plan.opened_model import open_reference
from ctxextend.provenance import read_provenance
from ctxextend.recipe import CheckpointRef, Evaluate, Recipe, Resize, Train
from ctxextend.recipe_file import read_recipe
from ctxextend.recipe_text import without_folders
from tests.helpers import pico, trainings
from tests.helpers.evaluations import INTERRUPTED


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["run", *arguments])


def write(text: str) -> str:
    Path("recipe.yaml").write_text(text)
    return "recipe.yaml"


@pytest.mark.parametrize(
    "settings",
    [
        {"to": 512},
        {"to": 100},
        {"to": 128, "fix_limits": True},
        {"to": 300, "method": "stretch", "keep_first": 4, "drop_last": 2},
    ],
    ids=str,
)
def test_run_reproduces_an_output_from_its_recipe(settings: dict[str, Any]) -> None:
    first = resize("tiny-gpt2", output="first", **settings).output
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert (done.exit_code, done.stdout) == (0, "again\n")
    assert pico.contents(Path("again")) == pico.contents(first)
    assert invoke("again/ctxextend.yaml", "-q").stdout == f"tiny-gpt2-{settings['to']}\n"


def test_run_reproduces_an_output_of_a_custom_model_type(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    pico.edit_json(source / "config.json", model_type="my-own")
    flags: dict[str, Any] = {"tensor": "transformer.wpe.weight", "config_key": "n_positions"}
    first = ctxextend.resize(source, 32, output="first", **flags).output
    assert ctxextend.run("first/ctxextend.yaml", "again").output == Path("again")
    assert pico.contents(Path("again")) == pico.contents(first)


def test_run_rejects_a_source_whose_table_changed(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    resize(source, to=32, output="first")
    pico.make(source, "gpt2", initializer_range=0.5)
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.exit_code == 1
    assert (
        f"{source} has changed since the recipe was written: table transformer.wpe" in done.stderr
    )
    with pytest.raises(RecipeError, match="Changes apply only to recipe files"):
        ctxextend.run(Recipe(CheckpointRef("tiny-gpt2"), Resize(32)), changes=["resize.to=3"])
    assert not Path("again").exists()
    other = pico.make(tmp_path / "other", "gpt2", initializer_range=0.1).folder
    assert ctxextend.run(
        "first/ctxextend.yaml", "again", changes=[f"source={other}"]
    ).output == Path("again")


def copy_of_tiny_gpt2(folder: Path, *, as_pickle: bool = False) -> Path:
    """Copy the bundled checkpoint to a folder and return its weights file."""
    shutil.copytree(BUNDLED["tiny-gpt2"], folder)
    path = folder / "model.safetensors"
    if not as_pickle:
        return path
    torch.save(load_file(path), folder / "pytorch_model.bin")
    path.unlink()
    return folder / "pytorch_model.bin"


@pytest.mark.parametrize("as_pickle", [False, True])
@pytest.mark.parametrize("offset", [0.0, 0.5, 0.999999])
def test_run_rejects_a_source_whose_other_weights_changed(offset: float, as_pickle: bool) -> None:
    weights = copy_of_tiny_gpt2(Path("source"), as_pickle=as_pickle)
    resize("./source", to=160, output="first")
    checkpoint = open_reference(CheckpointRef("./source"))
    name = "transformer.wte.weight"
    start, size = checkpoint.weights.names[name].stored_range(name) or (0, 0)
    assert size > 100_000
    data = bytearray(weights.read_bytes())
    data[start + int(offset * size)] ^= 1
    weights.write_bytes(data)
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        "has changed since the recipe was written: its tables are the same, but other"
        in done.stderr
    )
    Path("book.txt").write_text("The quick brown fox jumps over a lazy dog. " * 200)
    compared = [
        "evaluate",
        "first",
        "--data",
        "book.txt",
        "--tokens",
        "320",
        "--measure",
        "position",
    ]
    assert (
        "has changed since the recipe was written: its tables are"
        in CliRunner().invoke(build_app(), compared).stderr
    )


def test_run_misses_changes_between_the_samples_of_a_large_tensor() -> None:
    weights = copy_of_tiny_gpt2(Path("source"))
    first = resize("./source", to=160, output="first").output
    name = "transformer.wte.weight"
    start, size = open_reference(CheckpointRef("./source")).weights.names[name].stored_range(
        name
    ) or (0, 0)
    data = bytearray(weights.read_bytes())
    data[start + size // 4] ^= 1
    weights.write_bytes(data)
    assert invoke("first/ctxextend.yaml", "-o", "again").exit_code == 0
    assert pico.contents(Path("again")) != pico.contents(first)


def test_run_resolves_paths_relative_to_the_recipe_and_those_in_changes_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pico.make(tmp_path / "models" / "m", "gpt2")
    (tmp_path / "recipes").mkdir()
    text = (
        "source: ../models/m\nresize: {to: 40}\ntrain: {data: [text.txt, hf:a/b], steps: 1, "
        "base: m}\noutput: out\n"
    )
    (tmp_path / "recipes" / "recipe.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    recipe = read_recipe("recipes/recipe.yaml", ["train.eval_data=held-out.txt"]).recipe
    assert recipe.train
    assert (recipe.checkpoint.source, recipe.output) == ("./models/m", "recipes/out")
    assert (recipe.train.data, recipe.train.eval_data) == (
        ("recipes/text.txt", "hf:a/b"),
        ("held-out.txt",),
    )
    assert recipe.train.base == "m"
    Path("recipes/m").symlink_to(tmp_path / "models" / "m")
    recipe = read_recipe("recipes/recipe.yaml").recipe
    assert (recipe.train and recipe.train.base) == "./recipes/m"
    Path("recipes/empty.yaml").write_text("source: ''\nresize: {to: 40}\n")
    assert read_recipe("recipes/empty.yaml").recipe.checkpoint.source == ""
    monkeypatch.chdir(tmp_path / "models")
    assert read_recipe("../recipes/recipe.yaml").recipe.checkpoint.source == "./m"
    done = invoke("../recipes/recipe.yaml", "--set", "train=null")
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path}/recipes/out\n")


@pytest.mark.usefixtures("book")
def test_outputs_contain_only_relative_paths_and_file_names(tmp_path: Path) -> None:
    source, book = (
        trainings.make_source(tmp_path / "alice" / "source", "gpt2"),
        Path("book.txt").resolve(),
    )
    Path("outputs").symlink_to(tmp_path)
    first = resize(source, to=24, output="outputs/first").output
    second = ctxextend.train(first, book, 1, batch_size=2, output="second").output
    third = ctxextend.train(second, book, 1, batch_size=2, output="deeper/third").output
    whole = ctxextend.run(
        "outputs/first/ctxextend.yaml", "trained", changes=[f"train={{data: {book}, steps: 1}}"]
    ).output
    assert whole
    sources = {first: "../alice/source", second: "../../", third: "../../second", whole: "../"}
    for folder, start in sources.items():
        recipe = yaml.safe_load((folder / "ctxextend.yaml").read_text())
        assert recipe["source"].startswith(start)
        assert (folder / recipe["source"] / "config.json").is_file()
        if "train" in recipe:
            assert [(folder / name).resolve() for name in recipe["train"]["data"]] == [book]
            assert "on `book.txt`;" in (folder / "README.md").read_text()
        for name in ("ctxextend.yaml", "README.md", "train_log.jsonl"):
            text = (folder / name).read_text() if (folder / name).exists() else ""
            assert str(Path.cwd()) not in text
            assert str(tmp_path) not in text
    provenance = read_provenance(open_reference(CheckpointRef(str(third))))
    assert provenance
    bases = [Path(step.base.source).resolve() for step in provenance.chain]
    assert bases == [second.resolve(), first.resolve(), source]
    shared = without_folders((third / "ctxextend.yaml").read_text())
    assert ".." not in shared
    assert [line.strip() for line in shared.splitlines() if "source:" in line] == [
        *("source: ./second", "source: ./first", "source: ./source")
    ]


def test_run_reports_all_errors_of_a_recipe() -> None:
    recipe = write("source: tiny-gpt2\nresize:\n  too: 256\n  method: magic\n")
    done = invoke(recipe, "--set", "resize.part=[x]", "--set", "train.steps=0")
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Error: --set resize.part: resize.part must be a string, got a list")
    assert "recipe.yaml, line 3: unknown key resize.too; did you mean resize.to?" in lines
    assert (
        len([line for line in lines if line.startswith(("recipe.yaml", "--set", "Error: --set"))])
        == 6
    )
    error = json.loads(invoke(recipe, "--json").stdout)["error"]
    assert error["type"] == "RecipeError"
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
    assert "Perplexity by position, 4 windows of 160 tokens" in done.stderr
    result = json.loads(invoke(recipe, "--json", "--force").stdout)
    keys = {
        "schema_version",
        "command",
        "warnings",
        "output",
        "resize",
        "train",
        "evaluate",
        "dry_run",
    }
    assert result.keys() == keys
    values = result["schema_version"], result["command"], result["output"], result["dry_run"]
    assert values == (1, "run", "longer", False)
    assert (result["resize"]["max_len_after"], result["resize"]["output"]) == (160, "longer")
    assert (result["evaluate"]["max_len"], result["evaluate"]["base_max_len"]) == (160, 128)
    assert result["train"] is None
    evaluated = json.loads(
        invoke(recipe, "--set", "resize=null", "--set", "output=null", "--json").stdout
    )
    assert (evaluated["output"], evaluated["resize"], evaluated["evaluate"]["source"]) == (
        None,
        None,
        "tiny-gpt2",
    )


@pytest.mark.usefixtures("book")
def test_run_resizes_trains_and_evaluates_reproducibly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = trainings.make_source(Path("source"), "gpt2")
    train, evaluate = (
        Train(("book.txt",), 2, batch_size=2),
        Evaluate(("book.txt",), tokens=128, measure=("position",)),
    )
    recipe = Recipe(CheckpointRef(str(source)), Resize(24), train, evaluate, output="first")
    result = ctxextend.run(recipe)
    assert result.training
    assert result.evaluation
    assert (result.output, result.resize, result.training.steps) == (Path("first"), None, 2)
    assert (result.evaluation.source, result.evaluation.max_len) == ("./first", 24)
    done = invoke("first/ctxextend.yaml", "-o", "again")
    assert done.stdout == "again\n"
    assert "held-out loss" in done.stderr
    assert "Perplexity by position" in done.stderr
    for name in ("model.safetensors", "config.json", "ctxextend.yaml", "README.md"):
        assert Path("again", name).read_bytes() == Path("first", name).read_bytes()
    changes = ("train.steps=1", "train.eval_data=book.txt")
    values = json.loads(
        invoke(
            "first/ctxextend.yaml",
            *(word for change in changes for word in ("--set", change)),
            "--json",
        ).stdout
    )
    assert (values["output"], values["resize"]["max_len_after"], values["train"]["steps"]) == (
        "source-24",
        24,
        1,
    )
    assert values["evaluate"]["max_len"] == 24
    assert any(
        text.startswith("book.txt is in both --data and --eval-data") for text in values["warnings"]
    )
    Path("book.txt").write_text(Path("book.txt").read_text() + "more")
    changed = invoke("first/ctxextend.yaml", "-o", "other")
    assert changed.exit_code == 1
    assert "not the one that the recipe was written for: book.txt has changed." in changed.stderr
    assert (
        invoke("first/ctxextend.yaml", "--set", "train.data=book.txt", "-o", "other").exit_code == 0
    )
    # Of several processes, only the first one evaluates.
    other = replace(result.training, is_first=False)
    monkeypatch.setattr("ctxextend.training.train.train_recipe", lambda *_, **__: other)
    again = ctxextend.run(recipe)
    assert (again.output, again.training, again.evaluation) == (Path("first"), other, None)


def test_run_checks_the_training_text_that_was_read_in_its_order() -> None:
    Path("texts").mkdir()
    for name in ("a", "b"):
        Path("texts", f"{name}.txt").write_text(
            f"The quick brown fox jumps over a lazy dog, said {name}. " * 200
        )
    flags = ("--steps", "1", "--batch-size", "1", "--seq-len", "16", "-o", "trained")
    assert (
        CliRunner().invoke(build_app(), ["train", "tiny-gpt2", "--data", "texts", *flags]).exit_code
        == 0
    )
    again = ("trained/ctxextend.yaml", "--dry-run", "-o", "again")
    assert invoke(*again).exit_code == 0
    Path("texts", "c.txt").write_text("After those that were read.")
    assert invoke(*again).exit_code == 0
    Path("texts", "c.txt").unlink()
    Path("texts", "b.txt").rename("b.txt")
    gone = invoke(*again)
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "The training text is not the one that the recipe was written for." in gone.stderr
    for change in ("train.data=b.txt", "train={data: b.txt, steps: 1}"):
        assert invoke(*again, "--set", change).exit_code == 0
    write("source: tiny-gpt2\ntrain: {data: b.txt, steps: 1}\nprovenance:\n")
    assert (
        invoke("recipe.yaml", "--set", "train.data=b.txt", "--dry-run", "-o", "again").exit_code
        == 0
    )


def test_run_reports_partial_results_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise EvaluationInterrupted(INTERRUPTED)

    monkeypatch.setattr(pipeline, "evaluate_checkpoint", stop)
    Path("book.txt").write_text("Some words.")
    recipe = write("source: tiny-gpt2\nresize: {to: 160}\nevaluate: {data: book.txt}\n")
    done = invoke(recipe)
    assert done.exit_code == 130
    assert done.stdout == "tiny-gpt2-160\n"
    assert "Incomplete: interrupted before everything was measured." in done.stderr
    with pytest.raises(ctxextend.RunInterrupted) as error:
        ctxextend.run(recipe, "other")
    assert (error.value.result.output, error.value.result.evaluation) == (
        Path("other"),
        INTERRUPTED,
    )


def test_run_dry_run_prints_the_plan_and_writes_nothing() -> None:
    texts = "a.txt", "b.txt", "c.txt"
    for name in texts:
        Path(name).write_text("text")
    recipe = write(
        "source: tiny-gpt2\nresize: {to: 256, method: linear}\ntrain: "
        "{data: [a.txt, b.txt], steps: 2}\nevaluate: {data: c.txt, length: 128}\n"
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
    assert (values["command"], values["dry_run"], values["output"]) == (
        "run",
        True,
        "tiny-gpt2-256",
    )
    steps = values["resize"]["method"], values["train"]["steps"], values["evaluate"]["length"]
    assert steps == ("linear", 2, [128])
    trained = invoke(recipe, "--dry-run", "--set", "resize=null", "-o", "out").stdout
    assert trained.startswith("source    tiny-gpt2\noutput    out\ntrain     data: a.txt b.txt\n")
    assert {path.name for path in Path.cwd().iterdir()} == {"recipe.yaml", *texts}
    Path("b.txt").unlink()
    assert "b.txt does not exist." in invoke(recipe, "--dry-run").stderr


def test_run_names_the_key_that_takes_the_length_of_the_table(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    pico.edit_json(source / "config.json", n_positions=512)
    recipe = write(f"source: {source}\nresize: {{to: 32}}\n")
    refused = invoke(recipe, "-o", "out")
    assert refused.exit_code == 1
    assert "resize with resize.fix_limits, which takes the length of the table" in " ".join(
        refused.stderr.split()
    )
    assert invoke(recipe, "-o", "out", "--set", "resize.fix_limits=true").exit_code == 0
    direct = trainings.invoke("resize", source, "--to", 32, "-o", "direct")
    assert "resize with --fix-limits, which takes the length of the table" in " ".join(
        direct.stderr.split()
    )
