"""Hostile config, index, tokenizer, recipe and card files: read, or rejected with a hint."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ctxextend import inspect, plan_resize, resize, verify
from ctxextend.card import model_card
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError
from ctxextend.json_output import to_json
from ctxextend.provenance import parse_provenance
from ctxextend.recipe import read_recipe
from tests.helpers import pico, trainings
from tests.helpers.mutations import VALUES, mutate_text
from tests.helpers.time_limit import examples, time_limit

MakePico = Callable[..., pico.Pico]

WPE = "transformer.wpe.weight"
NEW = 40


def plan_and_inspect(folder: Path) -> None:
    """Plan and inspect; both succeed or raise a CtxextendError, within seconds."""
    with time_limit(2), suppress(CtxextendError):
        plan = plan_resize(folder, to=NEW)
        json.dumps(to_json(plan))
    with time_limit(2), suppress(CtxextendError):
        inspected = inspect(folder)
        json.dumps(to_json(inspected))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints by the text file that each contains."""
    root = tmp_path_factory.mktemp("texts")
    plain = trainings.make_source(root / "plain", "gpt2")
    pico.edit_json(plain / "sentence_bert_config.json", max_seq_length=16, do_lower_case=False)
    shards = pico.make(root / "shards", "gpt2").folder
    pico.shard(shards)
    bert = pico.make(root / "bert", "bert").folder
    nested = pico.nest_in_module(bert, root / "nested")
    adapter = root / "adapter"
    adapter.mkdir()
    table = load_file(plain / "model.safetensors")[WPE]
    save_file({f"base_model.model.{WPE}": table}, adapter / "adapter_model.safetensors")
    config = adapter / "adapter_config.json"
    pico.edit_json(config, base_model_name_or_path=str(plain), peft_type="LORA")
    resized = resize(plain, to=32, output=root / "resized")
    return {
        "config.json": plain,
        "tokenizer.json": plain,
        "tokenizer_config.json": plain,
        "generation_config.json": plain,
        "sentence_bert_config.json": plain,
        "model.safetensors.index.json": shards,
        "modules.json": nested,
        "0_Transformer/config.json": nested,
        "adapter_config.json": adapter,
        "ctxextend.yaml": resized.output,
    }


def damaged(folders: dict[str, Path], name: str, data: bytes) -> Path:
    """Copy a checkpoint and replace the content of one file."""
    copied = shutil.copytree(folders[name], f"damaged/{folders[name].name}", dirs_exist_ok=True)
    folder = Path(copied)
    (folder / name).write_bytes(data)
    return folder


# Keys of each file that ctxextend reads.
READ_KEYS = {
    "config.json": (
        "n_positions",
        "model_type",
        "architectures",
        "auto_map",
        "tie_word_embeddings",
        "new",
    ),
    "tokenizer_config.json": ("model_max_length", "max_len", "auto_map"),
    "generation_config.json": ("max_length",),
    "sentence_bert_config.json": ("max_seq_length",),
    "tokenizer.json": ("truncation", "padding"),
    "model.safetensors.index.json": ("weight_map", "metadata"),
    "adapter_config.json": ("base_model_name_or_path",),
    "0_Transformer/config.json": ("max_position_embeddings", "position_embedding_type"),
}


@pytest.mark.usefixtures("sweep")
@given(
    name=st.sampled_from((*READ_KEYS, "modules.json", "config.json")),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(30), deadline=None, derandomize=True)
def test_commands_read_or_reject_mutated_json(
    folders: dict[str, Path], name: str, random: Random
) -> None:
    data = (folders[name] / name).read_bytes()
    folder = damaged(folders, name, mutate_text(random, data))
    plan_and_inspect(folder)
    with time_limit(2), suppress(CtxextendError):
        resize(folder, to=NEW, output="out", force=True)


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in READ_KEYS.items() for key in keys]
)
def test_commands_read_or_reject_values_of_every_type(
    folders: dict[str, Path], name: str, key: str
) -> None:
    stated = json.loads((folders[name] / name).read_bytes())
    offset = (len(name) + len(key)) % 4
    for value in VALUES[offset::4]:  # a different quarter for every key
        marked = json.dumps(stated | {key: "@"})
        text = marked.replace('"@"', value)
        data = text.encode("utf-8", "surrogatepass")
        plan_and_inspect(damaged(folders, name, data))


