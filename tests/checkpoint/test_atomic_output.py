import errno
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ctxextend.checkpoint import atomic_output
from ctxextend.checkpoint.atomic_output import locked
from ctxextend.errors import OutputError
from tests.helpers.pico import contents


def checkpoint(folder: Path, content: str = "old", **files: str) -> Path:
    folder.mkdir(parents=True)
    texts = {"config.json": content, "model.safetensors": content, **files}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def stage(
    output: Path, source: Path, force: bool = False, files: Iterable[str] = ()
) -> AbstractContextManager[Path]:
    sizes = dict.fromkeys(files, 0)
    return atomic_output.atomic_output(output, [source], sizes, force=force)


def check_output(
    output: Path, source: Path, force: bool = False, files: Iterable[str] = ()
) -> None:
    sizes = dict.fromkeys(files, 0)
    atomic_output.check_output(output, [source], sizes, force=force)


def write(output: Path, source: Path, force: bool = False) -> None:
    with stage(output, source, force, NEW) as staged:
        for name, data in NEW.items():
            (staged / name).write_bytes(data)


NEW = {"config.json": b"new", "model.safetensors": b"new"}
OLD = {"config.json": b"old", "model.safetensors": b"old"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "source" / "model", "source")


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if ".ctxextend-" in path.name]


