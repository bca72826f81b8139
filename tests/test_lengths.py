"""Lengths as users write them, in flags, recipes and Python."""

import pytest

from ctxextend import extend_model, plan_resize
from ctxextend.errors import ResizeError
from ctxextend.kinds import Factor
from ctxextend.recipe import parse_recipe
from ctxextend.settings import Resize
from tests.helpers.trainings import invoke


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("4,096", 4096),
        ("1,048,576", 1024**2),
        ("1m", 1024**2),
        ("1,024k", 1024**2),
        ("007", 7),
    ],
)
def test_lengths_are_numbers_with_units_and_groups(text: str, length: int) -> None:
    assert Resize(text).to == length


@pytest.mark.parametrize(
    "text",
    [
        *("4,0", "4,09", "4,0960", "40,96", "4,096_000", "_4096", "4096_", "4__096", ",096"),
        *("4_0", "4kb", "4kk", "4g", "1.5k", "1e3", "-4k", "", "k", "x", "0x", "00x", "٤k", "4 k"),
    ],
)
def test_lengths_that_are_ambiguous_or_malformed_are_refused(text: str) -> None:
    with pytest.raises(ResizeError, match="^--to must be a number, such as 4096, 4,096, 4k or 1m"):
        Resize(text)


def test_factors_multiply_the_present_length() -> None:
    assert str(Resize("4X").to) == "4x"
    assert plan_resize("tiny-gpt2", "4X").plan.max_len_after == 512
    assert plan_resize("tiny-gpt2", "1.5x").plan.max_len_after == 192


@pytest.mark.parametrize(
    ("factor", "length", "advice"),
    [
        ("1.3x", 128, "Use --to 166 or --to 167."),
        ("0.3x", 1022, "Use --to 306 or --to 307."),
        ("0.0001x", 16, "Use --to 1."),
    ],
)
def test_factors_that_give_no_whole_number_are_refused_with_the_nearest_lengths(
    factor: str, length: int, advice: str
) -> None:
    to = Resize(factor).to
    assert isinstance(to, Factor)
    with pytest.raises(ResizeError, match="is not a whole number of tokens") as error:
        to.times(length)
    assert error.value.hint == advice


@pytest.mark.parametrize(
    "command",
    [
        "resize tiny-gpt2 --to 1.3x",
        "convert tiny-gpt2 --scheme rotary --to 1.3x",
        "evaluate tiny-gpt2 --to 1.3x --data book.txt",
    ],
)
@pytest.mark.usefixtures("book")
def test_every_command_names_the_lengths_next_to_a_fraction(command: str) -> None:
    refused = invoke(*command.split())
    assert refused.exit_code == 1
    assert "Use --to 166 or --to 167." in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "convert m --scheme window --to 4k --attention-window 1,0",
        "resize m --to 4k --trained-length 1,0",
        "evaluate m --data book.txt --length 1,0",
        "train m --data book.txt --steps 1 --seq-len 1,0",
        "train m --data book.txt --steps 1 --window 1,0",
    ],
)
@pytest.mark.usefixtures("book")
def test_flags_of_lengths_say_what_they_accept(arguments: str) -> None:
    refused = invoke(*arguments.split())
    assert refused.exit_code == 2
    *_, flag, _ = [word for word in arguments.split() if "book" not in word and word != "--data"]
    assert f"{flag} must be a number of tokens, such as 4096, 4,096, 4k or 1m" in refused.stderr


def test_recipes_read_lengths_as_text() -> None:
    text = (
        "source: m\n"
        "trained_length: 2k\nresize: {to: '4,096'}\n"
        "train: {data: a, steps: 1, seq_len: 4k, window: 1_024}\n"
        "evaluate: {data: a, length: [1k, 4096]}\n"
    )
    recipe = parse_recipe(text, "recipe.yaml").recipe
    assert recipe.resize is not None
    assert recipe.resize.to == 4096
    assert recipe.checkpoint.trained_length == 2048
    assert recipe.train is not None
    assert (recipe.train.seq_len, recipe.train.window) == (4096, 1024)
    assert recipe.evaluate is not None
    assert recipe.evaluate.length == (1024, 4096)


def test_python_functions_read_lengths_as_text() -> None:
    from transformers import AutoModelForCausalLM

    from ctxextend.checkpoint.source import BUNDLED

    model = AutoModelForCausalLM.from_pretrained(BUNDLED["tiny-gpt2"])
    extend_model(model, "1k")
    assert model.config.n_positions == 1024