def test_plan_resize_rejects_a_huge_config_without_reading_it(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file
    problem = "has 1,099,511,627,776 bytes; the maximum is 100,000,000"
    with time_limit(2), pytest.raises(CheckpointError, match=problem):
        plan_resize(folder, to=NEW)


@pytest.mark.parametrize(
    "stated", [10**12, 0, -1, 2**63, 10**300, 16.0, 16.5, True, False, "16", [16], {}, 1e400]
)
def test_plan_resize_rejects_impossible_lengths_in_the_config(
    stated: Any, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions=stated)
    problem = r"config\.json.* n_positions "
    with time_limit(1), pytest.raises(CheckpointError, match=problem):
        plan_resize(folder, to=NEW)
    with time_limit(1):
        inspected = inspect(folder)
    limit = next(limit for limit in inspected.limits if limit.key == "n_positions")
    assert not limit.agrees


# ---- recipes

YAML = {
    "recursive alias": "&a [*a]",
    "a call": "!!python/object/apply:os.system ['touch canary']",
    "a name": "!!python/name:os.system",
    "merged keys": "{<<: {to: 3}}",
    "binary": "!!binary aGVsbG8=",
    "an invalid date": "2020-99-99",
    "an invalid timestamp": "!!timestamp x",
    "an empty int": '!!int ""',
    "an empty float": '!!float ""',
    "an invalid bool": '!!bool "x"',
    "digits": "9" * 5_000,
    "infinity": ".inf",
    "a large float": "1.0e+400",
    "deep lists": "[" * 1_100,
    "a lone surrogate": '"\\ud800"',
    "an escape": '"\\e[2J"',
    "nothing": "",
    "another document": "1\n---\n2",
    "another version": "1\n...\n%YAML 9.9\n---\n1",
    "a list for a key": "{[1]: 2}",
    "a tab": "\t1",
}
TEMPLATES: tuple[str, ...] = (
    "@",
    "source: @",
    "source: tiny-gpt2\nresize: @",
    "source: tiny-gpt2\nresize:\n  to: @",
    "source: tiny-gpt2\nresize:\n  to: 256\n  method: hierarchical:alpha=@",
    "source: tiny-gpt2\nresize:\n  to: 256\nprovenance:\n  x: @",
)


@contextmanager
def short_error() -> Iterator[None]:
    """Accept a short error of a recipe, within seconds."""
    with time_limit(3):
        try:
            yield
        except (RecipeError, ResizeError) as error:
            assert len(str(error)) < 2_000


@pytest.mark.parametrize("kind", YAML)
def test_read_recipe_reads_or_rejects_hostile_yaml(kind: str) -> None:
    templates = TEMPLATES
    if kind == "deep lists":
        templates = TEMPLATES[2:3]  # each takes a second
    for template in templates:
        text = template.replace("@", YAML[kind])
        Path("recipe.yaml").write_text(text)
        with short_error():
            str(read_recipe("recipe.yaml").recipe)
        with short_error():
            str(parse_provenance(text, "recipe.yaml"))
    assert not Path("canary").exists()


@pytest.mark.parametrize("kind", ["recursive alias", "a call", "digits"])
def test_hostile_recipe_is_rejected_by_run_and_ignored_in_a_checkpoint(
    kind: str, folders: dict[str, Path]
) -> None:
    shutil.copytree(folders["ctxextend.yaml"], "resized")
    text = f"source: tiny-gpt2\nresize:\n  to: {YAML[kind]}\n"
    Path("resized/ctxextend.yaml").write_text(text)
    with time_limit(4):
        done = trainings.invoke("run", "resized/ctxextend.yaml", "--dry-run", "--json")
        assert inspect("resized").method is None
        with pytest.raises(RecipeError):
            verify("resized", folders["config.json"])
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert result["error"]["type"] == "RecipeError"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("sweep")
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_read_recipe_reads_or_rejects_mutated_recipes(
    folders: dict[str, Path], random: Random
) -> None:
    data = (folders["ctxextend.yaml"] / "ctxextend.yaml").read_bytes()
    recipe = yaml.safe_load(data)
    mutated = mutate_text(random, json.dumps(recipe).encode())  # JSON is also YAML
    Path("recipe.yaml").write_bytes(mutated)
    with time_limit(3), suppress(RecipeError, ResizeError):
        str(parse_provenance(mutated.decode("utf-8", "replace"), "recipe.yaml"))
        str(read_recipe("recipe.yaml").recipe)


# ---- cards


def test_model_card_does_not_expand_nested_merge_keys() -> None:
    levels = ["k0: &k0 {x: 1}"]
    for n in range(1, 9):
        ten_times = ", ".join([f"*k{n - 1}"] * 10)
        levels.append(f"k{n}: &k{n} {{<<: [{ten_times}]}}")
    front_matter = "\n".join(levels)
    card = f"---\n{front_matter}\n---\n"
    with time_limit(1):
        updated = model_card(card, "base", title="title", section="## Section")
    assert "base_model: base" in updated
