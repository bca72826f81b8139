"""The run folder next to an output: its content, which runs may resume it, when it is removed."""

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


def test_save_is_the_last_complete_one() -> None:
    folder = RunFolder(Path("run"))
    assert (folder.save, folder.step) == (None, 0)
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "unfinished"):
        (folder.saves / name).mkdir(parents=True)
    assert (folder.save, folder.step) == (folder.saves / "checkpoint-10", 10)
    folder.remove_saves([9, 10])
    assert sorted(path.name for path in folder.saves.iterdir()) == ["checkpoint-x", "unfinished"]
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
