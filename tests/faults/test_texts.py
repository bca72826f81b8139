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
from ctxextend.errors import CheckpointError, CtxextendError, OutputError, RecipeError, ResizeError
from ctxextend.json_output import to_json
from ctxextend.plan.output_files import model_card
from ctxextend.provenance import parse_provenance
from ctxextend.recipe_file import read_recipe
from tests import pico, trainings
from tests.faults.limits import examples, within
from tests.faults.mutations import VALUES, mutate_text

MakePico = Callable[..., pico.Pico]

BUNDLED = Path(__file__).parents[2] / "ctxextend" / "bundled" / "tiny_gpt2"
WPE = "transformer.wpe.weight"
NEW = 40


def look(folder: Path) -> None:
    """Plan and inspect; each ends at once, and well or with an error of ours."""
    uses: tuple[Callable[[], Any], ...] = (
        lambda: to_json(plan_resize(folder, to=NEW)),
        lambda: to_json(inspect(folder)),
    )
    for use in uses:
        with within(2), suppress(CtxextendError):
            json.dumps(use(), indent=2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints of every form that holds a text file, by the file; no test may leave one changed."""
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
        **{"adapter_config.json": adapter, "ctxextend.yaml": made, "README.md": made},
    }


FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "sentence_bert_config.json"),
    *("model.safetensors.index.json", "modules.json", "0_Transformer/config.json", "adapter_config.json"),
)


@pytest.mark.usefixtures("sweep")
@given(name=st.sampled_from((*FILES, "config.json")), random=st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None, derandomize=True)
def test_mutated_json_is_read_or_refused(folders: dict[str, Path], name: str, random: Random) -> None:
    path = folders[name] / name
    data = path.read_bytes()
    try:
        path.write_bytes(mutate_text(random, data))
        look(folders[name])
        with within(2), suppress(CtxextendError):
            resize(folders[name], to=NEW, output="out", force=True)
    finally:
        path.write_bytes(data)


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


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in TELLING.items() for key in keys])
def test_values_of_every_kind_are_read_or_refused(folders: dict[str, Path], name: str, key: str) -> None:
    path = folders[name] / name
    data = path.read_bytes()
    try:
        # Every key gets others.
        for value in VALUES[(len(name) + len(key)) % 4 :: 4]:
            text = json.dumps(json.loads(data) | {key: "@"}).replace('"@"', value)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            look(folders[name])
    finally:
        path.write_bytes(data)


def nested(depth: int, inner: str = "1") -> str:
    """JSON of so many objects in each other."""
    return '{"a": ' * depth + inner + "}" * depth


DEEP = {
    "config.json": "@",
    "generation_config.json": "@",
    "tokenizer_config.json": "@",
    "tokenizer.json": '{"padding": {"strategy": @}}',
    "model.safetensors.index.json": '{"metadata": @, "weight_map": {}}',
    "modules.json": "[@]",
    "adapter_config.json": "@",
}


@pytest.mark.parametrize("depth", [150, 500, 990, 100_000])
@pytest.mark.parametrize("name", DEEP)
def test_json_that_is_nested_deeply_is_refused(folders: dict[str, Path], name: str, depth: int) -> None:
    path = folders[name] / name
    data = path.read_bytes()
    try:
        path.write_text(DEEP[name].replace("@", nested(depth)))
        for use in (lambda: plan_resize(folders[name], to=NEW), lambda: inspect(folders[name])):
            with (
                within(2),
                pytest.raises(CheckpointError, match="nested too deeply"),
            ):
                use()
    finally:
        path.write_bytes(data)


def test_a_tokenizer_whose_strings_do_not_end_is_refused_at_once(folders: dict[str, Path]) -> None:
    path = folders["tokenizer.json"] / "tokenizer.json"
    data = path.read_bytes()
    try:
        path.write_text('{"model": {"' + '\\"' * 500_000 + "}")
        with within(2), pytest.raises(CheckpointError, match="Unterminated string"):
            plan_resize(folders["tokenizer.json"], to=NEW)
    finally:
        path.write_bytes(data)


def test_a_text_file_that_is_too_long_is_refused_before_it_is_read(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # of which no byte takes room
    for use in (lambda: plan_resize(folder, to=NEW), lambda: inspect(folder)):
        with within(2), pytest.raises(CheckpointError, match="has 1,099,511,627,776 bytes; no such file needs more"):
            use()


@pytest.mark.parametrize("stated", [10**12, 0, -1, 2**63, 10**300, 16.0, 16.5, True, False, "16", [16], {}, 1e400])
def test_a_config_that_states_an_impossible_length_is_refused(stated: Any, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions=stated)
    with within(1), pytest.raises(CheckpointError, match=r"config\.json.* n_positions ") as caught:
        plan_resize(folder, to=NEW)
    assert str(caught.value.hint).startswith("Correct config.json")
    with within(1):
        assert not next(limit for limit in inspect(folder).limits if limit.key == "n_positions").agrees


@pytest.mark.parametrize("to", [10**9, 10**12])
def test_a_length_that_no_machine_has_room_for_is_refused(to: int, make_pico: MakePico) -> None:
    with within(1), pytest.raises(OutputError, match="The output needs .* free") as caught:
        resize(make_pico("gpt2").folder, to=to * 100, output="out")
    assert caught.value.hint
    assert not Path("out").exists()


@pytest.mark.parametrize("to", [2**63, 10**100, 1 << 20_000], ids=["64 bits", "100 digits", "6,000 digits"])
def test_a_length_that_no_file_could_have_is_refused(to: int) -> None:
    with within(1), pytest.raises(ResizeError, match="more positions than any table can have") as caught:
        plan_resize("tiny-gpt2", to=to)
    assert caught.value.hint == "Give a smaller --to."


# ---- recipes

YAML = {
    "a bomb of aliases": "[&a [1, 1], &b [*a, *a], &c [*b, *b]]",
    "itself": "&a [*a]",
    "a call": "!!python/object/apply:os.system ['touch canary']",
    "a name": "!!python/name:os.system",
    "a new object": "!!python/object/new:os.system ['touch canary']",
    "a module": "!!python/module:antigravity",
    "merged keys": "{<<: {to: 3}}",
    "binary": "!!binary aGVsbG8=",
    "a set": "!!set {a, b}",
    "pairs": "!!omap [a: 1]",
    "a date that there is not": "2020-99-99",
    "no date": "!!timestamp x",
    "an empty int": '!!int ""',
    "an int of a sign": '!!int "+"',
    "an empty float": '!!float ""',
    "no bool": '!!bool "x"',
    "hexadecimal": "0x" + "f" * 150_000,
    "binary digits": "0b" + "1" * 150_000,
    "octal": "0" + "7" * 150_000,
    "digits": "9" * 5_000,
    "short hexadecimal": "0x" + "f" * 90,
    "a base of 60": "1" + ":1" * 90_000,
    "a float to the base of 60": "1" + ":1" * 45 + ".5",
    "a long float to the base of 60": "1" + ":1" * 90_000 + ".5",
    "infinity": ".inf",
    "no number": ".nan",
    "a large float": "1.0e+400",
    "deep lists": "[" * 50_000,
    "deep mappings": "{a: " * 3_000 + "1" + "}" * 3_000,
    "10 MB": "x" * 10_000_000,
    "10 MB in quotes": f'"{"x" * 10_000_000}"',
    "many values": f"[{'1,' * 60_000}]",
    "many keys": "{" + ",".join(f"k{number}: 1" for number in range(15_000)) + "}",
    "one key many times": f"{{{'a: 1,' * 25_000}}}",
    "many anchors": "[" + ",".join(f"&a{number} 1" for number in range(13_000)) + "]",
    "many dashes": "- " * 50_000,
    "half a surrogate": '"\\ud800"',
    "a NUL": '"\\0"',
    "an escape": '"\\e[2J"',
    "nothing": "",
    "another document": "1\n---\n2",
    "another version": "1\n...\n%YAML 9.9\n---\n1",
    "a list for a key": "{[1]: 2}",
    "a tab": "\t1",
}
PLACES = (
    *("@", "source: @", "source: tiny-gpt2\nresize: @", "source: tiny-gpt2\nresize:\n  to: @"),
    "source: tiny-gpt2\nresize:\n  to: 256\n  method: hierarchical\n  alpha: @",
    "source: tiny-gpt2\nresize:\n  to: 256\n  method: random\n  seed: @",
    "source: tiny-gpt2\nresize:\n  to: 256\nprovenance:\n  x: @",
)


@pytest.mark.parametrize("kind", YAML)
def test_recipes_of_every_kind_are_read_or_refused(kind: str) -> None:
    places = PLACES if len(YAML[kind]) < 10_000 else PLACES[1:2]
    for place in places:
        text = place.replace("@", YAML[kind])
        Path("recipe.yaml").write_text(text)
        with within(3):
            try:
                str(read_recipe("recipe.yaml").recipe)
            except (RecipeError, ResizeError) as error:
                assert len(str(error)) < 2_000
        with within(3):
            try:
                str(parse_provenance(text, "beside"))
            except RecipeError as error:
                assert len(str(error)) < 2_000
    assert not Path("canary").exists()


@pytest.mark.parametrize("kind", ["a bomb of aliases", "a call", "digits", "many values", "deep lists", "10 MB"])
def test_the_command_refuses_a_hostile_recipe(kind: str) -> None:
    Path("recipe.yaml").write_text(f"source: tiny-gpt2\nresize:\n  to: {YAML[kind]}\n")
    with within(4):
        done = trainings.invoke("run", "recipe.yaml", "--dry-run", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["type"] == "RecipeError"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("sweep")
@given(random=st.randoms(use_true_random=False), how=st.sampled_from(["run", "beside"]))
@settings(max_examples=examples(30), deadline=None, derandomize=True)
def test_mutated_recipes_are_read_or_refused(folders: dict[str, Path], random: Random, how: str) -> None:
    data = (folders["ctxextend.yaml"] / "ctxextend.yaml").read_bytes()
    as_json = json.dumps(yaml.safe_load(data)).encode()  # which is YAML too
    mutated = mutate_text(random, as_json)
    Path("recipe.yaml").write_bytes(mutated)
    with within(3):
        try:
            if how == "run":
                str(read_recipe("recipe.yaml").recipe)
            else:
                str(parse_provenance(mutated.decode("utf-8", "replace"), "beside"))
        except (RecipeError, ResizeError):
            pass


@pytest.mark.parametrize("kind", [kind for kind, text in YAML.items() if len(text) < 10_000 or kind == "many values"])
def test_a_hostile_recipe_beside_a_checkpoint_is_passed_over(kind: str, folders: dict[str, Path]) -> None:
    shutil.copytree(folders["ctxextend.yaml"], "made")
    Path("made/ctxextend.yaml").write_text(f"source: tiny-gpt2\nresize:\n  to: {YAML[kind]}\n")
    with within(4):
        assert inspect("made").method is None
        assert verify(folders["config.json"], "made").passed


# ---- cards


@pytest.mark.parametrize("kind", YAML)
def test_a_hostile_card_is_kept(kind: str) -> None:
    card = f"---\nx: {YAML[kind]}\n---\n# A model\n"
    with within(4):
        made = model_card(card, "base", is_hub_id=True, title="title", section="## Section")
    assert made.endswith("# A model\n\n## Section\n")


def test_a_card_that_merges_keys_into_keys_is_not_built() -> None:
    levels = "\n".join(f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 10)}]}}" for n in range(1, 9))
    card = f"---\nk0: &k0 {{x: 1}}\n{levels}\n---\n"
    with within(1):
        assert "base_model: base" in model_card(card, "base", is_hub_id=True, title="title", section="## Section")
