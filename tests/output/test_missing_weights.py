"""The command that adds weights to an output of `--edit-only`, run by a POSIX shell."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ctxextend import resize
from tests.helpers import pico
from tests.helpers.repository import PACKAGE
from tests.helpers.rotary_models import OLD, make
from tests.helpers.trainings import succeed

# Options of utilities in printed commands that POSIX.1-2024 requires.
POSIX_OPTIONS = {"cp": {"-R", "-L", "-RL"}, "mkdir": {"-p"}}
# Options of GNU or BSD utilities only.
NOT_POSIX = re.compile(r"--reflink|\bcp -[a-zA-Z]*[nrau]|\bsed -i|\bln -[a-zA-Z]*[nrT]|\bmv -n")


def shard(folder: Path) -> list[str]:
    """Split the weights of a language model into shards, and return their names."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    return [path.name for path in folder.glob("*.safetensors")]


def run(command: str) -> None:
    """Run a command by a POSIX shell, after a check that it has only options of POSIX."""
    for part in command.split(" && "):
        program, *words = shlex.split(part)
        options = {word for word in words if word.startswith("-")}
        assert options <= POSIX_OPTIONS[program]
    environment = {"PATH": "/usr/bin:/bin", "POSIXLY_CORRECT": "1"}
    subprocess.run(["/bin/sh", "-c", command], check=True, env=environment)


@pytest.mark.parametrize("name", ["llama", "it's a [model] $HOME; *", "-llama"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_add_weights_completes_the_output(name: str, is_sharded: bool) -> None:
    source = make(name=f"./{name}", max_position_embeddings=OLD).folder
    if is_sharded:
        assert len(shard(source)) > 1
    modules = source / "1_Pooling"
    modules.mkdir()
    (modules / "config.json").write_text("{}")
    for output in ("edited", 'it\'s "quoted" `now`', "-edited"):
        result = resize(f"./{name}", 64, edit_only=True, output=output)
        edited = pico.contents(Path(output))
        command = result.add_weights
        assert command is not None
        run(command)
        assert edited.items() <= pico.contents(Path(output)).items()
        full = resize(f"./{name}", 64, output="full", force=True)
        names = {path.relative_to(output).as_posix() for path in Path(output).rglob("*")}
        assert names == {path.relative_to("full").as_posix() for path in full.output.rglob("*")}
        succeed("verify", f"./{output}")


def test_add_weights_names_all_shards_by_a_pattern() -> None:
    source = make(max_position_embeddings=OLD).folder
    shards = shard(source)
    command = resize(source, 64, edit_only=True, output="edited").add_weights
    assert command is not None
    assert f"model-?????-of-{len(shards):05d}.safetensors" in command
    assert command.count(".safetensors ") == 1


def test_no_text_of_the_package_has_commands_of_only_some_systems() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not NOT_POSIX.search(node.value), path
            if isinstance(node, ast.List):
                words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                assert not NOT_POSIX.search(" ".join(map(str, words))), path
