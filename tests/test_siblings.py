import os
import tempfile
from pathlib import Path

import pytest

from ctxextend.checkpoints import locks
from ctxextend.checkpoints.locks import hold, lock
from ctxextend.checkpoints.siblings import discard, scratch, siblings
from ctxextend.errors import OutputError
from tests.pico import contents


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_scratch_is_removed_in_the_end_and_nobody_else_may_look(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == []


def test_scratch_clears_what_dead_runs_left_and_nothing_else(temporary: Path) -> None:
    dead, living = (temporary / f".scratch.ctxextend-new-{number}" for number in ("00000000", "11111111"))
    for folder in (dead, living, temporary / "mine"):
        folder.mkdir()
        (folder / "file").write_text("x")
    link = temporary / ".scratch.ctxextend-new-22222222"
    link.symlink_to(temporary / "mine")
    with hold(living), scratch():
        assert not dead.exists()
    assert sorted(path.name for path in temporary.iterdir()) == [living.name, link.name, "mine"]
    assert contents(temporary / "mine") == {"file": b"x"}


def test_scratch_without_a_place_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(OutputError, match="no place for temporary files"), scratch():
        pass


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_siblings_are_this_users_own(tmp_path: Path) -> None:
    for name in ("aaaaaaaa", "bbbbbbbb"):
        (tmp_path / f".out.ctxextend-new-{name}").mkdir()
    os.chown(tmp_path / ".out.ctxextend-new-bbbbbbbb", 65534, 65534)
    assert [path.name for path in siblings(tmp_path / "out", "new")] == [".out.ctxextend-new-aaaaaaaa"]


def test_discard_leaves_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "saves" / "one").mkdir(parents=True)
    (tmp_path / "saves" / "one" / "file").write_text("x")
    discard(tmp_path / "saves")
    discard(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_hold_refuses_what_was_taken_away_or_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BlockingIOError), hold(tmp_path / "missing"):
        pass
    (tmp_path / "work").mkdir()

    def lock_late(path: Path) -> int | None:
        descriptor = lock(path)
        path.rmdir()
        (path.parent / "other").mkdir()
        path.mkdir()
        return descriptor

    monkeypatch.setattr(locks, "lock", lock_late)
    with pytest.raises(BlockingIOError), hold(tmp_path / "work"):
        pass
