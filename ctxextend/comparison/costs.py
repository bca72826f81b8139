"""What a checkpoint is, and what it costs to run."""

import time

from ctxextend.comparison.comparison_result import CheckpointFacts
from ctxextend.lab import eval_model
from ctxextend.lab.embedding import last_states
from ctxextend.lab.eval_model import ModelFiles
from ctxextend.models.devices import peak_memory, torch_threads
from ctxextend.models.load import token_ids
from ctxextend.settings import Evaluate

SPEED_SECONDS = 0.3  # minimum time of the forward passes that measure the speed


def measure_cost(files: ModelFiles, settings: Evaluate, length: int) -> tuple[str, CheckpointFacts]:
    """Load a checkpoint and return its kind and its facts, measured on inputs of this length.

    Raises:
        CtxextendError: The checkpoint cannot be loaded.
    """
    import torch

    model = eval_model.load_eval_model(files, settings.precision, settings.device)
    peak_bytes = peak_memory(model.model.device)
    # Of the fastest forward pass.
    rows = max(eval_model.TOKENS_PER_BATCH // length, 1)
    ids = token_ids(model.model.config, length).repeat(rows, 1).to(model.model.device)
    passes = list[float]()
    with torch_threads(model.model, settings.threads), torch.inference_mode():
        while sum(passes[1:]) <= SPEED_SECONDS:  # the first one warms up
            started = time.perf_counter()
            last_states(model, ids)[0, 0, 0].item()  # waits for the device
            passes.append(time.perf_counter() - started)
    tokens_per_second = float(ids.numel() / min(passes[1:]))
    facts = CheckpointFacts(
        source=files.name,
        model_type=model.model_type,
        scheme=files.find_scheme(),
        max_len=files.max_len,
        parameters=model.model.num_parameters(),
        bytes=sum(entry.size for entry in files.checkpoint.weights.entries.values()),
        peak_bytes=peak_bytes(),
        tokens_per_second=round(tokens_per_second, 1),
    )
    model.model.to("meta")  # frees its weights, whatever still refers to it
    return model.kind, facts
