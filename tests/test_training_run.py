"""The folder beside an output: what is kept in it, who may go on with it, and when it goes."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend.errors import OutputError, TrainingError
from ctxextend.training.training_run import RunFolder, open_run_folder

ASKED: dict[str, Any] = {"source": "x", "train.data": ["a"], "train.steps": 9, "train.seed": 0}
OUTPUT, FOLDER = Path("out"), Path("out.training")


def opened(asked: dict[str, Any] = ASKED, *, resume: bool = False, force: bool = False) -> Any:
    return open_run_folder(OUTPUT, asked, resume=resume, force=force)


def leave_save() -> None:
    """Leave the save of a third step as a run that was stopped does."""
    with opened() as folder:
        (folder.saves / "checkpoint-3").mkdir()
        (folder.path / "tokens.bin").write_bytes(b"1234")


def test_save_is_the_last_whole_one() -> None:
    folder = RunFolder(Path("work"))
    assert (folder.save, folder.step) == (None, 0)
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "unfinished"):
        (folder.saves / name).mkdir(parents=True)
    assert (folder.save, folder.step) == (folder.saves / "checkpoint-10", 10)
    folder.remove([9, 10])
    assert sorted(path.name for path in folder.saves.iterdir()) == ["checkpoint-x", "unfinished"]
    assert folder.save is None


def test_open_run_folder_without_a_save_begins_anew() -> None:
    FOLDER.mkdir()
    (FOLDER / "run.json").write_text("{}")
    (FOLDER / "tokens.bin").write_bytes(b"half of i")
    (FOLDER / "link").symlink_to(Path.cwd())
    with opened(resume=True) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "saves"]
    assert not FOLDER.exists()


@pytest.mark.parametrize(
    ("changes", "force", "said"),
    [
        ({"train.data": ["b"]}, False, r"train.data was \['a'\] and is \['b'\]"),
        ({"train.lr": 0.1}, False, "train.lr was not set and is 0.1"),
        ({"source": "y"}, True, "source was 'x' and is 'y'"),
    ],
)
def test_open_run_folder_refuses_to_mix_what_was_saved(changes: dict[str, Any], force: bool, said: str) -> None:
    leave_save()
    with pytest.raises(TrainingError, match=said), opened(ASKED | changes, resume=True, force=force):
        pass
    assert RunFolder(FOLDER).step == 3
    assert json.loads((FOLDER / "run.json").read_text()) == {**ASKED, "planned_steps": 9}


def test_open_run_folder_discards_saves_with_force() -> None:
    leave_save()
    with opened(ASKED | {"train.seed": 1}, force=True) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "saves"]
        assert folder.save is None


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"force": True}])
def test_open_run_folder_does_not_touch_what_is_not_its_own(flags: dict[str, Any]) -> None:
    FOLDER.mkdir()
    (FOLDER / "thesis.tex").write_text("all of it")
    with pytest.raises(TrainingError, match="is in the way"), opened(**flags):
        pass
    assert (FOLDER / "thesis.tex").read_text() == "all of it"


def test_open_run_folder_says_so_where_its_name_is_a_file() -> None:
    FOLDER.write_text("a file")
    with pytest.raises(OutputError, match="could not be written"), opened():
        pass
    assert FOLDER.read_text() == "a file"
