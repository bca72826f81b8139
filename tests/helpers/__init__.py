"""What several tests share: checkpoints, synthetic results, and other programs.

Models and texts
    `pico` builds checkpoints with a few thousand parameters, and edits and compares folders.
    `trainings` builds those for training tests; its `invoke` runs a command in this process.
    `word_tokenizer` has word-level tokenizers, and texts of their words.
    `model_types` lists the types of transformers, and which of them `make test` tries. `tiny`
    builds any of them with a small config, `small_model` those with a position table, and `rules`
    those without; `zoo` runs them on text.
    `rotary_models`, `sinusoidal_models` and `conversions` save small models of some types,
    `random_models` opens them as `train` does, and `mock_models` has models with known outputs.
    `position_tables` makes tables, and `nanogpt`, `pytorch_files` and `gguf_files` files of other
    programs.

Results
    `evaluations` are synthetic results of `evaluate`, and `result_screens` prints them.
    `verifications` reads results of `verify`, and damages its input.
    `json_schemas` checks what commands print with ``--json``.

Other programs
    `terminal` runs commands on a pseudo-terminal, and `imports` tells what they import.
    `hub_server` is a local Hub, with optional faults. `fork_server` and `tracing` run commands
    with faults at chosen system calls, and `outcomes` compares what they leave.

Hostile files
    `mutations` damages files at random, `hostile_weights` builds malicious ones, and `time_limit`
    limits how long reading one may take.

`parameters` marks parameters that only `make test-slow` tries.
`stubs` writes ``ctxextend/__init__.pyi``.
"""
