"""What follows the length in a loaded model beside its tables: found by building it twice without values."""

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    import torch

__all__ = ["configs_of", "followed", "holders_of", "set_config"]

# What modules keep of a config, beside tensors and other modules.
PLAIN = (int, float, str, tuple)


def holders_of(model: "torch.nn.Module", tables: Collection[str]) -> list[str]:
    """Return the names of the transformers models that tables stand in, the outermost first."""
    above = {name.rpartition(".")[0] for name in tables}
    return [
        name
        for name, module in model.named_modules()
        if hasattr(module, "_init_weights") and (not name or any(f"{path}.".startswith(f"{name}.") for path in above))
    ]


def configs_of(model: "torch.nn.Module", holders: list[str]) -> dict[str, Any]:
    """Return the configs of a model and of those inside it that have a copy of it, by name; some are one object.

    Args:
        model: A transformers model.
        holders: The names of those inside it, from `holders_of`.
    """
    configs = {name: getattr(model.get_submodule(name), "config", None) for name in ["", *holders]}
    return {name: config for name, config in configs.items() if type(config) is type(model.config)}


def followed(
    model: "torch.nn.Module", holders: list[str], edits: Mapping[tuple[str, ...], Any]
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    """Yield what a model's modules must hold at the new length; nothing is changed.

    Args:
        model: A transformers model.
        holders: The names of those in it that hold a table, from `holders_of`.
        edits: What the config will say, by paths of keys.

    Yields:
        The module, the name in it, and the value.

    Raises:
        ResizeError: A buffer follows the length, and nothing says what it holds.
    """
    import torch

    # Initialising a skeleton must not change the numbers that the caller's program draws.
    with torch.random.fork_rng(devices=[]):
        for outer, old, new in _skeletons(model, holders, edits):
            modules, before = dict(model.get_submodule(outer).named_modules()), dict(old.named_modules())
            for name, after in new.named_modules():
                inner = _innermost(new, name)
                is_ours = ".".join(filter(None, (outer, inner))) in holders
                if is_ours and name in modules and name in before and type(modules[name]) is type(after):
                    yield from _values(modules[name], before[name], after)
                    yield from _buffers(modules[name], before[name], after, new.get_submodule(inner))


def _skeletons(
    model: "torch.nn.Module", holders: list[str], edits: Mapping[tuple[str, ...], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the outermost models in a model that can be built of their config alone, at the old and the new length.

    Yields:
        The model's name in the whole, and it as its class builds it, twice, on the meta device.
    """
    old: dict[str, Any] = copy.deepcopy({name: model.get_submodule(name).config for name in ["", *holders]})
    new = copy.deepcopy(old)
    for name in configs_of(model, holders):
        set_config(new[name], edits)
    built: list[str] = []
    for name in holders:
        if not any(name.startswith(f"{outer}." if outer else "") for outer in built):
            module = model.get_submodule(name)
            try:
                yield name, _built(module, old[name]), _built(module, new[name])
            except Exception:  # a class of the user's own may want more than a config; those inside it may not
                continue
            built.append(name)


def _built(module: "torch.nn.Module", config: Any) -> Any:
    import torch

    make: Any = type(module)
    with torch.device("meta"):
        return make(config)


def set_config(config: Any, edits: Mapping[tuple[str, ...], Any]) -> None:
    """Set values in a config and in those inside it, by paths of keys; in place."""
    for (*path, key), value in edits.items():
        holder = config
        for step in path:
            holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
        if isinstance(holder, dict):
            holder[key] = value
        else:
            setattr(holder, key, value)


def _innermost(skeleton: Any, name: str) -> str:
    """Return the name of the innermost transformers model that a module stands in."""
    path = name.split(".") if name else []
    names = (".".join(path[:depth]) for depth in range(len(path), -1, -1))
    return next(name for name in names if hasattr(skeleton.get_submodule(name), "_init_weights"))


def _values(
    module: "torch.nn.Module", before: "torch.nn.Module", after: "torch.nn.Module"
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    for name, value in vars(after).items():
        if isinstance(value, PLAIN) and vars(before).get(name) != value:
            yield module, name, value


def _buffers(
    module: "torch.nn.Module", before: "torch.nn.Module", after: "torch.nn.Module", initializer: Any
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    import torch

    held, old = dict(module.named_buffers(recurse=False)), dict(before.named_buffers(recurse=False))
    new = after.named_buffers(recurse=False)
    changed = [name for name, buffer in new if name in held and name in old and buffer.shape != old[name].shape]
    made = [_initialized(after, initializer, changed, filling) for filling in (0, 1)] if changed else []
    for name in changed:
        if not torch.equal(made[0][name], made[1][name]):
            raise ResizeError(
                f"The buffer {name} of a {type(module).__name__} follows the length, and its class's _init_weights "
                "does not make it.",
                "Make it there, as transformers' own models do, or resize the checkpoint and load that.",
            )
        yield module, name, made[0][name].to(held[name].device, held[name].dtype)


def _initialized(module: "torch.nn.Module", initializer: Any, names: list[str], filling: int) -> dict[str, Any]:
    """Return buffers as from_pretrained makes those that files do not hold: on the meta device, then by this method."""
    module.to_empty(device="cpu", recurse=False)
    for name in names:
        getattr(module, name).fill_(filling)
    initializer._init_weights(module)
    return {name: getattr(module, name).clone() for name in names}
