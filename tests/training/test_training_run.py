"""The run folder next to an output: its content, which runs may resume it, when it is removed."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend.errors import OutputError, TrainingError
from ctxextend.training.training_run import RunFolder, open_run_folder

SETTINGS: dict[str, Any] = {"source": "x", "train.data": ["a"], "train.steps": 9, "train.seed": 0}
OUTPUT, FOLDER = Path("out"), Path("out.training")


def open_folder(
    settings: dict[str, Any] = SETTINGS, *, resume: bool = False, force: bool = False
) -> Any:
    return open_run_folder(OUTPUT, settings, resume=resume, force=force)


def leave_saved_state() -> None:
    """Leave the saved state of step 3, like an interrupted run."""
    with open_folder() as folder:
        (folder.saves / "checkpoint-3").mkdir()
        (folder.path / "tokens.bin").write_bytes(b"1234")


def test_save_is_the_last_complete_one() -> None:
    folder = RunFolder(Path("run"))
    assert (folder.save, folder.step) == (None, 0)
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "unfinished"):
        (folder.saves / name).mkdir(parents=True)
    assert (folder.save, folder.step) == (folder.saves / "checkpoint-10", 10)
    folder.remove_saves([9, 10])
    assert sorted(path.name for path in folder.saves.iterdir()) == ["checkpoint-x", "unfinished"]
    assert folder.save is None


def test_open_run_folder_without_a_saved_state_starts_empty() -> None:
    FOLDER.mkdir()
    (FOLDER / "run.json").write_text("{}")
    (FOLDER / "tokens.bin").write_bytes(b"half")
    (FOLDER / "link").symlink_to(Path.cwd())
    with open_folder(resume=True) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "saves"]
    assert not FOLDER.exists()


@pytest.mark.parametrize(
    ("changes", "force", "message"),
    [
        ({"train.data": ["b"]}, False, r"train.data was \['a'\] and is \['b'\]"),
        ({"train.lr": 0.1}, False, "train.lr was not set and is 0.1"),
        ({"source": "y"}, True, "source was 'x' and is 'y'"),
    ],
)
def test_open_run_folder_rejects_resuming_a_different_run(
    changes: dict[str, Any], force: bool, message: str
) -> None:
    leave_saved_state()
    with (
        pytest.raises(TrainingError, match=message),
        open_folder(SETTINGS | changes, resume=True, force=force),
    ):
        pass
    assert RunFolder(FOLDER).step == 3
    assert json.loads((FOLDER / "run.json").read_text()) == {**SETTINGS, "planned_steps": 9}


def test_open_run_folder_discards_saves_with_force() -> None:
    leave_saved_state()
    with open_folder(SETTINGS | {"train.seed": 1}, force=True) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "saves"]
        assert folder.save is None


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"force": True}])
def test_open_run_folder_rejects_a_folder_that_is_not_a_training_run(flags: dict[str, Any]) -> None:
    FOLDER.mkdir()
    (FOLDER / "thesis.tex").write_text("all of it")
    message = r"out\.training exists and is not a training run\..*Choose another --output"
    with pytest.raises(TrainingError, match=message), open_folder(**flags):
        pass
    assert (FOLDER / "thesis.tex").read_text() == "all of it"


def test_open_run_folder_rejects_a_file_with_its_name() -> None:
    FOLDER.write_text("a file")
    with pytest.raises(OutputError, match="could not be written"), open_folder():
        pass
    assert FOLDER.read_text() == "a file"
