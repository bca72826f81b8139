"""Additions to the site: the changelog in the root of the repository, the notebooks, and descriptions of fields."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

COMMENT = re.compile(r"  # (.*)$")


def on_files(files: Any, config: Any) -> Any:
    """Add CHANGELOG.md and the notebooks as pages."""
    changelog = Path(config.config_file_path).with_name("CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=str(changelog)))
    for path in Path(config.docs_dir, "notebooks").glob("*.ipynb"):
        text = "\n\n".join([*cells(path), f"[Download this notebook]({path.name})"])
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link to the pages of notebooks."""
    return markdown if "notebooks/" in page.file.src_uri else markdown.replace(".ipynb)", ".md)")


def cells(notebook: Path) -> Iterator[str]:
    """Yield the cells of a notebook and their output as Markdown."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", ()):
            if text := "".join(output.get("text", ())):
                yield f"```text\n{text}```"
            if image := output.get("data", {}).get("image/png"):
                yield f"![Output of the cell.](data:image/png;base64,{''.join(image.split())})"


class FieldComments(griffe.Extension):
    """Show the comment after a field of a dataclass as its description."""

    def on_attribute_instance(self, *, node: Any, attr: Any, **_: Any) -> None:
        """Set the description of an annotated field."""
        if isinstance(node, ast.AnnAssign) and attr.docstring is None and attr.parent.is_class:
            line = attr.lines_collection[attr.filepath][attr.endlineno - 1]
            if comment := COMMENT.search(line):
                attr.docstring = griffe.Docstring(f"{comment[1][:1].upper()}{comment[1][1:]}.", parent=attr)
