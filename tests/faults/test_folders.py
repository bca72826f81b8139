"""Folders as a stranger may send them: links that lead out, pipes, devices, odd names, and code."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ctxextend import evaluate, inspect, plan_resize, resize, run, train, verify
from ctxextend.checkpoints.filenames import is_code
from ctxextend.errors import CheckpointError, printable
from tests import pico, trainings
from tests.faults.limits import within
from tests.faults.weights import entry, model, pack

MakePico = Callable[..., pico.Pico]

NEW = 40
SECRET = b'{"a secret": "of the user"}'


def link_out(path: Path) -> None:
    """Put a link there to a file of the user's."""
    Path("secret").write_bytes(SECRET)
    path.symlink_to(os.path.relpath("secret", path.parent))


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a circle": lambda path: path.symlink_to(path.name),
    "a dangling link": lambda path: path.symlink_to("nothing"),
    "a link out": link_out,
}


def put(kind: str, path: Path) -> None:
    """Put something hostile in the place of a file."""
    path.unlink(missing_ok=True)
    HOSTILE[kind](path)


READ = ("config.json", "model.safetensors", "adapter_config.json")
PARTS = (
    *("model.safetensors.index.json", "model-00002-of-*", "pytorch_model.bin"),
    *("modules.json", "0_Transformer/config.json", "0_Transformer"),
)


