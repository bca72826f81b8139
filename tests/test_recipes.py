"""Every file in recipes/, run on a pico model of its family."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from ctxextend import list_families
from ctxextend.cli.app import app_of
from ctxextend.recipe_file import read_recipe
from tests import pico
from tests.words import add_tokenizer, text_of

RECIPES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "recipes").glob("**/*.yaml"))}
POOLED = [
    "sentence_transformers.models.Transformer",
    "sentence_transformers.models.Pooling",
    "sentence_transformers.models.Normalize",
]


def make_encoder(folder: Path) -> Path:
    """Save a sentence encoder of sentence-transformers that takes the mean over a text's tokens."""
    make_framed(folder, "bert", base=True)
    modules = [
        {"idx": i, "name": str(i), "path": "1_Pooling" * (i == 1), "type": kind} for i, kind in enumerate(POOLED)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": pico.WIDTH, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16, "do_lower_case": False}))
    return folder


def make_framed(folder: Path, model_type: str, **options: Any) -> Path:
    pico.make(folder, model_type, **options)
    return add_tokenizer(folder, is_framed=True)


def make_gpt2(folder: Path) -> Path:
    pico.make(folder, "gpt2")
    return add_tokenizer(folder, is_framed=False)


def make_clip(folder: Path) -> Path:
    """Save a CLIP of 24 text positions with random weights."""
    torch.manual_seed(0)
    tower = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**tower, "max_position_embeddings": 24, "vocab_size": 32, "eos_token_id": 3},
        vision_config={**tower, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    return add_tokenizer(folder, is_framed=True, max_len=24)


class Case(NamedTuple):
    """A recipe made small."""

    make: Callable[[Path], Path]  # builds a model of its family in a folder
    table: str  # the table's tensor
    rows: int  # that the output must have
    changes: tuple[str, ...]  # what else is made smaller


def lengths(to: int) -> tuple[str, ...]:
    return (f"resize.to={to}", f"train.seq_len={to}", "train.batch_size=2")


def make_bert(folder: Path) -> Path:
    return make_framed(folder, "bert")


BERT = "bert.embeddings.position_embeddings.weight"
ENCODER = BERT.removeprefix("bert.")
CLIP = "text_model.embeddings.position_embedding.weight"
CASES = {
    "bert-2048": Case(make_bert, BERT, 32, lengths(32)),
    "gpt2-4096": Case(make_gpt2, "transformer.wpe.weight", 32, lengths(32)),
    "hierarchical-bert-1536": Case(make_bert, BERT, 48, lengths(48)),
    "long-clip-text-248": Case(make_clip, CLIP, 36, ("resize.to=36",)),
    "longembed-e5-4096": Case(make_encoder, ENCODER, 64, ("resize.to=64", "train.window=16", "train.batch_size=2")),
    "longformer-roberta-4096": Case(
        lambda folder: make_framed(folder, "roberta"), f"roberta.{ENCODER}", 34, lengths(32)
    ),
    "minilm-2048": Case(make_encoder, ENCODER, 32, lengths(32)),
}


def test_every_recipe_is_run() -> None:
    assert set(CASES) == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_says_what_it_is_and_has_no_fault(name: str) -> None:
    asked = read_recipe(RECIPES[name]).recipe
    assert asked.output == name
    comment = RECIPES[name].read_text().split("source: ")[0].splitlines()
    assert all(line.startswith("#") for line in comment)
    heads = [line[2:].split(":")[0] for line in comment if line[:3] != "#  " and ":" in line]
    assert heads[-4:] == ["Source", "What it gives", "What it costs", "Text"]
    assert "arXiv:" in "".join(comment) or "kexue.fm" in "".join(comment)
    assert max(map(len, RECIPES[name].read_text().splitlines())) <= 120
    assert asked.resize is not None
    assert name.endswith(f"-{asked.resize.to}")
    parts = {table.part for table in list_families()}
    assert asked.resize.part is None or asked.resize.part in parts


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "book.txt"
    file.write_text(text_of([(7 * i * i + i // 5) % 27 for i in range(4_000)]))
    return file


@pytest.mark.parametrize("name", CASES)
def test_recipe_runs_on_a_pico_model_of_its_family(name: str, tmp_path: Path, book: Path) -> None:
    case, asked = CASES[name], yaml.safe_load(RECIPES[name].read_text())
    source, output = case.make(tmp_path / "source"), tmp_path / "output"
    changes = [f"source={source}", "evaluate=null", *case.changes]
    changes += [f"train.data={book}", "train.steps=2"] if "train" in asked else []
    done = CliRunner().invoke(app_of(), ["run", str(RECIPES[name]), "--set", *changes, "-o", str(output), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["command"], said["output"]) == ("run", str(output))
    before, after = (load_file(folder / "model.safetensors") for folder in (source, output))
    assert len(after[case.table]) == case.rows > len(before[case.table])
    changed = {key for key in before if before[key].shape != after[key].shape or not before[key].equal(after[key])}
    if "train" not in asked or asked["train"]["trainable"] != "all":
        assert changed == {case.table}
    else:
        assert changed > {case.table}
    if case.make is make_encoder:
        SentenceTransformer(str(output), device="cpu").encode([text_of(list(range(20)))])
