"""Hostile folders: symlinks to outside files, pipes, devices, unusual names, and code."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ctxextend import evaluate, inspect, plan_resize, resize, train, verify
from ctxextend.errors import CheckpointError, printable
from tests.helpers import pico, trainings
from tests.helpers.hostile_weights import entry, model, pack
from tests.helpers.notes import texts
from tests.helpers.time_limit import time_limit

MakePico = Callable[..., pico.Pico]

NEW = 40
SECRET = b'{"a secret": "of the user"}'


def link_outside(path: Path) -> None:
    """Create a symlink to a file of the user outside the folder."""
    Path("secret").write_bytes(SECRET)
    target = os.path.relpath("secret", path.parent)
    path.symlink_to(target)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a circular link": lambda path: path.symlink_to(path.name),
    "a broken link": lambda path: path.symlink_to("nothing"),
    "an outside link": link_outside,
}


def replace_with(kind: str, path: Path) -> None:
    """Replace a file with something hostile."""
    path.unlink(missing_ok=True)
    HOSTILE[kind](path)


READ = ("config.json", "model.safetensors", "adapter_config.json")
PARTS = (
    "model.safetensors.index.json",
    "model-00002-of-*",
    "pytorch_model.bin",
    "modules.json",
    "0_Transformer/config.json",
    "0_Transformer",
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(READ, HOSTILE), *product(PARTS, ("a pipe", "a broken link", "an outside link"))],
)
def test_commands_reject_irregular_files_and_outside_links(
    name: str, kind: str, make_pico: MakePico, tmp_path: Path
) -> None:
    folder = make_pico("bert").folder
    if name.startswith("model") and name in PARTS:
        pico.shard(folder)
    elif name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    elif name == "adapter_config.json":
        (folder / "config.json").unlink()
    elif name in PARTS:
        folder = pico.nest_in_module(folder, tmp_path / "sentence")
    path = next(folder.glob(name), folder / name)
    if name == "0_Transformer":
        path.rename(tmp_path / "elsewhere")
    replace_with(kind, path)
    named = path
    if kind == "a folder" or name in ("adapter_config.json", "0_Transformer"):
        named = folder

    commands = (
        lambda: resize(folder, to=NEW, output="out"),
        lambda: inspect(folder),
    )
    for command in commands:
        with time_limit(2), pytest.raises(CheckpointError) as caught:
            command()
        assert str(named) in caught.value.message
        assert caught.value.hint
    assert not Path("out").exists()


SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "sentence_bert_config.json",
    "README.md",
    "ctxextend.yaml",
    "vocab.txt",
    "LICENSE",
    ".git",
)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "a folder"])
def test_resize_skips_irregular_side_files_and_outside_links(
    kind: str, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    for name in SIDE_FILES:
        replace_with(kind, folder / name)
    with time_limit(2):
        inspect(folder)
        result = resize(folder, to=NEW, output="out")
    omitted = result.plan.checkpoint.omitted
    assert set(SIDE_FILES) <= set(omitted)
    for data in pico.contents(result.output).values():
        assert SECRET not in data
    files = {path.name for path in result.output.iterdir()}
    assert files == {"config.json", "model.safetensors", "README.md", "ctxextend.yaml"}
    assert verify(result.output, folder).passed


def test_resize_warns_about_outside_links_with_a_copy_command(make_pico: MakePico) -> None:
    folder = make_pico("gpt2", name="a folder").folder
    link_outside(folder / "vocab.txt")
    (warning,) = texts(plan_resize(folder, to=NEW), level="warning")
    assert warning.startswith("Not copied: vocab.txt, a symlink that points outside the folder.")
    assert warning.endswith(f"cp -RL '{folder}' 'a folder-copied'")
    copied = folder.with_name("a folder-copied")
    shutil.copytree(folder, copied)  # follows symlinks
    plan = plan_resize(copied, to=NEW)
    assert not texts(plan, level="warning")
    assert "vocab.txt" in plan.output.files.copied


def test_resize_follows_links_inside_the_folder(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    folder = source.folder
    (folder / "kept").mkdir()
    for name in ("config.json", "model.safetensors"):
        target = folder / "kept" / name
        (folder / name).rename(target)
        (folder / name).symlink_to(f"kept/{name}")
    output = resize(folder, to=NEW, output="out").output
    assert not (output / "model.safetensors").is_symlink()
    pico.logits(source.load(output), NEW)


def test_resize_follows_links_of_the_hub_cache_from_a_subfolder(
    make_pico: MakePico, tmp_path: Path
) -> None:
    repo = tmp_path / "models--owner--name"
    blobs = repo / "blobs"
    snapshot = repo / "snapshots" / ("0" * 40) / "sub"
    snapshot.mkdir(parents=True)
    make_pico("gpt2").folder.rename(blobs)
    for path in blobs.iterdir():
        target = os.path.relpath(path, snapshot)
        (snapshot / path.name).symlink_to(target)
    result = resize(snapshot, to=NEW, output="out")
    assert result.planned.output.files.copied == ("generation_config.json",)
    link_outside(snapshot / "vocab.txt")
    plan = plan_resize(snapshot, to=NEW)
    assert "vocab.txt" in plan.plan.checkpoint.omitted
    Path("linked").symlink_to(snapshot)
    linked = plan_resize("linked", to=NEW)
    assert "config.json" in linked.output.files.edited


UNUSUAL_NAMES = (
    "x" * 255,
    "a\nb.txt",
    "\x1b[2J\x1b]0;owned\x07.txt",
    "\u202etxt.exe ",
    "-rf",
    "$(x)",
    os.fsdecode(b"\xff\xfe.txt"),
)
# Line breaks, terminal escapes and bidirectional controls.
HOSTILE_NAME = (
    "pos\0\nError: a separate line\u2028\u2029\u0085\r\t\x1b[31mred\x1b]0;title\x07\x9b31m"
    "\u202egnp.exe\u2067a\u2069\u200f\u061c"
)


def test_resize_copies_files_with_unusual_names_and_prints_them_escaped(
    make_pico: MakePico,
) -> None:
    folder = make_pico("gpt2").folder
    for name in UNUSUAL_NAMES:
        (folder / name).write_bytes(b"kept")
        start = name[:240]
        (folder / f"{start}.py").write_bytes(b"raise SystemExit(9)")
        (folder / f"{start}.gguf").write_bytes(b"stale")
    arguments = ["resize", str(folder), "--to", str(NEW), "--dry-run"]
    command = [sys.executable, "-m", "ctxextend", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = done.stdout + done.stderr
    assert not {"\x1b", "\x07"} & set(printed)
    resize(folder, to=NEW, output="out")
    for name in UNUSUAL_NAMES:
        assert (Path("out") / name).read_bytes() == b"kept"
        start = name[:240]
        assert (Path("out") / f"{start}.py").read_bytes() == b"raise SystemExit(9)"
        assert not (Path("out") / f"{start}.gguf").exists()
    assert verify("out", folder).passed


def test_commands_print_hostile_tensor_names_escaped(tmp_path: Path) -> None:
    valid = {"wpe.weight": entry(0, 64, "F32", [4, 4])}
    with_hostile = valid | {HOSTILE_NAME: entry(64, 128, "F32", [4, 4])}
    hostile = model(tmp_path / "model", pack(with_hostile, bytes(128)), "mystery")
    valid_flags = ("--table", "wpe.weight:n_positions")
    hostile_flags = ("--table", f"{HOSTILE_NAME}:n_positions")
    commands = (
        ("inspect", hostile),  # an error with candidates
        ("inspect", hostile, *hostile_flags),  # a table
        ("resize", hostile, *hostile_flags, "--to", "32", "--dry-run"),  # a plan
        ("resize", hostile, *hostile_flags, "--to", "32", "-o", "out"),  # notes
        ("resize", hostile, *valid_flags, "--to", "32", "-o", "other"),  # warnings
        ("verify", "out", "--base", hostile, *hostile_flags),  # checks
        ("resize", hostile, "--table", f"wpe.weight:{HOSTILE_NAME}", "--to", "32"),
    )
    output = ""
    for arguments in commands:
        done = trainings.invoke(*arguments)
        output += done.stdout + done.stderr

    escaped = {char for char in HOSTILE_NAME if not char.isprintable()} - {"\n", "\t"}
    assert not escaped & set(output)
    assert "\nError: a separate line" not in output
    assert printable(HOSTILE_NAME) in output


# ---- code

MODULE = """
from pathlib import Path, PurePosixPath
Path({marker!r}).touch()
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
class Config(GPT2Config): pass
class Model(GPT2LMHeadModel): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""


