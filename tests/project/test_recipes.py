"""Every file in recipes/: recipes on pico models, and training scripts for a few steps."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner, Result

import corpus
from ctxextend import list_families, resize
from ctxextend.cli.app import build_app
from ctxextend.recipe import read_recipe
from ctxextend.recipe_names import builtin_recipes
from tests.helpers import pico
from tests.helpers.conversions import make
from tests.helpers.repository import ROOT
from tests.helpers.trainings import make_encoder, make_source
from tests.helpers.word_tokenizer import add_tokenizer, text_of

RECIPES = {path.stem: path for path in sorted((ROOT / "recipes").glob("**/*.yaml"))}


def make_clip(folder: Path) -> Path:
    """Save a randomly initialised CLIP model with 24 text positions."""
    torch.manual_seed(0)
    tower = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = {"max_position_embeddings": 24, "vocab_size": 32, "eos_token_id": 3}
    vision = {"image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(
        text_config=tower | text,
        vision_config=tower | vision,
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
GPT2 = "transformer.wpe.weight"
make_bert = partial(make_source, model_type="bert")
make_gpt2 = partial(make_source, model_type="gpt2")
make_roberta = partial(make_source, model_type="roberta")
IN_WINDOWS = ("train.window=16", "train.batch_size=2")
CASES = {
    "bert-2048": Case(make_bert, BERT, 32, lengths(32)),
    "gpt2-4096": Case(make_gpt2, GPT2, 32, lengths(32)),
    "hierarchical-bert-1536": Case(make_bert, BERT, 48, lengths(48)),
    "long-clip-text-248": Case(make_clip, CLIP, 36, ("resize.to=36",)),
    "longembed-e5-4096": Case(make_encoder, ENCODER, 64, ("resize.to=64", *IN_WINDOWS)),
    "minilm-2048": Case(make_encoder, ENCODER, 32, ("resize.to=32", *IN_WINDOWS)),
}


class Conversion(NamedTuple):
    """How to run a recipe that converts a pico model."""

    make: Callable[[Path], Path]
    model_class: Any  # of the output
    changes: tuple[str, ...]
    key: str = "max_position_embeddings"  # of the config, that states the length
    value: int = 32


def make_bart(folder: Path) -> Path:
    """Save a randomly initialised BART with 16 positions, without a tokenizer."""
    make(folder, "bart", "ForConditionalGeneration")
    return folder


def make_llama(folder: Path) -> Path:
    """Save a randomly initialised Llama with 16 positions."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return add_tokenizer(folder, special_tokens=False, max_len=16)


WINDOW = ("convert.attention_window=8",)
CONVERSIONS = {
    "bart-led-16384": Conversion(
        make_bart,
        transformers.LEDForConditionalGeneration,
        ("convert.to=32", *WINDOW),
        key="max_encoder_position_embeddings",
    ),
    "bert-rotary-2048": Conversion(
        make_bert, transformers.RoFormerForMaskedLM, lengths(32, "convert")
    ),
    "gpt2-rotary-4096": Conversion(
        make_gpt2, transformers.GPTNeoXForCausalLM, lengths(32, "convert")
    ),
    "longformer-roberta-4096": Conversion(
        make_roberta,
        transformers.LongformerForMaskedLM,
        (*lengths(32, "convert"), *WINDOW),
        value=34,
    ),
    "minilm-8192": Conversion(
        make_encoder,
        transformers.LongformerModel,
        ("convert.to=32", *WINDOW, *IN_WINDOWS),
    ),
}


ROTARY = "smollm2-16384"  # changes settings and no weights


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), arguments)


def set_flags(changes: Iterable[str]) -> list[str]:
    """Return a --set flag for each change."""
    flags: list[str] = []
    for change in changes:
        flags += ["--set", change]
    return flags


def test_every_recipe_is_tested_and_packaged() -> None:
    assert {*CASES, *CONVERSIONS, ROTARY} == set(RECIPES)
    assert set(builtin_recipes()) == set(RECIPES)
    packed = (ROOT / "pyproject.toml").read_text()
    for name in RECIPES:
        assert f'"recipes/{name}.yaml" = "ctxextend/recipes/{name}.yaml"' in packed


