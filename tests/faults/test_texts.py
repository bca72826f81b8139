"""Hostile config, index, tokenizer, recipe and card files: read, or rejected with a hint."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ctxextend import inspect, plan_resize, resize, verify
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError
from ctxextend.json_output import to_json
from ctxextend.output.card import model_card
from ctxextend.provenance import parse_provenance
from ctxextend.recipe_file import read_recipe
from tests.helpers import pico, trainings
from tests.helpers.mutations import VALUES, mutate_text
from tests.helpers.time_limit import examples, time_limit

MakePico = Callable[..., pico.Pico]

WPE = "transformer.wpe.weight"
NEW = 40


def plan_and_inspect(folder: Path) -> None:
    """Plan and inspect; both succeed or raise a CtxextendError, within seconds."""
    functions: list[Callable[[Path], Any]] = [lambda folder: plan_resize(folder, to=NEW), inspect]
    for function in functions:
        with time_limit(2), suppress(CtxextendError):
            json.dumps(to_json(function(folder)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints by the text file that each contains."""
    root = tmp_path_factory.mktemp("texts")
    plain = trainings.make_source(root / "plain", "gpt2")
    pico.edit_json(plain / "sentence_bert_config.json", max_seq_length=16, do_lower_case=False)
    shards = pico.make(root / "shards", "gpt2").folder
    pico.shard(shards)
    nested = pico.nest_in_module(pico.make(root / "bert", "bert").folder, root / "nested")
    adapter = root / "adapter"
    adapter.mkdir()
    table = load_file(plain / "model.safetensors")[WPE]
    save_file({f"base_model.model.{WPE}": table}, adapter / "adapter_model.safetensors")
    pico.edit_json(
        adapter / "adapter_config.json", base_model_name_or_path=str(plain), peft_type="LORA"
    )
    resized = resize(plain, to=32, output=root / "resized").output
    return {
        **dict.fromkeys(("config.json", "tokenizer.json", "tokenizer_config.json"), plain),
        **dict.fromkeys(("generation_config.json", "sentence_bert_config.json"), plain),
        **{
            "model.safetensors.index.json": shards,
            "modules.json": nested,
            "0_Transformer/config.json": nested,
        },
        **{"adapter_config.json": adapter, "ctxextend.yaml": resized},
    }


def damaged(folders: dict[str, Path], name: str, data: bytes) -> Path:
    """Copy a checkpoint and replace the content of one file."""
    folder = Path(
        shutil.copytree(folders[name], f"damaged/{folders[name].name}", dirs_exist_ok=True)
    )
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
    folder = damaged(folders, name, mutate_text(random, (folders[name] / name).read_bytes()))
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
    for value in VALUES[(len(name) + len(key)) % 4 :: 4]:  # a different quarter for every key
        text = json.dumps(stated | {key: "@"}).replace('"@"', value)
        plan_and_inspect(damaged(folders, name, text.encode("utf-8", "surrogatepass")))


def test_plan_resize_rejects_a_huge_config_without_reading_it(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file
    with (
        time_limit(2),
        pytest.raises(
            CheckpointError, match="has 1,099,511,627,776 bytes; the maximum is 100,000,000"
        ),
    ):
        plan_resize(folder, to=NEW)


@pytest.mark.parametrize(
    "stated", [10**12, 0, -1, 2**63, 10**300, 16.0, 16.5, True, False, "16", [16], {}, 1e400]
)
def test_plan_resize_rejects_impossible_lengths_in_the_config(
    stated: Any, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions=stated)
    with (
        time_limit(1),
        pytest.raises(CheckpointError, match=r"config\.json.* n_positions ") as caught,
    ):
        plan_resize(folder, to=NEW)
    assert str(caught.value.hint).startswith("Correct config.json")
    with time_limit(1):
        assert not next(
            limit for limit in inspect(folder).limits if limit.key == "n_positions"
        ).agrees


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
    "deep lists": "[" * 5_000,
    "a lone surrogate": '"\\ud800"',
    "an escape": '"\\e[2J"',
    "nothing": "",
    "another document": "1\n---\n2",
    "another version": "1\n...\n%YAML 9.9\n---\n1",
    "a list for a key": "{[1]: 2}",
    "a tab": "\t1",
}
TEMPLATES = (
    *("@", "source: @", "source: tiny-gpt2\nresize: @", "source: tiny-gpt2\nresize:\n  to: @"),
    "source: tiny-gpt2\nresize:\n  to: 256\n  method: hierarchical:alpha=@",
    "source: tiny-gpt2\nresize:\n  to: 256\nprovenance:\n  x: @",
)


@pytest.mark.parametrize("kind", YAML)
def test_read_recipe_reads_or_rejects_hostile_yaml(kind: str) -> None:
    for template in (
        TEMPLATES[2:3] if kind == "deep lists" else TEMPLATES
    ):  # deep lists take a second each
        text = template.replace("@", YAML[kind])
        Path("recipe.yaml").write_text(text)
        for read in (
            lambda: read_recipe("recipe.yaml").recipe,
            lambda text=text: parse_provenance(text, "recipe.yaml"),
        ):
            with time_limit(3):
                try:
                    str(read())
                except (RecipeError, ResizeError) as error:
                    assert len(str(error)) < 2_000
    assert not Path("canary").exists()


@pytest.mark.parametrize("kind", ["recursive alias", "a call", "digits"])
def test_hostile_recipe_is_rejected_by_run_and_ignored_in_a_checkpoint(
    kind: str, folders: dict[str, Path]
) -> None:
    shutil.copytree(folders["ctxextend.yaml"], "resized")
    Path("resized/ctxextend.yaml").write_text(f"source: tiny-gpt2\nresize:\n  to: {YAML[kind]}\n")
    with time_limit(4):
        done = trainings.invoke("run", "resized/ctxextend.yaml", "--dry-run", "--json")
        assert inspect("resized").method is None
        assert verify("resized", folders["config.json"]).passed
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["type"] == "RecipeError"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("sweep")
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_read_recipe_reads_or_rejects_mutated_recipes(
    folders: dict[str, Path], random: Random
) -> None:
    data = (folders["ctxextend.yaml"] / "ctxextend.yaml").read_bytes()
    mutated = mutate_text(random, json.dumps(yaml.safe_load(data)).encode())  # JSON is also YAML
    Path("recipe.yaml").write_bytes(mutated)
    with time_limit(3), suppress(RecipeError, ResizeError):
        str(parse_provenance(mutated.decode("utf-8", "replace"), "recipe.yaml"))
        str(read_recipe("recipe.yaml").recipe)


# ---- cards


@pytest.mark.parametrize("kind", YAML)
def test_model_card_keeps_hostile_yaml(kind: str) -> None:
    card = f"---\nx: {YAML[kind]}\n---\n# A model\n"
    with time_limit(4):
        updated = model_card(card, "base", title="title", section="## Section")
    assert updated.endswith("# A model\n\n## Section\n")


def test_model_card_does_not_expand_nested_merge_keys() -> None:
    levels = "\n".join(
        f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 10)}]}}" for n in range(1, 9)
    )
    card = f"---\nk0: &k0 {{x: 1}}\n{levels}\n---\n"
    with time_limit(1):
        assert "base_model: base" in model_card(card, "base", title="title", section="## Section")
