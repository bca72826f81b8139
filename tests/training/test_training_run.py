"""The run folder next to an output: nothing of others is replaced."""

from pathlib import Path
from typing import Any

import pytest

from ctxextend.errors import OutputError, TrainingError
from ctxextend.training.training_run import open_run_folder

SETTINGS: dict[str, Any] = {"source": "x", "train.data": ["a"], "train.steps": 9, "train.seed": 0}
OUTPUT, FOLDER = Path("out"), Path("out.training")


def open_folder(*, resume: bool = False, force: bool = False) -> Any:
    return open_run_folder(OUTPUT, SETTINGS, resume=resume, force=force)


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"force": True}])
def test_open_run_folder_rejects_a_folder_that_is_not_a_training_run(
    flags: dict[str, bool],
) -> None:
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
