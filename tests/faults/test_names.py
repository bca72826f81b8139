"""Names of tensors that would do something to a terminal: commands show them written out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctxextend.cli.app import app_of
from ctxextend.errors import printable
from tests.faults.weights import entry, model, pack

NAMES = {
    "line break": "pos\0\nError: a line of its own\u2028\u2029\u0085\r\t",
    "colour": "pos\x1b[31mred\x1b]0;title\x07\x9b31m",
    "turned": "pos\u202egnp.exe\u2067a\u2069\u200f\u061c",
}


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app_of(), list(arguments))
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.stdout + done.stderr


BY_HAND = ("--table", "wpe.weight", "--config-key", "n_positions")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_commands_show_hostile_names_escaped(name: str, tmp_path: Path) -> None:
    sound = {"wpe.weight": entry(0, 64, "F32", [4, 4])}
    hostile = sound | {name: entry(64, 128, "F32", [4, 4])}
    folder = str(model(tmp_path / "model", pack(hostile, bytes(128)), "mystery"))
    plain = str(model(tmp_path / "plain", pack(sound, bytes(64)), "mystery"))
    given = ("--table", name, "--config-key", "n_positions")
    said = [
        shown("inspect", folder),  # an error with candidates
        shown("inspect", folder, *given),  # a table
        shown("resize", folder, *given, "--to", "32", "--dry-run"),  # a plan
        shown("resize", folder, *given, "--to", "32", "-o", "out"),  # notes
        shown("resize", folder, *BY_HAND, "--to", "32", "-o", "other"),  # warnings
        shown("verify", folder, "out", *given),  # a proof
        shown("verify", folder, plain, *BY_HAND),  # faults
        shown("verify", plain, folder),
        shown("resize", folder, *BY_HAND[:2], "--config-key", name, "--to", "32"),
    ]
    bad = {character for character in name if not character.isprintable()} - {"\n", "\t"}
    for text in said:
        assert not bad & set(text)
        assert not any(line.startswith("Error: a line") for line in text.splitlines())
    assert any(printable(name) in text for text in said)
