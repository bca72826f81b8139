"""Additions to the site: the changelog, which is in the root of the repository, and descriptions of fields."""

import ast
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

COMMENT = re.compile(r"  # (.*)$")


def on_files(files: Any, config: Any) -> Any:
    """Add CHANGELOG.md as a page."""
    changelog = Path(config.config_file_path).with_name("CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=str(changelog)))
    return files


class FieldComments(griffe.Extension):
    """Show the comment after a field of a dataclass as its description."""

    def on_attribute_instance(self, *, node: Any, attr: Any, **_: Any) -> None:
        """Set the description of an annotated field."""
        if isinstance(node, ast.AnnAssign) and attr.docstring is None and attr.parent.is_class:
            line = attr.lines_collection[attr.filepath][attr.endlineno - 1]
            if comment := COMMENT.search(line):
                attr.docstring = griffe.Docstring(f"{comment[1][:1].upper()}{comment[1][1:]}.", parent=attr)
