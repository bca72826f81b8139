"""What llama.cpp does with a planned GGUF file."""

from ctxextend.checkpoint.gguf_checkpoint import gguf_file
from ctxextend.plan import Plan
from ctxextend.runtimes.rules.of_llama_cpp import ENCODER_FLAGS, LLAMA_CPP
from ctxextend.runtimes.runtime_statements import RuntimeOutcome, RuntimeStatement
from ctxextend.runtimes.runtimes import find_runtime

# Where it reads the length of all architectures, `load_hparams`. tests/engines/test_gguf.py runs
# those of 31 model types and methods.
SOURCE = "https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp"


def gguf_statements(plan: Plan) -> tuple[RuntimeStatement, ...]:
    """Return what llama.cpp does with a planned GGUF file; nothing of a folder, or if it stays.

    A plan has only methods that llama.cpp applies to the architecture, and it reads the length that
    the file states.
    """
    if not plan.checkpoint.file_suffix or not plan.is_changed:
        return ()
    max_len = plan.max_len_after
    option = ""
    if gguf_file(plan.checkpoint).values.get(f"{plan.model_type}.attention.causal") is False:
        option = ENCODER_FLAGS.format(max_len=max_len)
    statement = RuntimeStatement(
        runtime=find_runtime(LLAMA_CPP),
        outcome=RuntimeOutcome.SERVES,
        length=max_len,
        option=option,
        reason="",
        evidence=SOURCE,
    )
    return (statement,)
