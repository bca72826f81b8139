"""The folder beside an output: what is kept in it, who may go on with it, and when it goes."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend.errors import OutputError, TrainingError
from ctxextend.training.run_folder import RunFolder, open_run_folder

ASKED: dict[str, Any] = {
    "source": "x",
    "train.data": ["a"],
    "train.steps": 9,
    "train.seed": 0,
    "train.micro_batch": None,
}
OUTPUT, FOLDER = Path("out"), Path("out.training")


def opened(*, resume: bool = False, force: bool = False, **changes: Any) -> Any:
    asked = ASKED | {name.replace("__", "."): value for name, value in changes.items()}
    return open_run_folder(OUTPUT, asked, resume=resume, force=force)


def leave(*steps: int, **flags: Any) -> None:
    """Leave saves as a run that was stopped does."""
    with opened(**flags) as folder:
        for step in steps:
            (folder.saves / f"checkpoint-{step}").mkdir(exist_ok=True)
        (folder.path / "tokens.bin").write_bytes(b"1234")


def test_open_run_folder_leaves_nothing_where_nothing_was_saved() -> None:
    with open_run_folder(Path("some/where/out"), ASKED, resume=False, force=False) as folder:
        (folder.path / "tokens.bin").write_bytes(b"1234")
        assert folder.save is None
    assert list(Path.cwd().rglob("*.training")) == []
    with pytest.raises(ZeroDivisionError), open_run_folder(Path("an/other/out"), ASKED, resume=False, force=False):
        raise ZeroDivisionError
    assert not Path("an").exists()


def test_save_is_the_last_whole_one() -> None:
    folder = RunFolder(Path("work"))
    assert (folder.save, folder.step) == (None, 0)
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "unfinished"):
        (folder.saves / name).mkdir(parents=True)
    assert folder.save == folder.saves / "checkpoint-10"
    assert folder.step == 10
    folder.remove([9])
    assert sorted(path.name for path in folder.saves.iterdir()) == ["checkpoint-10", "checkpoint-x", "unfinished"]
    folder.remove([10])
    assert folder.save is None


def test_open_run_folder_without_a_save_begins_anew() -> None:
    FOLDER.mkdir()
    (FOLDER / "run.json").write_text("{}")
    (FOLDER / "tokens.bin").write_bytes(b"half of i")
    (FOLDER / "resized").mkdir()
    (FOLDER / "link").symlink_to(Path.cwd())
    with opened(resume=True) as folder:
        assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "saves"]
    assert not FOLDER.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"resume": True, "train__data": ["b"]}, r"train.data was \['a'\] and is \['b'\]"),
        ({"resume": True, "resize__to": 4}, "resize.to was None and is 4"),
        ({"resume": True, "force": True, "source": "y"}, "source was 'x' and is 'y'"),
    ],
)
def test_open_run_folder_refuses_to_lose_or_to_mix_what_was_saved(flags: dict[str, Any], said: str) -> None:
    leave(3)
    with pytest.raises(TrainingError, match=said), opened(**flags):
        pass
    assert RunFolder(FOLDER).step == 3
    assert json.loads((FOLDER / "run.json").read_text()) == {**ASKED, "begun for": ASKED["train.steps"]}


@pytest.mark.parametrize("flags", [{"train__steps": 3}, {"train__steps": 90}, {"train__micro_batch": 2}])
def test_open_run_folder_goes_on_with_what_changes_nothing_that_was_learned(flags: dict[str, Any]) -> None:
    leave(3)
    with opened(resume=True, **flags) as folder:
        assert (folder.step, folder.begun_for) == (3, ASKED["train.steps"])


def test_open_run_folder_discards_saves_with_force() -> None:
    leave(3)
    with opened(force=True, train__seed=1) as folder:
        assert folder.save is None
        assert not (folder.path / "tokens.bin").exists()
    assert not FOLDER.exists()


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