def add_code(folder: Path, marker: Path) -> None:
    """Add custom code to a folder, which creates a marker file if it is executed."""
    code = MODULE.format(marker=str(marker))
    (folder / "modeling_x.py").write_text(code)
    mapped = {
        "AutoConfig": "modeling_x.Config",
        "AutoModelForCausalLM": "modeling_x.Model",
        "AutoModel": "o/r--m.M",
    }
    pico.edit_json(folder / "config.json", auto_map=mapped, custom_code=True)
    tokenizer = {"AutoTokenizer": [None, "modeling_x.Tokenizer"]}
    pico.edit_json(folder / "tokenizer_config.json", auto_map=tokenizer)


@pytest.mark.usefixtures("book")
def test_commands_never_execute_code_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    folder = trainings.make_source(tmp_path / "source", "gpt2")
    add_code(folder, marker)
    # Transformers prompts if trust_remote_code is unset.
    monkeypatch.setattr("builtins.input", lambda *_: "yes")
    inspect(folder)
    output = resize(folder, to=32, output="out").output
    inspect(output)
    assert verify(output, folder, deep=True).passed
    evaluate(output, "book.txt", tokens=512, measure=("position",))
    result = train(output, "book.txt", 1, batch_size=2, output="trained")
    trained = result.output
    assert (trained / "modeling_x.py").exists()
    assert not marker.exists()
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(output, trust_remote_code=True)
    assert marker.exists()  # the marker works


