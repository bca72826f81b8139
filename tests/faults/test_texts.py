"""Config, index, tokenizer, recipe and card as a stranger may write them: read, or refused with what to do."""

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
from ctxextend.plan.output_files import model_card
from ctxextend.recipe_file import parse_provenance, read_recipe
from tests import pico, trainings
from tests.faults.limits import examples, within
from tests.faults.mutations import VALUES, mutate_text

MakePico = Callable[..., pico.Pico]

WPE = "transformer.wpe.weight"
NEW = 40


def look(folder: Path) -> None:
    """Plan and inspect; each ends at once, and well or with an error of ours."""
    uses: list[Callable[[Path], Any]] = [lambda folder: plan_resize(folder, to=NEW), inspect]
    for use in uses:
        with within(2), suppress(CtxextendError):
            json.dumps(to_json(use(folder)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints of every form that holds a text file, by the file."""
    root = tmp_path_factory.mktemp("texts")
    plain = trainings.make_source(root / "plain", "gpt2")
    pico.edit_json(plain / "sentence_bert_config.json", max_seq_length=16, do_lower_case=False)
    shards = pico.make(root / "shards", "gpt2").folder
    pico.shard(shards)
    nested = pico.nest(pico.make(root / "bert", "bert").folder, root / "nested")
    adapter = root / "adapter"
    adapter.mkdir()
    table = load_file(plain / "model.safetensors")[WPE]
    save_file({f"base_model.model.{WPE}": table}, adapter / "adapter_model.safetensors")
    pico.edit_json(adapter / "adapter_config.json", base_model_name_or_path=str(plain), peft_type="LORA")
    made = resize(plain, to=32, output=root / "made").output
    return {
        **dict.fromkeys(("config.json", "tokenizer.json", "tokenizer_config.json"), plain),
        **dict.fromkeys(("generation_config.json", "sentence_bert_config.json"), plain),
        **{"model.safetensors.index.json": shards, "modules.json": nested, "0_Transformer/config.json": nested},
        **{"adapter_config.json": adapter, "ctxextend.yaml": made},
    }


def damaged(folders: dict[str, Path], name: str, data: bytes) -> Path:
    """Copy a checkpoint, and write something else into a file of the copy."""
    folder = Path(shutil.copytree(folders[name], f"damaged/{folders[name].name}", dirs_exist_ok=True))
    (folder / name).write_bytes(data)
    return folder


# What each file states a length by, or is read for.
TELLING = {
    "config.json": ("n_positions", "model_type", "architectures", "auto_map", "tie_word_embeddings", "new"),
    "tokenizer_config.json": ("model_max_length", "max_len", "auto_map"),
    "generation_config.json": ("max_length",),
    "sentence_bert_config.json": ("max_seq_length",),
    "tokenizer.json": ("truncation", "padding"),
    "model.safetensors.index.json": ("weight_map", "metadata"),
    "adapter_config.json": ("base_model_name_or_path",),
    "0_Transformer/config.json": ("max_position_embeddings", "position_embedding_type"),
}


@pytest.mark.usefixtures("sweep")
@given(name=st.sampled_from((*TELLING, "modules.json", "config.json")), random=st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None, derandomize=True)
def test_mutated_json_is_read_or_refused(folders: dict[str, Path], name: str, random: Random) -> None:
    folder = damaged(folders, name, mutate_text(random, (folders[name] / name).read_bytes()))
    look(folder)
    with within(2), suppress(CtxextendError):
        resize(folder, to=NEW, output="out", force=True)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in TELLING.items() for key in keys])
def test_values_of_every_kind_are_read_or_refused(folders: dict[str, Path], name: str, key: str) -> None:
    stated = json.loads((folders[name] / name).read_bytes())
    for value in VALUES[(len(name) + len(key)) % 4 :: 4]:  # every key gets others
        text = json.dumps(stated | {key: "@"}).replace('"@"', value)
        look(damaged(folders, name, text.encode("utf-8", "surrogatepass")))


def test_a_text_file_that_is_too_long_is_refused_before_it_is_read(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # of which no byte takes room
    with within(2), pytest.raises(CheckpointError, match="has 1,099,511,627,776 bytes; the maximum is 100,000,000"):
        plan_resize(folder, to=NEW)


@pytest.mark.parametrize("stated", [10**12, 0, -1, 2**63, 10**300, 16.0, 16.5, True, False, "16", [16], {}, 1e400])
def test_a_config_that_states_an_impossible_length_is_refused(stated: Any, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions=stated)
    with within(1), pytest.raises(CheckpointError, match=r"config\.json.* n_positions ") as caught:
        plan_resize(folder, to=NEW)
    assert str(caught.value.hint).startswith("Correct config.json")
    with within(1):
        assert not next(limit for limit in inspect(folder).limits if limit.key == "n_positions").agrees


# ---- recipes

YAML = {
    "itself": "&a [*a]",
    "a call": "!!python/object/apply:os.system ['touch canary']",
    "a name": "!!python/name:os.system",
    "merged keys": "{<<: {to: 3}}",
    "binary": "!!binary aGVsbG8=",
    "a date that there is not": "2020-99-99",
    "no date": "!!timestamp x",
    "an empty int": '!!int ""',
    "an empty float": '!!float ""',
    "no bool": '!!bool "x"',
    "digits": "9" * 5_000,
    "infinity": ".inf",
    "a large float": "1.0e+400",
    "deep lists": "[" * 5_000,
    "half a surrogate": '"\\ud800"',
    "an escape": '"\\e[2J"',
    "nothing": "",
    "another document": "1\n---\n2",
    "another version": "1\n...\n%YAML 9.9\n---\n1",
    "a list for a key": "{[1]: 2}",
    "a tab": "\t1",
}
PLACES = (
    *("@", "source: @", "source: tiny-gpt2\nresize: @", "source: tiny-gpt2\nresize:\n  to: @"),
    "source: tiny-gpt2\nresize:\n  to: 256\n  method: hierarchical:alpha=@",
    "source: tiny-gpt2\nresize:\n  to: 256\nprovenance:\n  x: @",
)


@pytest.mark.parametrize("kind", YAML)
def test_recipes_of_every_kind_are_read_or_refused(kind: str) -> None:
    for place in PLACES[2:3] if kind == "deep lists" else PLACES:  # which takes a second
        text = place.replace("@", YAML[kind])
        Path("recipe.yaml").write_text(text)
        for read in (lambda: read_recipe("recipe.yaml").recipe, lambda text=text: parse_provenance(text, "beside")):
            with within(3):
                try:
                    str(read())
                except (RecipeError, ResizeError) as error:
                    assert len(str(error)) < 2_000
    assert not Path("canary").exists()


@pytest.mark.parametrize("kind", ["itself", "a call", "digits"])
def test_a_hostile_recipe_is_refused_by_the_command_and_passed_over_beside_a_checkpoint(
    kind: str, folders: dict[str, Path]
) -> None:
    shutil.copytree(folders["ctxextend.yaml"], "made")
    Path("made/ctxextend.yaml").write_text(f"source: tiny-gpt2\nresize:\n  to: {YAML[kind]}\n")
    with within(4):
        done = trainings.invoke("run", "made/ctxextend.yaml", "--dry-run", "--json")
        assert inspect("made").method is None
        assert verify("made", folders["config.json"]).passed
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["type"] == "RecipeError"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("sweep")
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_mutated_recipes_are_read_or_refused(folders: dict[str, Path], random: Random) -> None:
    data = (folders["ctxextend.yaml"] / "ctxextend.yaml").read_bytes()
    mutated = mutate_text(random, json.dumps(yaml.safe_load(data)).encode())  # which is YAML too
    Path("recipe.yaml").write_bytes(mutated)
    with within(3), suppress(RecipeError, ResizeError):
        str(parse_provenance(mutated.decode("utf-8", "replace"), "beside"))
        str(read_recipe("recipe.yaml").recipe)


# ---- cards


@pytest.mark.parametrize("kind", YAML)
def test_a_hostile_card_is_kept(kind: str) -> None:
    card = f"---\nx: {YAML[kind]}\n---\n# A model\n"
    with within(4):
        made = model_card(card, "base", title="title", section="## Section")
    assert made.endswith("# A model\n\n## Section\n")


def test_a_card_that_merges_keys_into_keys_is_not_built() -> None:
    levels = "\n".join(f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 10)}]}}" for n in range(1, 9))
    card = f"---\nk0: &k0 {{x: 1}}\n{levels}\n---\n"
    with within(1):
        assert "base_model: base" in model_card(card, "base", title="title", section="## Section")
