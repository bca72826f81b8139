"""Notes of a plan about Mistral's params.json, and about programs that read it."""

from collections.abc import Iterator, Sequence

from ctxextend.checkpoints.mistral_files import params_path
from ctxextend.families.mistral_params import MISTRAL_INFERENCE, UNSTATED_LENGTH, YARN_KEY
from ctxextend.limits.length_edits import Edit
from ctxextend.limits.params_file import find_params
from ctxextend.plan.plan import Plan
from ctxextend.tables.rope_types import TYPE


def params_notes(plan: Plan) -> Iterator[str]:
    """Yield what to know of a folder whose params.json changes.

    mistral-inference 1.6 drops other keys than those of its ``TransformerArgs`` (run), and computes
    128,000 positions (``Transformer.freqs_cis``, read):
    https://github.com/mistralai/mistral-inference

    Raises:
        CheckpointError: It is malformed.
    """
    edits = [edit for edit in plan.edits if edit.file == params_path(plan.checkpoint)]
    params = find_params(plan.checkpoint)
    if params is None or not edits:
        return
    if params.is_read_first and not params.is_only_config:
        yield f"vLLM reads {params.name} before config.json: both change."
        if any(table.location.without_scaling_key for table in plan.tables) and _is_scaled(plan):
            yield (
                "config.json states the settings only as rope_parameters: vLLM does not load a "
                f"folder with {params.name} and rope_scaling."
            )
    if _states_yarn(edits):
        yield f"{MISTRAL_INFERENCE} ignores {YARN_KEY} in {params.name}, and reads inputs unscaled."
    if plan.max_len_after > UNSTATED_LENGTH:
        yield f"{MISTRAL_INFERENCE} reads {UNSTATED_LENGTH:,} tokens at most."


def _is_scaled(plan: Plan) -> bool:
    """Whether the planned rotary settings have a type besides the default."""
    settings = [item.after for table in plan.tables for item in table.rope]
    return any(item[TYPE] != "default" for item in settings)


def _states_yarn(edits: Sequence[Edit]) -> bool:
    """Whether edits state settings of yarn."""
    return any(edit.path[0] == YARN_KEY and edit.after is not None for edit in edits)
