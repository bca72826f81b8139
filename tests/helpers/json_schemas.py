"""The schemas of --json, and checks of objects that commands print."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.helpers.repository import ROOT

SCHEMAS: dict[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "tests" / "schemas").glob("*.json")
}
REGISTRY: Registry[Any] = Registry().with_resources(
    (f"{name}.json", Resource.from_contents(SCHEMAS[name])) for name in ("resize", "convert")
)


def check(value: Any, schema: str) -> None:
    """Validate a value against the schema of a command, or ``error``."""
    Draft202012Validator(SCHEMAS[schema], registry=REGISTRY).validate(value)


def check_schema(name: str, *paths: Path) -> None:
    """Check files by a schema that check-jsonschema contains."""
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{name}",
        *map(str, paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
