"""Small models of any type with a position table, whose tables all have the same length."""

import copy
from functools import cached_property
from typing import Any

import torch

from ctxextend.families.registry import Architecture, find_architecture
from ctxextend.positions.positions import Positions
from tests.helpers import tiny, zoo


def architecture_of(model_type: str, config: Any) -> Architecture:
    return find_architecture({**config.to_dict(), "model_type": model_type})


class SmallModel:
    """A small model of a class whose tables all have the same number of positions."""

    def __init__(self, config: Any, model_class: Any, pad: int | None = None) -> None:
        self.model_class = model_class
        model_type = config.model_type
        self.old, self.new = zoo.LENGTHS.get(model_type, (zoo.OLD, zoo.NEW))
        self.config = tiny.shrink(config)
        for _, part in tiny.parts(config):
            if pad is not None and isinstance(getattr(part, "pad_token_id", None), int):
                part.pad_token_id = pad
        self.model = self.build(self.old)
        self.architecture = architecture_of(model_type, self.model.config)
        parameters = {name for name, _ in self.model.named_parameters()}
        others = {name for name, _ in (*tiny.tensors(self.model), *self.model.named_modules())}
        found = self.architecture.match_names(parameters | others, model_type)
        assert found, f"{model_class.__name__} has no position table"
        computed = {table.name for table in found if table.is_computed}
        assert computed <= parameters | others, f"{model_class.__name__} has no such table"
        self.found = [(table, table.name) for table in found if table.name in parameters | others]

    def build(self, positions: int) -> Any:
        """Build the model with a number of positions."""
        config, first = copy.deepcopy(self.config), dict[str, Positions]()
        for location in architecture_of(config.model_type, config).locations:
            first.setdefault(location.length_key, location)
        for key, location in first.items():
            tiny.set_value(config, tuple(key.split(".")), location.key_value(positions))
        torch.manual_seed(0)
        return self.model_class(config).train(False)

    @cached_property
    def waves(self) -> list[tuple[Positions, str]]:
        """The tables of sinusoids, stored or computed."""
        tables = ((table, tiny.find_tensor(self.model, table[1])) for table in self.found)
        return [table for table, rows in tables if rows is None or zoo.is_wave(rows)]

    def waves_reader(self, name: str) -> zoo.Reader:
        """Return the outermost module that reads a table of sinusoids."""
        reader = zoo.find_waves_reader(self.model, name, self.old)
        assert reader, f"no input reads {name}"
        return reader

    @cached_property
    def readers(self) -> list[tuple[Positions, str, zoo.Reader, list[int]]]:
        """The tables that text inputs use, each with its reader and the rows that it read."""
        readers = []
        for location, name in self.found:
            length = len(self.model.get_parameter(name)) - location.other_rows
            if reader := zoo.find_reader(self.model, name, length):
                readers.append((location, name, *reader))
        return readers