CODE = ("modeling_x.py", "deep/down/x.PY", "lib/x.so", "run.sh", "x.pyc", "x.dll", "libx.so.1")


def test_resize_copies_code_and_verify_compares_it(make_pico: MakePico) -> None:
    with_code = make_pico("gpt2").folder
    for name in (*CODE, "happy.txt"):
        (with_code / name).parent.mkdir(parents=True, exist_ok=True)
        (with_code / name).write_text(f"content of {name}")
    result = resize(with_code, to=NEW, output="out")
    assert {note.level for note in result.notes} == {"note"}
    assert result.planned.files.omitted == {}
    for name in (*CODE, "happy.txt"):
        assert (Path("out") / name).read_bytes() == (with_code / name).read_bytes()
    output = result.output
    assert verify(output, with_code).passed
    (output / "run.sh").write_text("other code")
    assert "run.sh is not byte-identical to the base's" in str(verify(output, with_code).checks)
    (output / "run.sh").rename(output / "new.py")
    checks = str(verify(output, with_code).checks)
    assert "new.py is not in the base" in checks
    assert "run.sh is missing" in checks


# ---- files that transformers reads itself


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("an outside link", "a symlink that points outside the folder"),
        ("a pipe", "not a regular file"),
        ("a folder link", "a symlink to a folder"),
    ],
)
def test_evaluate_and_train_reject_files_that_transformers_might_open(
    kind: str, reason: str, gpt2: Path
) -> None:
    shutil.copytree(gpt2, "source")
    Path("book.txt").write_text("w1 w2 " * 200)
    if kind == "a folder link":
        Path("source", "vocab.txt").symlink_to(gpt2)
    else:
        replace_with(kind, Path("source", "vocab.txt"))
    commands = (lambda: evaluate("source", "book.txt"), lambda: train("source", "book.txt", 1))
    problem = f"vocab.txt is {reason}, and transformers"
    hint = "Remove it, or replace it" if kind == "a pipe" else " source-copied"
    for command in commands:
        with time_limit(20), pytest.raises(CheckpointError, match=problem) as caught:
            command()
        assert hint in str(caught.value.hint)