@pytest.mark.parametrize(
    ("name", "kind"), [*product(READ, HOSTILE), *product(PARTS, ("a pipe", "a dangling link", "a link out"))]
)
def test_no_command_reads_what_is_no_file_of_the_folder(
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
        folder = pico.nest(folder, tmp_path / "sentence")
    path = next(folder.glob(name), folder / name)
    if name == "0_Transformer":
        path.rename(tmp_path / "elsewhere")
    put(kind, path)
    for use in (lambda: resize(folder, to=NEW, output="out"), lambda: inspect(folder), lambda: verify(folder, folder)):
        with within(2), pytest.raises(CheckpointError) as caught:
            use()
        assert str(path if name not in ("adapter_config.json", "0_Transformer") else folder) in caught.value.message
        assert caught.value.hint
    assert not Path("out").exists()


SIDE_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "generation_config.json", "sentence_bert_config.json"),
    *("README.md", "ctxextend.yaml", "vocab.txt", "LICENSE", ".git"),
)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "a folder"])
def test_resize_leaves_out_side_files_that_are_no_files_of_the_folder(kind: str, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    for name in SIDE_FILES:
        put(kind, folder / name)
    with within(2):
        inspect(folder)
        result = resize(folder, to=NEW, output="out")
    assert set(SIDE_FILES) <= set(result.plan.checkpoint.omitted)
    assert not any(SECRET in data for data in pico.contents(result.output).values())
    assert {path.name for path in result.output.iterdir()} == {
        *("config.json", "model.safetensors", "README.md", "ctxextend.yaml")
    }
    assert verify(result.output, folder).passed


@pytest.mark.parametrize("kind", ["a pipe", "a link out"])
def test_verify_names_what_is_no_file_of_an_output_and_does_not_open_it(kind: str, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=16)
    resize(folder, to=NEW, output="out")
    put(kind, Path("out", "tokenizer_config.json"))
    with within(2):
        claims = verify("out", folder).checks
    (said,) = next(claim.evidence for claim in claims if claim.name == "files")
    assert said.startswith("unexpected tokenizer_config.json: ")
    assert "secret" not in str(claims)


def test_resize_warns_of_links_that_lead_out_and_says_how_to_go_on(make_pico: MakePico) -> None:
    folder = make_pico("gpt2", name="a folder").folder
    link_out(folder / "vocab.txt")
    (warning,) = plan_resize(folder, to=NEW).warnings
    assert warning.startswith("Not copied: vocab.txt, a symlink that points outside the folder.")
    assert warning.endswith(f"cp -rL '{folder}' 'a folder-copied'")
    copied = folder.with_name("a folder-copied")
    shutil.copytree(folder, copied)  # which follows links
    plan = plan_resize(copied, to=NEW)
    assert not plan.warnings
    assert "vocab.txt" in plan.files["copied"]


def test_links_inside_a_folder_are_followed(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    folder = source.folder
    (folder / "kept").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(folder / "kept" / name)
        (folder / name).symlink_to(f"kept/{name}")
    output = resize(folder, to=NEW, output="out").output
    assert not (output / "model.safetensors").is_symlink()
    pico.logits(source.load(output), NEW)


def test_links_of_the_hubs_cache_are_followed_from_a_subfolder(make_pico: MakePico, tmp_path: Path) -> None:
    blobs, snapshot = (tmp_path / "models--owner--name" / part for part in ("blobs", f"snapshots/{'0' * 40}/sub"))
    snapshot.mkdir(parents=True)
    make_pico("gpt2").folder.rename(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    assert resize(snapshot, to=NEW, output="out").plan.files["copied"] == ("generation_config.json",)
    link_out(snapshot / "vocab.txt")
    assert "vocab.txt" in plan_resize(snapshot, to=NEW).checkpoint.omitted
    Path("linked").symlink_to(snapshot)
    assert "config.json" in plan_resize("linked", to=NEW).files["edited"]


ODD_NAMES = (
    *("x" * 255, "a\nb.txt", "\x1b[2J\x1b]0;owned\x07.txt", "\u202etxt.exe ", "-rf", "$(x)"),
    os.fsdecode(b"\xff\xfe.txt"),
)
# Line breaks, colours, and what turns the order of letters.
ODD_TENSOR = (
    "pos\0\nError: a line of its own\u2028\u2029\u0085\r\t\x1b[31mred\x1b]0;title\x07\x9b31m"
    "\u202egnp.exe\u2067a\u2069\u200f\u061c"
)


def test_resize_copies_files_of_odd_names_and_shows_them_escaped(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    for name in ODD_NAMES:
        (folder / name).write_bytes(b"kept")
        (folder / f"{name[:240]}.py").write_bytes(b"raise SystemExit(9)")
        (folder / f"{name[:240]}.gguf").write_bytes(b"stale")
    command = [sys.executable, "-m", "ctxextend", "resize", str(folder), "--to", str(NEW), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"\x1b", "\x07"} & set(done.stdout + done.stderr)
    resize(folder, to=NEW, output="out")
    assert all((Path("out") / name).read_bytes() == b"kept" for name in ODD_NAMES)
    assert not any(is_code(PurePosixPath(path.name)) for path in Path("out").iterdir())
    assert verify("out", folder).passed


def test_commands_show_hostile_names_of_tensors_escaped(tmp_path: Path) -> None:
    sound = {"wpe.weight": entry(0, 64, "F32", [4, 4])}
    odd = model(tmp_path / "model", pack(sound | {ODD_TENSOR: entry(64, 128, "F32", [4, 4])}, bytes(128)), "mystery")
    plain = model(tmp_path / "plain", pack(sound, bytes(64)), "mystery")
    by_hand, given = (("--tensor", name, "--config-key", "n_positions") for name in ("wpe.weight", ODD_TENSOR))
    said = ""
    for arguments in (
        ("inspect", odd),  # an error with candidates
        ("inspect", odd, *given),  # a table
        ("resize", odd, *given, "--to", "32", "--dry-run"),  # a plan
        ("resize", odd, *given, "--to", "32", "-o", "out"),  # notes
        ("resize", odd, *by_hand, "--to", "32", "-o", "other"),  # warnings
        ("verify", "out", "--base", odd, *given),  # checks
        ("verify", plain, "--base", odd, *by_hand),  # checks that fail
        ("verify", odd, "--base", plain),
        ("resize", odd, *by_hand[:2], "--config-key", ODD_TENSOR, "--to", "32"),
    ):
        done = trainings.invoke(*arguments)
        said += done.stdout + done.stderr
    assert not {one for one in ODD_TENSOR if not one.isprintable()} & set(said) - {"\n", "\t"}
    assert "\nError: a line" not in said
    assert printable(ODD_TENSOR) in said


# ---- code

MODULE = """
from pathlib import Path, PurePosixPath
Path({marker!r}).touch()
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
class Config(GPT2Config): pass
class Model(GPT2LMHeadModel): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""


def plant(folder: Path, marker: Path) -> None:
    """Give a folder code of its own, which leaves a marker where it is run."""
    (folder / "modeling_x.py").write_text(MODULE.format(marker=str(marker)))
    mapped = {"AutoConfig": "modeling_x.Config", "AutoModelForCausalLM": "modeling_x.Model", "AutoModel": "o/r--m.M"}
    pico.edit_json(folder / "config.json", auto_map=mapped, custom_code=True)
    pico.edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "modeling_x.Tokenizer"]})


@pytest.mark.usefixtures("book")
def test_no_command_runs_the_code_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, folder = tmp_path / "marker", trainings.make_source(tmp_path / "source", "gpt2")
    plant(folder, marker)
    monkeypatch.setattr("builtins.input", lambda *_: "yes")  # which transformers asks where nothing was said
    inspect(folder)
    output = resize(folder, to=32, copy_code=True, output="out").output
    inspect(output)
    assert verify(output, folder, deep=True).passed
    evaluate(output, "book.txt", tokens=512, measure=("position",))
    trained = train(output, "book.txt", 1, batch_size=2, output="trained", copy_code=True).output
    assert (trained / "modeling_x.py").exists()
    assert not marker.exists()
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(output, trust_remote_code=True)
    assert marker.exists()  # so that it would have been seen


CODE = ("modeling_x.py", "deep/down/x.PY", "lib/x.so", "run.sh", "x.pyc", "x.dll", "libx.so.1")


@pytest.fixture
def with_code(make_pico: MakePico) -> Path:
    """A folder that holds code of several kinds."""
    folder = make_pico("gpt2").folder
    for name in CODE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"code of {name}")
    (folder / "happy.txt").write_text("no code")
    return folder


def code_in(folder: Path | None) -> set[str]:
    """The files of a folder that are among `CODE`."""
    return set(pico.contents(folder or Path())) & set(CODE)


def test_resize_leaves_code_out_and_says_so(with_code: Path) -> None:
    done = trainings.invoke("resize", with_code, "--to", NEW, "-o", "out", "--json")
    assert code_in(Path("out")) == set()
    assert (Path("out") / "happy.txt").exists()
    told = json.loads(done.stdout)
    assert dict.fromkeys(CODE, "code, never executed") == told["files"]["omitted"]
    assert told["warnings"][0].endswith("Copy them with --copy-code.")
    assert "modeling_x.py" in told["warnings"][0] in done.stderr.replace("Warning: ", "")


def test_resize_copies_code_where_it_is_told_to(with_code: Path) -> None:
    done = trainings.invoke("resize", with_code, "--to", NEW, "-o", "out", "--copy-code", "--verify")
    assert code_in(Path("out")) == set(CODE)
    assert "copy_code: true" in (Path("out") / "ctxextend.yaml").read_text()
    assert "Code files are copied; they were not run: " in done.stderr
    assert code_in(run("out/ctxextend.yaml", "again").output) == set(CODE)
    assert code_in(run("out/ctxextend.yaml", "without", changes=["resize.copy_code=false"]).output) == set()


def test_verify_accepts_code_that_was_kept_and_code_that_was_left_out(with_code: Path) -> None:
    kept = resize(with_code, to=NEW, copy_code=True, output="kept").output
    left = resize(with_code, to=NEW, output="left").output
    assert verify(kept, with_code).passed
    shutil.copy(with_code / "run.sh", left)
    assert verify(left, with_code).passed
    (left / "run.sh").write_text("other code")
    assert "run.sh is not byte-identical to the base's" in str(verify(left, with_code).checks)
    (left / "run.sh").rename(left / "new.py")
    assert "new.py is not in the base" in str(verify(left, with_code).checks)
    (kept / "run.sh").unlink()
    assert "run.sh is missing" in str(verify(kept, with_code).checks)


@pytest.mark.usefixtures("book")
def test_train_leaves_code_out_and_refuses_to_replace_it(gpt2: Path) -> None:
    shutil.copytree(gpt2, "source")
    Path("source/modeling_x.py").write_text("code")
    done = trainings.train("source", "left", "--json", steps=1)
    assert not Path("left/modeling_x.py").exists()
    assert "Copy them with --copy-code." in str(json.loads(done.stdout)["warnings"])
    Path("left/modeling_x.py").write_text("code")
    asked = ("source", "--data", "book.txt", "--steps", 1, "-o", "left", "--force")
    assert "contains modeling_x.py" in trainings.invoke("train", *asked).stderr
    assert not Path("left.training").exists()  # it was said before anything was trained


def test_resize_warns_of_code_that_a_config_names(make_pico: MakePico, tmp_path: Path) -> None:
    folder = make_pico("gpt2").folder
    plant(folder, tmp_path / "marker")
    left, named = plan_resize(folder, to=NEW).warnings
    assert "nor copied: modeling_x.py." in left
    assert "refers to code: modeling_x.Config, modeling_x.Model, o/r--m.M, modeling_x.Tokenizer." in named
    for odd in (3, "x", [], [["x"]], {"a": {"b": "c"}}, {"a": [None, 3]}):
        pico.edit_json(folder / "config.json", auto_map=odd)
        pico.edit_json(folder / "tokenizer_config.json", auto_map=None)
        assert [left] == list(plan_resize(folder, to=NEW).warnings)


# ---- what transformers reads by itself


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("a link out", "a symlink that points outside the folder"),
        ("a pipe", "not a regular file"),
        ("a linked folder", "a symlink to a folder"),
    ],
)
def test_evaluate_refuses_what_transformers_might_open(kind: str, what: str, gpt2: Path) -> None:
    shutil.copytree(gpt2, "source")
    Path("book.txt").write_text("w1 w2 " * 200)
    if kind == "a linked folder":
        Path("source", "vocab.txt").symlink_to(gpt2)
    else:
        put(kind, Path("source", "vocab.txt"))
    for use in (lambda: evaluate("source", "book.txt"), lambda: train("source", "book.txt", 1)):
        with within(20), pytest.raises(CheckpointError, match=f"vocab.txt is {what}, and transformers") as caught:
            use()
        assert ("Move it away" if kind == "a pipe" else " source-copied") in str(caught.value.hint)


def test_deep_verify_does_not_load_an_output_whose_links_lead_out(gpt2: Path) -> None:
    resize(gpt2, to=40, output="out")
    put("a link out", Path("out", "generation_config.json"))
    loads = next(claim for claim in verify("out", gpt2, deep=True).checks if claim.name == "loads")
    assert not loads.passed
    assert "generation_config.json is a symlink that points outside the folder, and transformers" in loads.evidence[0]
