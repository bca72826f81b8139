"""Errors in what a user passes are found before torch and transformers are imported."""

import subprocess
import sys
from pathlib import Path

import pytest

import ctxextend
from ctxextend.errors import DataError
from ctxextend.text_data import check_texts

# Runs a command, and prints its exit code and which heavy libraries it has imported.
# Modules that are named after "without" are hidden, as if they were not installed.
PROGRAM = """
import sys
command, _, hidden = " ".join(sys.argv[1:]).partition(" without ")
sys.modules |= dict.fromkeys(hidden.split())
sys.argv = ["ctxextend", *command.split()]
from ctxextend.__main__ import main
code = 0
try:
    main()
except SystemExit as stop:
    code = stop.code
imported = {name for name, module in sys.modules.items() if module is not None}
heavy = {"torch", "transformers", "accelerate", "datasets"} & imported
print("imported", code, *sorted(heavy))
"""
WRONG_TEXTS = {
    "missing.txt": "missing.txt does not exist.",
    "empty.txt": "empty.txt is empty.",
    "empty": "Folder empty contains no text files.",
    "latin.txt": "latin.txt cannot be read: 'utf-8' codec can't decode byte 0xe9",
    "other.jsonl": "Line 1 of other.jsonl has no field 'text'; found body.",
    "wrong.jsonl": "Line 1 of wrong.jsonl is not valid JSON",
    "other.csv": "other.csv has no field 'text'; found body.",
    "blank.txt": "blank.txt contains no text.",
    "blank.jsonl": "blank.jsonl contains no text.",
    "hf:a/b/c/d:e:f": "hf:a/b/c/d:e:f is not a valid Hub dataset.",
}
READERS = (
    "evaluate tiny-gpt2 --data",
    "train tiny-gpt2 --steps 1 --data",
    "train tiny-gpt2 --steps 1 --dry-run --data",
    "evaluate tiny-gpt2 --to 256 --data",
    "evaluate tiny-gpt2 tiny-gpt2 --data",
    "resize tiny-gpt2 --to 256 --tune",
)
OTHER_ERRORS = {
    "evaluate tiny-gpt2 --data ok.txt --length 512": "too short for windows of 512 tokens",
    "evaluate tiny-gpt2 --data ok.txt --length 0": "--length must be at least",
    "evaluate tiny-gpt2 --data ok.txt --base missing": "missing",
    "evaluate tiny-gpt2 --data ok.txt --measure retrieval": "does not apply to tiny-gpt2",
    "evaluate tiny-gpt2 --data ok.txt --report page.pdf": "must be a file name that ends in",
    "evaluate missing/folder --data ok.txt": "missing/folder",
    "train tiny-gpt2 --data ok.txt --steps 1 --output exists": "exists exists.",
    "train tiny-gpt2 --data ok.txt --steps 1 --seq-len 512": "more than the 128 positions",
    "train tiny-gpt2 --data ok.txt --steps 1 --window 512": "more than the 128 positions",
    "resize tiny-gpt2 --to 256 --tune ok.txt --output exists": "exists exists.",
    "resize tiny-gpt2 --to 256 --method bandz": "Unknown method 'bandz'.",
    "convert tiny-gpt2 --to 256 --scheme rotary --output exists": "exists exists.",
    "evaluate tiny-gpt2 --to 64 --data ok.txt": "--to 64 changes nothing to measure",
    "evaluate tiny-gpt2 tiny-gpt2 --length 4k --data ok.txt": "too short for windows of 4096",
    "evaluate tiny-gpt2 --to 256 --method bandz --data ok.txt": "Unknown method 'bandz'.",
    "evaluate tiny-gpt2 --data ok.txt --tokenizer a/b/c": "neither a file or folder nor a Hub id",
    "verify tiny-gpt2 --deep --base tiny-gpt2": "has no recipe",
    "train tiny-gpt2 --data ok.txt --steps 1 without accelerate": "requires accelerate",
    "train tiny-gpt2 --data ok.txt --steps 1 --lora 2 without peft": "--lora requires peft",
    "train tiny-gpt2 --data ok.txt --steps 1 --contrastive pairs without sentence_transformers": (
        "--contrastive requires sentence-transformers"
    ),
    "resize tiny-gpt2 --to 256 --tune ok.txt without accelerate": "requires accelerate",
    "train tiny-gpt2 --data ok.txt --steps 1 --base missing": "missing",
}


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write texts with one error each into the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "exists").mkdir()
    (tmp_path / "exists/file").write_text("kept")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "ok.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "other.jsonl").write_text('{"body": "text"}\n')
    (tmp_path / "wrong.jsonl").write_text("text\n")
    (tmp_path / "other.csv").write_text("body\ntext\n")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "blank.jsonl").write_text('{"text": " "}\n')
    return tmp_path


def failure(command: str) -> tuple[str, list[str]]:
    """Run a command that fails; return its messages, and the heavy libraries that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    _, code, *heavy = done.stdout.splitlines()[-1].split()
    assert code in ("1", "2"), done.stderr
    return " ".join(done.stderr.split()), heavy


@pytest.mark.parametrize("command", READERS)
def test_commands_find_a_missing_text_before_imports(command: str) -> None:
    stderr, heavy = failure(f"{command} missing.txt")
    assert "Error: missing.txt does not exist." in stderr
    assert heavy == []


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHER_ERRORS)
def test_commands_find_other_errors_before_imports(command: str) -> None:
    stderr, heavy = failure(command)
    assert OTHER_ERRORS[command] in stderr
    assert heavy == []


@pytest.mark.parametrize("text", WRONG_TEXTS)
def test_check_texts_names_what_is_wrong(text: str) -> None:
    with pytest.raises(DataError) as caught:
        check_texts([text])
    assert WRONG_TEXTS[text] in caught.value.message
    assert caught.value.hint


def test_evaluate_accepts_the_default_device() -> None:
    result = ctxextend.evaluate(
        "tiny-gpt2", "ok.txt", base="none", measure="position", device="cpu", tokens=256
    )
    assert result.ranking
