from typing import Any

import pytest
from typer.main import get_command

from ctxextend.cli.app import app_of
from ctxextend.cli.arguments import repeated

EVALUATE: Any = get_command(app_of()).commands["evaluate"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("m --data a b c", "m --data a --data b --data c"),
        ("m --data a b --seed 1 --length 8 16", "m --data a --data b --seed 1 --length 8 --length 16"),
        ("m --data a --data b", "m --data a --data b"),
        ("m --data=a --quiet --data b c", "m --data=a --quiet --data b --data c"),
        ("m --seed 1 --data a b", "m --seed 1 --data a --data b"),
        ("--data a m", "--data a m"),
        ("--data a m --length 8 16", "--data a m --length 8 --length 16"),
        ("--seed 1 m --data a b", "--seed 1 m --data a --data b"),
        ("--quiet m --data a b", "--quiet m --data a --data b"),
        ("m --data a -- b", "m --data a -- b"),
        ("m --data - b", "m --data - --data b"),
    ],
)
def test_repeated_spreads_values_behind_the_argument_alone(typed: str, expected: str) -> None:
    assert repeated(EVALUATE, typed.split()) == expected.split()
