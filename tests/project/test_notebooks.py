"""Run the notebooks of the site.

`python -m tests.project.test_notebooks` updates the outputs that they contain.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
NUMBER = re.compile(r"\d+\.\d+|\d{1,3},\d{3}")
SIZE = 150_000  # bytes of a notebook with its outputs


def run(path: Path, folder: Path) -> Any:
    """Return a notebook with new outputs, run in a folder; progress and warnings on stderr are left
    out.
    """
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    notebook.metadata = nbformat.from_dict(KERNEL)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def texts(notebook: Any) -> list[str]:
    """Return the text that each code cell printed; decimals differ between machines and Python
    versions.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        NUMBER.sub("N", "".join(output.get("text", "") for output in cell.outputs))
        for cell in cells
    ]


def images(notebook: Any) -> int:
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_with_the_output_that_it_shows(path: Path, tmp_path: Path) -> None:
    shown, current = nbformat.read(path, 4), run(path, tmp_path)
    assert texts(current) == texts(shown)
    assert images(current) == images(shown) > 0


def test_notebooks_have_small_outputs_and_no_local_paths() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
        assert path.stat().st_size < SIZE
        assert not re.search(r"/(?:root|home|tmp|Users)/", path.read_text("utf-8"))


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as temporary:
            nbformat.write(run(notebook_path, Path(temporary)), notebook_path)