def test_atomic_output_replaces_an_empty_folder_and_keeps_its_mode(
    tmp_path: Path, source: Path
) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    write(tmp_path / "out", source)
    assert contents(tmp_path / "out") == NEW
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave like a file system that does not support exchanging two names."""
    monkeypatch.setattr(atomic_output, "_exchange", lambda path, other: False)


@pytest.mark.usefixtures("no_exchange")
def test_atomic_output_force_restores_the_old_output_if_the_second_rename_fails(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = checkpoint(tmp_path / "out")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EIO, "broken")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match="broken"):
        write(output, source, force=True)
    assert contents(output) == OLD
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        ".git/config",
        "checkpoint-500/model.safetensors",
        "model-mine.safetensors",
    ],
)
def test_check_output_force_rejects_a_folder_with_other_files(
    name: str, tmp_path: Path, source: Path
) -> None:
    output = checkpoint(tmp_path / "out")
    (output / name).parent.mkdir(exist_ok=True)
    (output / name).write_text("mine")
    before = contents(output)
    with pytest.raises(OutputError, match="which is not a checkpoint file"):
        write(output, source, force=True)
    assert contents(output) == before


def test_check_output_force_accepts_checkpoint_files_and_files_to_write(
    tmp_path: Path, source: Path
) -> None:
    output = checkpoint(tmp_path / "out", **{"data.json": "x"})
    names = (
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "1_Pooling/config.json",
        "LICENSE.txt",
        "2_Dense/pytorch_model.bin",
        "0_Transformer/tokenizer.json",
        "sentence_bert_config.json",
        "ctxextend.yaml",
    )
    for name in names:
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("x")
    check_output(output, source, True, {"data.json"})


@pytest.mark.parametrize("needed", ["config.json", "model.safetensors"])
def test_check_output_force_rejects_a_folder_without_config_or_weights(
    needed: str, tmp_path: Path, source: Path
) -> None:
    output = checkpoint(tmp_path / "out")
    (output / needed).unlink()
    with pytest.raises(OutputError, match="is not a checkpoint folder"):
        check_output(output, source, True)


@pytest.mark.parametrize("force", [False, True])
def test_check_output_rejects_protected_locations(
    force: bool, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = checkpoint(tmp_path / "home")
    link = tmp_path / "link"
    file = tmp_path / "file"
    monkeypatch.setenv("HOME", str(home))
    link.symlink_to(source)
    file.write_text("x")
    for output in (source, link, source / "inside", source.parent):
        with pytest.raises(OutputError, match="overlap"):
            check_output(output, source, force)
    for output in (Path("/"), home, Path()):
        with pytest.raises(OutputError, match="is the home, root or current folder|overlap"):
            check_output(output, source, force)
    for output in (file, file / "out"):
        with pytest.raises(OutputError, match=f"{file} is a file"):
            check_output(output, source, force)


def test_atomic_output_removes_only_leftovers_of_killed_runs(tmp_path: Path, source: Path) -> None:
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "new", "half")
    others = [
        ".out.ctxextend-xyz",
        ".other.ctxextend-00c0ffee",
        ".out.ctxextend-00c0ffee.bak",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    write(tmp_path / "out", source)
    assert sorted(leftovers(tmp_path)) == sorted(others)


@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_atomic_output_restores_the_backup_of_a_killed_run(
    is_empty_folder: bool, tmp_path: Path, source: Path
) -> None:
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "old")
    (tmp_path / ".out.ctxextend-00c0ffee" / "new").mkdir()
    if is_empty_folder:
        (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path / "out", source)
    check_output(tmp_path / "out", source, True)
    assert not (tmp_path / "out" / "config.json").exists()
    with pytest.raises(OutputError, match="exists"):
        write(tmp_path / "out", source)
    assert contents(tmp_path / "out") == OLD
    write(tmp_path / "out", source, force=True)
    assert contents(tmp_path / "out") == NEW
    assert leftovers(tmp_path) == []


def test_atomic_output_removes_nothing_if_the_output_is_rejected(
    tmp_path: Path, source: Path
) -> None:
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "old")
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "new")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for force in (False, True):
        with pytest.raises(OutputError):
            write(tmp_path / "out", source, force=force)
    assert contents(tmp_path) == before


def test_atomic_output_keeps_a_backup_if_the_run_fails(tmp_path: Path, source: Path) -> None:
    checkpoint(tmp_path / "out", "newer")
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "old")
    with pytest.raises(RuntimeError), stage(tmp_path / "out", source, True):
        raise RuntimeError
    assert contents(tmp_path / ".out.ctxextend-00c0ffee" / "old") == OLD
    write(tmp_path / "out", source, force=True)
    assert leftovers(tmp_path) == []


@pytest.mark.usefixtures("no_exchange")
def test_atomic_output_without_lock_support_keeps_folders_that_may_be_in_use(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: Any) -> None:
        raise OSError(errno.EBADF, "not supported on this file system")

    monkeypatch.setattr("fcntl.flock", unsupported)
    monkeypatch.setattr(os, "fsync", unsupported)
    checkpoint(tmp_path / ".out.ctxextend-00c0ffee" / "old")
    (tmp_path / ".out.ctxextend-11c0ffee").mkdir()
    write(tmp_path / "out", source, force=True)
    assert contents(tmp_path / "out") == NEW
    assert contents(tmp_path / ".out.ctxextend-00c0ffee") == {}
    assert ".out.ctxextend-11c0ffee" in leftovers(tmp_path)


@pytest.mark.usefixtures("no_exchange")
def test_atomic_output_fails_if_another_run_replaces_the_same_output(
    tmp_path: Path, source: Path
) -> None:
    output = checkpoint(tmp_path / "out")
    with locked(output), pytest.raises(OutputError, match="another run is using it"):
        write(output, source, force=True)
    assert contents(output) == OLD


def test_check_output_rejects_an_output_with_unreadable_folders(public_path: Path) -> None:
    source = checkpoint(public_path / "source" / "model")
    output = checkpoint(public_path / "out")
    (output / "thesis").mkdir(mode=0o000)
    (output / "thesis" / "chapter.tex").write_text("mine")
    os.seteuid(65534)
    try:
        with pytest.raises(OutputError, match="ermission denied"):
            check_output(output, source, True)
    finally:
        os.seteuid(0)


def test_atomic_output_without_force_keeps_files_created_during_the_run(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    real = atomic_output._check_replaceable
    output.mkdir()

    def check(*arguments: Any, **settings: Any) -> None:
        real(*arguments, **settings)
        if leftovers(tmp_path):  # after writing, just before the rename
            (output / "thesis.tex").write_text("mine")

    monkeypatch.setattr(atomic_output, "_check_replaceable", check)
    with pytest.raises(OutputError, match="Another program created it in the meantime"):
        write(output, source)
    assert contents(output) == {"thesis.tex": b"mine"}


def test_atomic_output_removes_replaced_read_only_folders(public_path: Path) -> None:
    source = checkpoint(public_path / "source" / "model")
    output = checkpoint(public_path / "mine" / "out")
    (output / "1_Pooling").mkdir()
    (output / "1_Pooling" / "config.json").write_text("{}")
    for path in (output / "1_Pooling", output, public_path / "mine"):
        os.chown(path, 65534, 65534)
    for path in (output / "1_Pooling", output):
        path.chmod(0o555)
    os.seteuid(65534)
    try:
        write(output, source, force=True)
    finally:
        os.seteuid(0)
    assert contents(output) == NEW
    assert leftovers(output.parent) == []


@pytest.mark.parametrize("source", [".out.ctxextend-12345678", ".out.ctxextend-12345678/model"])
def test_atomic_output_never_removes_a_source_with_the_name_of_a_leftover(
    source: str, tmp_path: Path
) -> None:
    checkpoint(tmp_path / source, "source")
    for output in (tmp_path / "out", checkpoint(tmp_path / "out")):
        with pytest.raises(OutputError, match="overlap"):
            write(output, tmp_path / source, force=True)
    assert (tmp_path / source / "config.json").read_text() == "source"
