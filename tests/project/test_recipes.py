"""Every file in recipes/: recipes on pico models of their model type, and training scripts for a
few steps.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

import corpus
import mini_bert
import rotary_lm
import tiny_gpt2
from ctxextend import list_families, resize
from ctxextend.cli.app import build_app
from ctxextend.recipe_file import builtin_recipes, read_recipe
from tests.helpers import pico
from tests.helpers.trainings import make_encoder, make_source
from tests.helpers.word_tokenizer import add_tokenizer, text_of

RECIPES = {
    path.stem: path for path in sorted((Path(__file__).parents[2] / "recipes").glob("**/*.yaml"))
}


def make_clip(folder: Path) -> Path:
    """Save a randomly initialised CLIP model with 24 text positions."""
    torch.manual_seed(0)
    tower = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.CLIPConfig(
        text_config={**tower, "max_position_embeddings": 24, "vocab_size": 32, "eos_token_id": 3},
        vision_config={**tower, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    return add_tokenizer(folder, special_tokens=True, max_len=24)


class Case(NamedTuple):
    """How to run a recipe on a pico model."""

    make: Callable[[Path], Path]  # saves a model and returns its folder
    table: str  # tensor name of the position table
    rows: int  # expected rows of the output
    changes: tuple[str, ...]  # changes that reduce sizes


def lengths(to: int, step: str = "resize") -> tuple[str, ...]:
    return (f"{step}.to={to}", f"train.seq_len={to}", "train.batch_size=2")


BERT = "bert.embeddings.position_embeddings.weight"
ENCODER = BERT.removeprefix("bert.")
CLIP = "text_model.embeddings.position_embedding.weight"
CASES = {
    "bert-2048": Case(partial(make_source, model_type="bert"), BERT, 32, lengths(32)),
    "gpt2-4096": Case(
        partial(make_source, model_type="gpt2"), "transformer.wpe.weight", 32, lengths(32)
    ),
    "hierarchical-bert-1536": Case(partial(make_source, model_type="bert"), BERT, 48, lengths(48)),
    "long-clip-text-248": Case(make_clip, CLIP, 36, ("resize.to=36",)),
    "longembed-e5-4096": Case(
        make_encoder, ENCODER, 64, ("resize.to=64", "train.window=16", "train.batch_size=2")
    ),
    "longformer-roberta-4096": Case(
        partial(make_source, model_type="roberta"), f"roberta.{ENCODER}", 34, lengths(32)
    ),
    "minilm-2048": Case(
        make_encoder, ENCODER, 32, ("resize.to=32", "train.window=16", "train.batch_size=2")
    ),
}
CONVERSIONS: dict[str, tuple[str, Any]] = {
    "bert-rotary-2048": ("bert", transformers.RoFormerForMaskedLM),
    "gpt2-rotary-4096": ("gpt2", transformers.GPTNeoXForCausalLM),
}


def test_every_recipe_is_tested_and_packaged() -> None:
    assert {*CASES, *CONVERSIONS} == set(RECIPES) == set(builtin_recipes())
    packed = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert all(
        f'"recipes/{name}.yaml" = "ctxextend/recipes/{name}.yaml"' in packed for name in RECIPES
    )


def test_recipes_command_lists_all_and_prints_one() -> None:
    lines = CliRunner().invoke(build_app(), ["recipes"], env={"COLUMNS": "120"}).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert (
        CliRunner().invoke(build_app(), ["recipes", "gpt2-4096"]).stdout
        == RECIPES["gpt2-4096"].read_text()
    )


def test_run_finds_a_builtin_recipe_by_name_unless_a_file_exists(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    command = [
        "run",
        "gpt2-4096",
        "--set",
        f"source={source}",
        "--set",
        "train=null",
        "--set",
        "evaluate=null",
    ]
    command += ["--set", "resize.to=32"]
    assert CliRunner().invoke(build_app(), command).stdout == "gpt2-4096\n"
    assert Path("gpt2-4096", "config.json").is_file()
    Path("gpt2-4096").rename("moved")
    Path("gpt2-4096").write_text("source: tiny-gpt2\nresize: {to: 160}\noutput: by-file")
    assert CliRunner().invoke(build_app(), ["run", "gpt2-4096"]).stdout == "by-file\n"
    unknown = CliRunner().invoke(build_app(), ["run", "gpt2-4906"])
    assert (unknown.exit_code, "Did you mean gpt2-4096?" in unknown.stderr) == (1, True)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_documented(name: str) -> None:
    recipe = read_recipe(RECIPES[name]).recipe
    assert Path(str(recipe.output)).name == name
    comment = RECIPES[name].read_text().split("source: ")[0].splitlines()
    assert all(line.startswith("#") for line in comment)
    heads = [line[2:].split(":")[0] for line in comment if line[:3] != "#  " and ":" in line]
    assert heads[-4:] == ["Source", "Result", "Cost", "Text"]
    assert "arXiv:" in "".join(comment) or "kexue.fm" in "".join(comment)
    assert max(map(len, RECIPES[name].read_text().splitlines())) <= 120
    step = recipe.resize or recipe.convert
    assert step is not None
    assert name.endswith(f"-{step.to}")
    parts = {table.part for table in list_families()}
    assert recipe.resize is None or recipe.resize.part is None or recipe.resize.part in parts


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "book.txt"
    file.write_text(text_of([(7 * i * i + i // 5) % 27 for i in range(4_000)]))
    return file


def run_recipe(name: str, source: Path, output: Path, book: Path, changes: tuple[str, ...]) -> None:
    changes = (f"source={source}", "evaluate=null", *changes)
    if "train:" in RECIPES[name].read_text():
        changes += (f"train.data={book}", "train.steps=2", "train.save=last")
    set_flags = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(
        build_app(), ["run", str(RECIPES[name]), *set_flags, "-o", str(output), "--json"]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["command"], result["output"]) == ("run", str(output))


@pytest.mark.parametrize("name", CASES)
def test_recipe_runs_on_a_pico_model(name: str, tmp_path: Path, book: Path) -> None:
    case = CASES[name]
    recipe = yaml.safe_load(RECIPES[name].read_text())
    source = case.make(tmp_path / "source")
    output = tmp_path / "output"
    run_recipe(name, source, output, book, case.changes)
    before, after = (
        load_file(next(folder.rglob("model.safetensors"))) for folder in (source, output)
    )
    assert len(after[case.table]) == case.rows > len(before[case.table])
    changed = {
        key
        for key in before
        if before[key].shape != after[key].shape or not before[key].equal(after[key])
    }
    if "train" not in recipe or recipe["train"].get("trainable") in ("new", "positions"):
        assert changed == {case.table}
    else:
        assert changed > {case.table}
    if case.make is make_encoder:
        SentenceTransformer(str(output), device="cpu").encode([text_of(list(range(20)))])


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_recipe_runs_on_a_pico_model(name: str, tmp_path: Path, book: Path) -> None:
    model_type, model_class = CONVERSIONS[name]
    source = make_source(tmp_path / "source", model_type)
    output = tmp_path / "output"
    run_recipe(name, source, output, book, lengths(32, "convert"))
    model = model_class.from_pretrained(output)
    assert model.config.max_position_embeddings == 32
    pico.logits(model, 32)
    assert transformers.AutoTokenizer.from_pretrained(output).model_max_length == 32


# ---- scripts that train checkpoints from scratch


@pytest.fixture(scope="module")
def few_documents() -> list[str]:
    """Return a few short documents and a variant of each; some of them are held out."""
    short = list(islice((text for text in corpus.documents() if len(text) < 400), 120))
    return [*short, *(f"{text} held out {i}" for i, text in enumerate(short))]


def test_tiny_gpt2_script_trains_a_checkpoint(
    few_documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.CORPORA, "docs", lambda: few_documents)
    monkeypatch.setattr("sys.argv", ["tiny_gpt2.py", str(tmp_path / "tiny"), "--steps", "3"])
    tiny_gpt2.main()
    assert "Held-out perplexity per token" in (tmp_path / "tiny" / "README.md").read_text()
    output = resize(tmp_path / "tiny", to=200, output=tmp_path / "out").output
    pico.logits(pico.Pico(output, transformers.GPT2LMHeadModel).load(), 200)


def test_mini_bert_script_trains_a_masked_language_model(
    few_documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.CORPORA, "docs", lambda: few_documents)
    monkeypatch.setattr("sys.argv", ["mini_bert.py", str(tmp_path), "--steps", "3"])
    mini_bert.main()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.model_max_length == 128
    ids = tokenizer("Return the name.")["input_ids"]
    assert tokenizer.decode(ids) == "[CLS]Return the name.[SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Return the name."
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    held_out = corpus.tokenize(tokenizer, corpus.split(few_documents)[1], mini_bert.SEP)
    assert math.isfinite(mini_bert.held_out_loss(model, held_out))
    pico.logits(model, 128)


def test_rotary_lm_script_trains_a_llama(
    few_documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.CORPORA, "code", lambda: few_documents)
    monkeypatch.setattr(
        "sys.argv", ["rotary_lm.py", str(tmp_path / "llama"), "--steps", "3", "--context", "64"]
    )
    rotary_lm.main()
    assert "| 32 to 63 |" in (tmp_path / "llama" / "README.md").read_text()
    output = resize(tmp_path / "llama", to=128, output=tmp_path / "out").output
    assert transformers.AutoTokenizer.from_pretrained(output).model_max_length == 128
    model = transformers.LlamaForCausalLM.from_pretrained(output)
    assert model.generation_config.eos_token_id == 0
    assert model.config.to_dict()["rope_parameters"]["original_max_position_embeddings"] == 64
    pico.logits(model, 128)
