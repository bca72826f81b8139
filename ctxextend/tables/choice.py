"""A method with its settings: what a user requested, or what was chosen for a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.tables.method_facts import FORMULA, SINUSOIDAL, Method, method_text


@dataclass(frozen=True)
class MethodChoice:
    """A method and its settings, valid by themselves."""

    facts: Method
    settings: Mapping[str, Any] = field(default_factory=dict)  # all; None: the table decides
    keep_first: int = 0  # positions at the start that the method does not change
    reason: str = ""  # what was chosen for a table and why, as text; empty if nothing was chosen

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.facts.name

    @property
    def text(self) -> str:
        """The method with all of its settings, including defaults: ``bands:sigma=4,gain=1.2``."""
        return method_text(self.name, self.settings)

    def __str__(self) -> str:
        """Return the method with the settings that differ from its defaults."""
        defaults = {key: setting.default for key, setting in self.facts.settings.items()}
        given = {key: value for key, value in self.settings.items() if value != defaults.get(key)}
        return method_text(self.name, given | self._kept)

    @property
    def recipe_text(self) -> str:
        """The method with all of its settings and the rows that it keeps, if not by default."""
        return method_text(self.name, {**self.settings, **self._kept})

    @property
    def _kept(self) -> dict[str, Any]:
        if self.keep_first == (self.facts.keep_first or 0):
            return {}
        return {"keep_first": self.keep_first}

    @property
    def depends_on_table(self) -> bool:
        """Whether a table decides on the method, its unset settings, or whether it applies."""
        if self.name in (FORMULA, SINUSOIDAL):
            return True
        is_unset = not self.settings or None in self.settings.values()
        return self.facts.choose is not None and is_unset

    @property
    def first_source_row(self) -> int:
        """The first row that the method reads: some also read those that they keep."""
        return 0 if self.facts.reads_kept_rows else self.keep_first

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether all learned rows stay bit-identical, for any number of rows."""
        return self.facts.keeps_learned_rows and self.settings.get("scope") != "all"

    def keeping(self, keep_first: int) -> "MethodChoice":
        """Return the choice with another number of rows at the start that it does not change.

        Raises:
            ResizeError: The method changes all rows or none.
        """
        if keep_first and self.facts.keep_first is None:
            message = f"--keep-first does not apply to --method {self.name}."
            raise ResizeError(message, "Remove --keep-first.", "keep_first")
        return replace(self, keep_first=keep_first)

    def kept_rows(self, learned: int) -> int:
        """Return how many of the learned rows, from the first on, stay bit-identical."""
        if self.keeps_learned_rows:
            return learned
        return min(self.keep_first, learned)


def limit_kept_first(choice: MethodChoice, learned: int) -> MethodChoice:
    """Return a choice that keeps at most all learned rows, if its method reads those it keeps."""
    if choice.facts.reads_kept_rows and choice.keep_first > learned:
        return replace(choice, keep_first=learned)
    return choice
