"""How the model classes of transformers compute rotary frequencies, read from their source.

Transformers generates these classes from each other, so that they consist of the same few lines. A
class with any other line is refused: it may compute something else.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ctxextend.families.config_statements import SETTINGS
from ctxextend.families.transformers_source import (
    ConfigClass,
    UnclearSourceError,
    classes_with,
    functions_of,
    model_sources,
)

COMPUTES = "compute_default_rope_parameters"  # the function for settings without a rope type
RECOMPUTES = "dynamic_rope_update"  # the decorator that follows the length of inputs

SIZE = "getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads"
READS_SHARE = (
    "partial_rotary_factor = config.rope_parameters.get('partial_rotary_factor', 1.0)",
    "partial_rotary_factor = config.rope_parameters[layer_type].get('partial_rotary_factor', 1.0)",
)
# The lines of transformers 5.0 to 5.24, as `ast.unparse` writes them.
DEFAULT_LINES = {
    "base = config.rope_parameters['rope_theta']",
    "base = config.rope_parameters[layer_type]['rope_theta']",
    *READS_SHARE,
    f"head_dim = {SIZE}",
    f"dim = {SIZE}",
    "dim = int(head_dim * partial_rotary_factor)",
    "dim = int(dim * partial_rotary_factor)",
    "attention_factor = 1.0",
    "inv_freq = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)",
    "inv_freq = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64)"
    ".to(device=device, dtype=torch.float) / dim)",
    "return (inv_freq, attention_factor)",
    "return (inv_freq.to(device), attention_factor)",
}
USES_TYPES = (
    "rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]",
    "rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type[layer_type]]",
)
CONSTRUCTOR_LINES = {
    "super().__init__()",
    "self.max_seq_len_cached = config.max_position_embeddings",
    "self.original_max_seq_len = config.max_position_embeddings",
    "self.config = config",
    "self.rope_type = self.config.rope_parameters['rope_type']",
    "rope_init_fn: Callable = self.compute_default_rope_parameters",
    "if self.rope_type != 'default':",
    *USES_TYPES,
    "inv_freq, self.attention_scaling = rope_init_fn(self.config)",
    "inv_freq, self.attention_scaling = rope_init_fn(self.config, device)",
    "self.inv_freq = nn.Buffer(inv_freq, persistent=False)",
    "self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)",
    "self.register_buffer('inv_freq', inv_freq, persistent=False)",
    "self.register_buffer('original_inv_freq', inv_freq.clone(), persistent=False)",
    # With settings by layer type.
    "self.layer_types = sorted(set(config.layer_types))",
    "self.layer_types = list(set(config.layer_types))",
    "self.rope_type = {}",
    "for layer_type in self.layer_types:",
    "rope_params = self.config.rope_parameters[layer_type]",
    "if rope_params is None:",
    "continue",
    "self.rope_type[layer_type] = rope_params['rope_type']",
    "if self.rope_type[layer_type] != 'default':",
    "curr_inv_freq, curr_attention_scaling = rope_init_fn(self.config, device, "
    "layer_type=layer_type)",
    "curr_inv_freq, curr_attention_scaling = rope_init_fn(self.config, layer_type=layer_type)",
    "setattr(self, f'{layer_type}_inv_freq', nn.Buffer(curr_inv_freq, persistent=False))",
    "setattr(self, f'{layer_type}_original_inv_freq', "
    "nn.Buffer(curr_inv_freq.clone(), persistent=False))",
    "self.register_buffer(f'{layer_type}_inv_freq', curr_inv_freq, persistent=False)",
    "self.register_buffer(f'{layer_type}_original_inv_freq', curr_inv_freq.clone(), "
    "persistent=False)",
    "setattr(self, f'{layer_type}_attention_scaling', curr_attention_scaling)",
}
SECTIONS_LINE = re.compile(
    r"self\.mrope_section = config\.rope_parameters\.get\('mrope_section', \[[0-9, ]+\]\)"
)
FORWARD_LINES = {
    "inv_freq = getattr(self, f'{layer_type}_inv_freq')",
    "attention_scaling = getattr(self, f'{layer_type}_attention_scaling')",
    "position_ids = position_ids.expand(3, -1, -1)",
    "if position_ids.ndim == 2:",
    "position_ids = position_ids[None, ...].expand(3, position_ids.shape[0], -1)",
    "freqs = position_ids[..., None].float() * self.inv_freq.to(device=x.device, "
    "dtype=torch.float)",
    "freqs = position_ids[..., None].float() * inv_freq.to(device=x.device, dtype=torch.float)",
    "emb = torch.cat((freqs, freqs), dim=-1)",
    "emb = torch.repeat_interleave(freqs, 2, dim=-1)",
    "emb = freqs",
    "cos = emb.cos() * self.attention_scaling",
    "sin = emb.sin() * self.attention_scaling",
    "cos = emb.cos() * attention_scaling",
    "sin = emb.sin() * attention_scaling",
    "cos = freqs.cos() * self.attention_scaling",
    "sin = freqs.sin() * self.attention_scaling",
    "cos = self.recomposition_frequencies(cos)",
    "sin = self.recomposition_frequencies(sin)",
    "freqs_cis = torch.polar(torch.ones_like(freqs), freqs)",
    "freqs_cis = freqs_cis * self.attention_scaling",
    "return (cos.to(dtype=x.dtype), sin.to(dtype=x.dtype))",
    "return (cos.to(x.dtype), sin.to(x.dtype))",
    "return (cos, sin)",
    "return freqs_cis",
    # Before 5.13.
    "inv_freq_expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)",
    "inv_freq_expanded = self.inv_freq[None, :, None].float()"
    ".expand(position_ids.shape[0], -1, 1).to(x.device)",
    "inv_freq_expanded = inv_freq[None, :, None].float()"
    ".expand(position_ids.shape[0], -1, 1).to(x.device)",
    "inv_freq_expanded = self.inv_freq[None, None, :, None].float()"
    ".expand(3, position_ids.shape[1], -1, 1)",
    "inv_freq_expanded = self.inv_freq[None, None, :, None].float()"
    ".expand(3, position_ids.shape[1], -1, 1).to(x.device)",
    "position_ids_expanded = position_ids[:, None, :].float()",
    "position_ids_expanded = position_ids[:, :, None, :].float()",
    "device_type = x.device.type if isinstance(x.device.type, str) and x.device.type != 'mps' "
    "else 'cpu'",
    "with maybe_autocast(device_type=device_type, enabled=False):",
    "freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(1, 2)",
    "freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(2, 3)",
    "freqs = (inv_freq_expanded.to(x.device) @ position_ids_expanded).transpose(1, 2)",
    "freqs = self.apply_mrope(freqs, self.mrope_section)",
    "freqs = self.apply_interleaved_mrope(freqs, self.mrope_section)",
}
# Functions that choose, for each section of a head, which of a token's positions rotates it.
SECTION_FUNCTIONS = ("recomposition_frequencies", "apply_mrope", "apply_interleaved_mrope")


@dataclass(frozen=True)
class FrequencyClass:
    """How a model class computes frequencies."""

    by_layer_type: bool  # whether layers of each type have separate settings
    reads_share: bool  # whether a share of each head can be rotated
    scales: bool  # whether it accepts other rope types than ``default``
    follows_length: bool  # whether frequencies of ``dynamic`` settings follow the length of inputs


def find_frequency_class(config: ConfigClass) -> FrequencyClass | None:
    """Return how the model of a config class computes its frequencies.

    None if it does not read the settings.

    Raises:
        UnclearSourceError: It computes them in a way that the rule does not cover.
    """
    sources = list(model_sources(config))
    if not sources:
        raise UnclearSourceError(f"transformers has no model class for {config.name}")
    found = [node for node in classes_with(COMPUTES, sources) if SETTINGS in ast.unparse(node)]
    own = [node for node in found if _accepted_config(node) == config.name]
    readings = [_read_class(node) for node in own or found]
    follows_length = all(reading.follows_length for reading in readings)
    common = {replace(reading, follows_length=follows_length) for reading in readings}
    if len(common) == 1:
        return common.pop()
    if common:
        message = f"several classes may compute the frequencies of {config.name}"
        raise UnclearSourceError(message)
    if any(SETTINGS in source for source in sources):
        raise UnclearSourceError(f"its model reads {SETTINGS} in a way that is unknown")
    return None


def _accepted_config(node: ast.ClassDef) -> str:
    """Return the config class that the constructor of a class accepts; empty if none is stated."""
    constructor = functions_of(node).get("__init__")
    if constructor is None or len(constructor.args.args) < 2:
        return ""
    annotation = constructor.args.args[1].annotation
    return "" if annotation is None else ast.unparse(annotation)


def _read_class(node: ast.ClassDef) -> FrequencyClass:
    """Return how a class computes frequencies.

    Raises:
        UnclearSourceError: It has an unknown line or function.
    """
    functions = functions_of(node)
    for name in ("__init__", "forward"):
        if name not in functions:
            raise UnclearSourceError(f"{node.name} has no {name}()")
    lines = dict[str, set[str]]()
    for name, function in functions.items():
        if name not in SECTION_FUNCTIONS:
            lines[name] = set(_lines(function.body))
    known = {"__init__": CONSTRUCTOR_LINES, COMPUTES: DEFAULT_LINES, "forward": FORWARD_LINES}
    for name, stated in lines.items():
        if name not in known:
            raise UnclearSourceError(f"{node.name} has {name}()")
        for line in sorted(stated - known[name]):
            if not line.startswith("raise ") and not SECTIONS_LINE.fullmatch(line):
                raise UnclearSourceError(f"{node.name} has the line `{line}`")
    decorators = [ast.unparse(item) for item in functions["forward"].decorator_list]
    arguments = functions[COMPUTES].args.args
    is_refusing = any(line.startswith("raise ") for line in lines["__init__"])
    if not is_refusing and not lines["__init__"] & set(USES_TYPES):
        raise UnclearSourceError(f"{node.name} does not use the rope types of transformers")
    return FrequencyClass(
        by_layer_type=any(argument.arg == "layer_type" for argument in arguments),
        reads_share=bool(lines[COMPUTES] & set(READS_SHARE)),
        scales=not is_refusing,
        follows_length=RECOMPUTES in decorators,
    )


def _lines(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the simple statements in some statements, and the first lines of compound ones."""
    for statement in statements:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        text = ast.unparse(statement)
        if isinstance(statement, ast.If | ast.For | ast.While | ast.With):
            yield text.splitlines()[0]
            yield from _lines(statement.body)
            if not isinstance(statement, ast.With):
                yield from _lines(statement.orelse)
        else:
            yield text
