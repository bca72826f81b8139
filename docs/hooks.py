"""Additions to the site: the changelog in the root of the repository, the notebooks, marks of what
must not wrap, and descriptions of fields.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

# A block, the lines of output in it, and what separates columns.
BLOCK = re.compile(r"<pre>.*?</pre>", re.DOTALL)
OUTPUT = re.compile(r'<span class="go">(.*)</span>')
GAP = re.compile(r"\S {2,}\S")
# Flags in code, and short code with a hyphen: browsers break lines after hyphens.
CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
FLAG = re.compile(r"(?<=[ \n>])--[a-z-]+")
HYPHENATED = re.compile(r"<code>(?=[^<]{0,23}-[^<]{0,23}</code>)(?=[^<]{1,24}</code>)")


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


def on_page_content(html: str, **_: Any) -> str:
    """Mark flags and names that are to stay in one piece, and tables; extra.css does the rest."""
    html = HYPHENATED.sub('<code class="name">', html)
    html = CODE.sub(lambda code: FLAG.sub(r'<span class="name">\g<0></span>', code[0]), html)
    return BLOCK.sub(
        lambda block: block[0].replace("<pre>", f'<pre class="{kind(block[0])}">'), html
    )


def kind(block: str) -> str:
    """Return the CSS class of a block: whether its output is a table, which must not wrap."""
    rows = [row for row in OUTPUT.findall(block) if GAP.search(row)]
    return "table" if len(rows) > 2 and max(map(len, rows)) <= 90 else "text"


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


def comment(lines: Sequence[str], first: int, last: int) -> str:
    """Return the comment on the field in lines `first` to `last`, counted from 1: after it, or in
    the lines above.
    """
    if "  # " in lines[last - 1]:
        text = lines[last - 1].partition("  # ")[2]
    else:
        above = first - 1
        while above and lines[above - 1].lstrip().startswith("# "):
            above -= 1
        text = " ".join(line.strip(" #") for line in lines[above : first - 1])
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


class Descriptions(griffe.Extension):
    """Describe fields of dataclasses by their comments."""

    def on_attribute_instance(self, *, node: Any, attr: Any, **_: Any) -> None:
        """Set the description of an annotated field."""
        is_field = (
            isinstance(node, ast.AnnAssign) and attr.parent.is_class and attr.docstring is None
        )
        if is_field and (
            text := comment(attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno)
        ):
            attr.docstring = griffe.Docstring(text, parent=attr)