def test_recipes_command_lists_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = invoke("recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)


def test_recipes_command_prints_one() -> None:
    assert invoke("recipes", "gpt2-4096").stdout == RECIPES["gpt2-4096"].read_text()


def test_run_finds_a_builtin_recipe_by_name_unless_a_file_exists(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    changes = (f"source={source}", "train=null", "evaluate=null", "resize.to=32")
    by_name = invoke("run", "gpt2-4096", *set_flags(changes))
    assert by_name.stdout == "gpt2-4096\n"
    output = Path("gpt2-4096")
    assert (output / "config.json").is_file()

    output.rename("moved")
    Path("gpt2-4096").write_text("source: tiny-gpt2\nresize: {to: 160}\noutput: by-file")
    by_file = invoke("run", "gpt2-4096")
    assert by_file.stdout == "by-file\n"


def test_run_suggests_the_builtin_recipe_of_the_nearest_name() -> None:
    unknown = invoke("run", "gpt2-4906")
    assert unknown.exit_code == 1
    assert "Did you mean gpt2-4096?" in unknown.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid(name: str) -> None:
    recipe = read_recipe(RECIPES[name]).recipe
    step = recipe.resize or recipe.convert
    assert step is not None
    assert name.endswith(f"-{step.to}")
    assert Path(str(recipe.output)).name == name
    if recipe.resize and recipe.resize.part is not None:
        parts = {table.part for table in list_families()}
        assert recipe.resize.part in parts


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "book.txt"
    words = [(7 * i * i + i // 5) % 27 for i in range(4_000)]
    file.write_text(text_of(words))
    return file


def run_recipe(name: str, source: Path, output: Path, book: Path, changes: tuple[str, ...]) -> None:
    path = RECIPES[name]
    changes = (f"source={source}", "evaluate=null", *changes)
    if "train:" in path.read_text():
        changes += (f"train.data={book}", "train.steps=2", "train.save=last")
    done = invoke("run", str(path), *set_flags(changes), "-o", str(output), "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["command"] == "run"
    assert result["output"] == str(output)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Load the first weights file in a folder or below it."""
    return load_file(next(folder.rglob("model.safetensors")))


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.equal(other)


@pytest.mark.parametrize("name", CASES)
def test_recipe_runs_on_a_pico_model(name: str, tmp_path: Path, book: Path) -> None:
    case = CASES[name]
    recipe = yaml.safe_load(RECIPES[name].read_text())
    source = case.make(tmp_path / "source")
    output = tmp_path / "output"
    run_recipe(name, source, output, book, case.changes)
    before = load_weights(source)
    after = load_weights(output)
    assert len(after[case.table]) == case.rows
    assert len(before[case.table]) < case.rows
    changed = {key for key in before if not is_equal(before[key], after[key])}
    if "train" not in recipe or recipe["train"].get("trainable") in ("new", "positions"):
        assert changed == {case.table}
    else:
        assert changed > {case.table}

    if case.make is make_encoder:
        encoder = SentenceTransformer(str(output), device="cpu")
        encoder.encode([text_of(list(range(20)))])


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_recipe_runs_on_a_pico_model(name: str, tmp_path: Path, book: Path) -> None:
    case = CONVERSIONS[name]
    source = case.make(tmp_path / "source")
    output = tmp_path / "output"
    run_recipe(name, source, output, book, case.changes)
    if (output / "modules.json").exists():
        encoder = SentenceTransformer(str(output), device="cpu")
        assert encoder.max_seq_length == 32
        encoder.encode([text_of(list(range(20)))])
        return
    model = case.model_class.from_pretrained(output)
    assert model.config.to_dict()[case.key] == case.value
    if model.config.is_encoder_decoder:
        ids = torch.ones(1, 32, dtype=torch.int64)
        assert model(ids, decoder_input_ids=ids[:, :4]).logits.isfinite().all()
        return
    pico.logits(model, 32)
    assert transformers.AutoTokenizer.from_pretrained(output).model_max_length == 32


def test_rotary_recipe_runs_on_a_pico_model(tmp_path: Path, book: Path) -> None:
    source = make_llama(tmp_path / "source")
    output = tmp_path / "output"
    run_recipe(ROTARY, source, output, book, ("resize.to=32",))
    before = load_weights(source)
    after = load_weights(output)
    assert all(is_equal(before[key], after[key]) for key in before)
    config = json.loads((output / "config.json").read_text())
    assert config["max_position_embeddings"] == 32
    assert config["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.048,
        "beta_fast": 64.0,
    }


# ---- scripts that train checkpoints from scratch


@pytest.fixture(scope="module")
def few_documents() -> list[str]:
    """Return a few short documents and a variant of each; some of them are held out."""
    short = (text for text in corpus.documents() if len(text) < 400)
    some = list(islice(short, 120))
    variants = [f"{text} held out {i}" for i, text in enumerate(some)]
    return some + variants


SCRIPTS: dict[str, tuple[str, ...]] = {
    "mini_bert": (),
    "rotary_lm": ("--context", "64"),
    "tiny_gpt2": (),
    "tiny_lookup": ("--context", "128"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_trains_a_checkpoint_that_can_be_resized(
    name: str, few_documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for corpus_name in corpus.CORPORA:
        monkeypatch.setitem(corpus.CORPORA, corpus_name, lambda: few_documents)
    folder = tmp_path / name
    monkeypatch.setattr("sys.argv", [f"{name}.py", str(folder), "--steps", "3", *SCRIPTS[name]])
    import_module(name).main()
    assert "held-out" in (folder / "README.md").read_text().lower()

    output = resize(folder, to="2x", output=tmp_path / "out").output
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    model_class: Any = transformers.AutoModelForCausalLM
    if name == "mini_bert":
        model_class = transformers.AutoModelForMaskedLM
    pico.logits(model_class.from_pretrained(output), tokenizer.model_max_length)
