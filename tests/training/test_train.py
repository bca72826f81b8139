"""`ctxextend train`: which tensors and rows change, and which other files it writes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

import ctxextend
from ctxextend import convert, inspect, resize, run, verify
from ctxextend.card import RECIPE_POINTER
from tests.helpers import pico
from tests.helpers.trainings import (
    NEW,
    OLD,
    TABLES,
    changed_tensors,
    equal_rows,
    files_here,
    invoke,
    log_of,
    make_encoder,
    make_resized,
    make_source,
    table_of,
    train,
)
from tests.helpers.word_tokenizer import add_tokenizer

pytestmark = pytest.mark.usefixtures("book")
WPE = TABLES["gpt2"]


def test_train_new_changes_only_new_rows_despite_weight_decay(gpt2: Path) -> None:
    settings: dict[str, Any] = {"lr": 0.01, "save": "last", "trainable": "new", "weight_decay": 0.5}
    ctxextend.train(gpt2, "book.txt", 4, batch_size=4, output="out", **settings)
    before = (gpt2 / "model.safetensors").read_bytes()
    after = Path("out/model.safetensors").read_bytes()
    is_different = np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)
    offsets = np.flatnonzero(is_different)
    table = table_of(gpt2).tobytes()
    start = before.index(table)
    assert start + len(table) // 2 <= offsets.min()
    assert offsets.max() < start + len(table)
    assert equal_rows(gpt2, Path("out")) == [True] * OLD + [False] * OLD


def test_train_new_trains_the_rows_between_learned_rows_of_a_stretched_table(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    resize(source, to=NEW, method="stretch", keep_first=0, output="stretched")
    done = train("stretched", "out", "--trainable", "new", "--json")

    equal = equal_rows(Path("stretched"), Path("out"))
    unchanged = [row for row, is_equal in enumerate(equal) if is_equal]
    assert unchanged == [*range(0, NEW, 2), NEW - 1]
    learned = table_of(Path("out"))[::2]
    assert learned.tobytes() == table_of(source).tobytes()
    assert json.loads(done.stdout)["parameters"] == OLD * pico.WIDTH
    for base in (source, "stretched"):
        assert verify("out", base).passed


@pytest.mark.parametrize(
    ("model_type", "name", "name_in_file"),
    [
        ("gpt2", "", ""),
        ("gpt2", r"^transformer\.", ""),
        ("bert", r"LayerNorm\.weight$", "LayerNorm.gamma"),
    ],
)
def test_train_all_changes_every_parameter_and_no_buffer_with_any_names_in_the_file(
    model_type: str, name: str, name_in_file: str
) -> None:
    source = make_source(Path("source"), model_type)
    file = source / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for parameter, tensor in load_file(file).items():
        tensors[re.sub(name, name_in_file, parameter)] = tensor
    buffer = {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors | buffer, file, metadata={"format": "pt"})
    done = train(source, "out", "--trainable", "all", "--json")

    assert changed_tensors(source, Path("out")) == set(tensors)
    model_class = getattr(transformers, pico.HEADS[model_type])
    loaded = model_class.from_pretrained("out")
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert json.loads(done.stdout)["parameters"] == loaded.num_parameters()


def test_train_all_but_positions_changes_every_other_tensor(gpt2: Path) -> None:
    done = train(gpt2, "out", "--trainable", "all-but-positions", "--json")
    names = set(load_file(gpt2 / "model.safetensors"))
    assert changed_tensors(gpt2, Path("out")) == names - {WPE}
    loaded = pico.Pico(gpt2, transformers.GPT2LMHeadModel).load(Path("out"))
    assert json.loads(done.stdout)["parameters"] == loaded.num_parameters() - NEW * pico.WIDTH
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "  trainable: all-but-positions\n" in recipe
    assert verify("out").trainable == "all-but-positions"


def test_train_all_but_positions_trains_neither_table_of_a_model_with_two() -> None:
    config = transformers.LukeConfig(**pico.CONFIGS["bert"], entity_vocab_size=8, entity_emb_size=4)
    transformers.LukeForMaskedLM(config).save_pretrained("luke")
    add_tokenizer(Path("luke"), special_tokens=True)

    parameters: dict[str, int] = {}
    for trainable in ("all", "all-but-positions"):
        done = train("luke", trainable, "--trainable", trainable, "--json", steps=1)
        parameters[trainable] = json.loads(done.stdout)["parameters"]
    frozen = parameters["all"] - parameters["all-but-positions"]
    assert frozen == 2 * config.max_position_embeddings * config.hidden_size


@pytest.mark.parametrize(
    ("then", "both"),
    [
        ("all-but-positions", "all-but-positions"),
        ("new", "all"),
    ],
)
def test_train_of_a_trained_checkpoint_records_all_that_was_trained(
    gpt2: Path, then: str, both: str
) -> None:
    train(gpt2, "first", "--trainable", "all-but-positions", steps=1)
    train("first", "second", "--trainable", then, steps=1)
    assert verify("second").trainable == both
    assert inspect("second").trainable == both


def test_train_all_writes_equal_values_for_tied_tensors() -> None:
    source = make_source(Path("source"), "gpt2")
    embeddings = load_file(source / "model.safetensors")["transformer.wte.weight"]
    pico.add_tensors(source, {"lm_head.weight": embeddings.clone()})
    train(source, "out", "--trainable", "all")
    after = load_file("out/model.safetensors")
    assert torch.equal(after["lm_head.weight"], after["transformer.wte.weight"])
    assert not torch.equal(after["lm_head.weight"], embeddings)


def test_train_writes_safetensors_for_a_pickle_source() -> None:
    source = make_source(Path("source"), "gpt2")
    before = load_file(source / "model.safetensors")
    torch.save(before, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    train(source, "out")

    after = load_file("out/model.safetensors")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == [WPE]
    pico.Pico(source, transformers.GPT2LMHeadModel).load(Path("out"))
    assert not list(Path("out").glob("*.bin"))


def test_train_distils_a_sentence_encoder_from_its_unchanged_base_and_keeps_its_modules() -> None:
    root = make_encoder(Path("source").absolute())
    resize(root, to=NEW, output="long")
    done = train("long", "out", "--json", steps=12)
    result = json.loads(done.stdout)
    assert result["objective"] == "distilled"
    assert result["loss_after"] < result["loss_before"]

    pooling = Path("out/1_Pooling/config.json").read_bytes()
    assert pooling == Path("long/1_Pooling/config.json").read_bytes()
    changed = changed_tensors(Path("long/0_Transformer"), Path("out/0_Transformer"))
    assert changed == {"embeddings.position_embeddings.weight"}
    transformers.BertModel.from_pretrained("out/0_Transformer")

    pico.make(root / "0_Transformer", "bert", base=True, initializer_range=0.1)
    done = invoke("train", "long", "--data", "book.txt", "--steps", 2, "-o", "other")
    assert done.exit_code == 1
    assert "has changed since the recipe was written" in done.stderr


def held_out_losses(output: str) -> list[float]:
    """Return the held-out loss of each evaluation."""
    return [line["eval_loss"] for line in log_of(Path(output)) if "eval_loss" in line]


def test_train_distils_a_converted_language_model_by_default() -> None:
    source = make_source(Path("source").absolute(), "gpt2")
    convert(source, "rotary", NEW, output="long")
    done = train("long", "out", "--json", "--window", 24)
    assert json.loads(done.stdout)["distill"] == 4
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "distill: 4.0" in recipe

    # The recipe repeats it, from the base that the first recipe names; a trained twin is distilled
    # further.
    run("out/ctxextend.yaml", output="again")
    recipe = Path("again/ctxextend.yaml").read_text()
    assert "distill: 4.0" in recipe
    assert log_of(Path("again")) == log_of(Path("out"))
    done = train("out", "more", steps=2)
    assert "with weight 4" in done.stderr

    source.rename("moved")
    done = invoke("train", "long", "--data", "book.txt", "--steps", 2, "-o", "gone")
    assert done.exit_code == 1
    assert "Cannot distil from the base checkpoint of long: " in done.stderr

    # Without it, the run differs, but not the held-out loss before the first step, which does not
    # include it.
    done = train("long", "plain", "--distill", 0, "--window", 24)
    assert "distilled" not in done.stderr
    distilled = held_out_losses("out")
    plain = held_out_losses("plain")
    assert distilled[0] == pytest.approx(plain[0], abs=1e-5)  # read in batches of other sizes
    assert distilled[-1] != plain[-1]


def test_train_writes_its_recipe_card_and_log(gpt2: Path) -> None:
    done = train(gpt2, "out", "--eval-every", 2)
    assert done.stdout == "out\n"

    log = log_of(Path("out"))
    trained_steps = [line["step"] for line in log if "loss" in line]
    evaluated_steps = [line["step"] for line in log if "eval_loss" in line]
    assert trained_steps == [1, 2, 3, 4]
    assert evaluated_steps == [0, 2, 4]
    card = Path("out/README.md").read_text()
    losses = held_out_losses("out")
    assert f"{losses[0]:.4f} before training, {losses[-1]:.4f} after step 4" in card
    assert card.count(RECIPE_POINTER) == 1
    assert files_here() == ["book.txt", "out"]


def test_recipe_lists_all_steps_since_the_base(gpt2: Path) -> None:
    train(gpt2, "once", "--trainable", "new", steps=1)
    train("once", "twice", steps=1)
    recipe = yaml.safe_load(Path("twice/ctxextend.yaml").read_text())
    steps = recipe["provenance"]["steps"]
    assert [step.keys() for step in steps] == [
        {"source", "resize", "provenance"},
        {"source", "train", "provenance"},
    ]
    verified = verify("twice")
    assert verified.passed, verified.checks
    assert Path(verified.base).resolve() == gpt2.with_name("long-old")
    assert verified.trainable == "positions"
    for base in (gpt2, "once"):
        assert verify("twice", base).passed


def test_run_reproduces_a_trained_checkpoint_from_its_recipe(gpt2: Path) -> None:
    train(gpt2, "out")
    assert equal_rows(gpt2, Path("out")) == [False] * (NEW - 1) + [True]
    run("out/ctxextend.yaml", "again")
    for name in ("model.safetensors", "ctxextend.yaml"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes(), name
    assert not list(Path.cwd().glob("*.training"))


@pytest.mark.parametrize("trainable", ["new", "positions", "all-but-positions", "all"])
def test_train_output_is_verified_inspected_and_evaluated_against_its_first_base(
    gpt2: Path, trainable: str
) -> None:
    source = gpt2.with_name("long-old")
    train(gpt2, "out", "--trainable", trainable)
    for base in (source, gpt2):
        done = invoke("verify", "out", "--base", base)
        if trainable in ("all", "all-but-positions"):
            assert done.exit_code == 3, done.stdout
        else:
            assert done.exit_code == 0, done.stdout

    found = inspect("out")
    assert found.trainable == trainable
    assert found.tables[0].new_rows == ((OLD, NEW),)
    if trainable == "new":
        flags = ("--data", "book.txt", "--measure", "position", "--tokens", 64)
        done = invoke("evaluate", "out", *flags)
        evaluated = " ".join(done.stdout.split())
        assert f"base {source}: " in evaluated


@pytest.mark.parametrize("trainable", ["new", "all"])
def test_train_updates_float32_values_of_half_precision_parameters(trainable: str) -> None:
    source = make_resized(Path("source").absolute(), "gpt2", dtype=torch.bfloat16)
    # A rate so small that the steps would be lost in bfloat16, whose neighbours above 0.5 differ by
    # 0.004 or more.
    flags = ("--trainable", trainable, "--precision", "bf16", "--lr", 1e-3)
    done = train(source, "out", *flags, "--json", steps=12)
    assert json.loads(done.stdout)["precision"] == "bf16"

    assert load_file("out/model.safetensors")[WPE].dtype == torch.bfloat16
    before = table_of(source)
    after = table_of(Path("out"))
    is_large = np.abs(before) > 0.5
    if trainable == "new":
        is_large[:OLD] = False
        assert changed_tensors(source, Path("out")) == {WPE}
        assert (after[:OLD] == before[:OLD]).all()
    assert (after != before)[is_large].mean() > 0.2
