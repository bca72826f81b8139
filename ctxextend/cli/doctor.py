"""`ctxextend doctor`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Console
from ctxextend.cli.tables import Page
from ctxextend.errors import size_text

if TYPE_CHECKING:
    from ctxextend.environment import Environment, InstalledLibrary

LABELS = 25  # width of the column of labels


def doctor(as_json: options.AsJson = False) -> None:
    """Report versions, devices and disks, and what is missing.

    Examples:
        ctxextend doctor
        ctxextend doctor --json

    Paste the report into an issue: it contains no user name and no token. Exits with 3 if a
    library that ctxextend requires is missing, broken or too old.
    """
    from ctxextend.environment import doctor as examine

    console = Console(as_json)
    environment = examine()
    page = Page.for_stdout()
    add_environment(page, environment)
    console.screen(page.lines)
    console.result("doctor", environment)
    if not environment.passed:
        raise typer.Exit(FAILED_CHECK)


def add_environment(page: Page, environment: "Environment") -> None:
    """Add versions, devices, libraries and disks, and what is missing."""
    page.values(_facts(environment), margin=LABELS)
    page.line()
    page.line(("Libraries", "title"))
    page.values(_libraries(environment), margin=LABELS)
    page.line()
    page.line(("Hub and disks", "title"))
    page.values(_places(environment), margin=LABELS)
    page.line()
    _add_problems(page, environment)


def _facts(environment: "Environment") -> Iterator[tuple[str, str]]:
    """Yield the versions and the devices."""
    yield "ctxextend", f"{environment.version} in {environment.folder}"
    yield "Python", environment.python
    yield "platform", environment.platform
    cpus = f"{environment.cpus} CPUs"
    if environment.memory is not None:
        cpus += f", {size_text(environment.memory)} of memory"
    yield "devices", cpus
    for device in environment.devices:
        text = f"{device.name}: {device.model}"
        if device.memory is not None:
            text += f", {size_text(device.memory)}"
        yield "devices", text
    if not environment.devices:
        yield "devices", "no GPU"


def _libraries(environment: "Environment") -> Iterator[tuple[str, str]]:
    for library in environment.libraries:
        yield f"  {library.name}", _library(library)


def _library(library: "InstalledLibrary") -> str:
    """Say which version of a library is installed, and which ones are supported."""
    text = library.version or ("missing" if library.state == "missing" else "unknown version")
    if library.state == "broken":
        text += ", broken"
    if library.state == "other version":
        text += f", not {library.required}"
    if library.extra:
        text += f" (extra {library.extra})"
    return text


def _places(environment: "Environment") -> Iterator[tuple[str, str]]:
    """Yield what is known of the Hub, and the free space of each folder."""
    hub = environment.hub
    at_least = "" if hub.is_complete else "more than "
    yield "  Hub cache", f"{hub.folder}, {at_least}{size_text(hub.bytes)}"
    yield "  Hub downloads", "disabled (offline)" if hub.is_offline else "enabled"
    yield "  Hub token", "present" if hub.has_token else "none"
    for disk in environment.disks:
        free = "unknown"
        if disk.free is not None and disk.total is not None:
            free = f"{size_text(disk.free)} of {size_text(disk.total)} free"
        yield f"  {disk.use}", f"{disk.folder}, {free}"


def _add_problems(page: Page, environment: "Environment") -> None:
    """Add what is missing or wrong, with the commands that fix it."""
    if not environment.problems:
        page.verdict("Nothing is missing.", is_good=True)
        return
    problems = environment.problems
    for number, problem in enumerate(problems):
        style = "" if problem.level == "notice" else "wrong"
        page.text(f"{problem.level}: {problem.message}", style)
        is_fixed_later = any(problem.fix == later.fix for later in problems[number + 1 :])
        if problem.fix is not None and not is_fixed_later:
            page.command("Fix: ", problem.fix)
