# `make demo` and `make test` only need Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

NEWEST_TESTS := $(addprefix tests/families/test_,conformance.py families.py agreement.py rope_settings.py)

.PHONY: demo test pytest test-slow test-engines test-newest test-lowest lint format docs docs-output figures dist bench clean

demo: $(VENV)/installed
	$(BIN)/ctxextend demo

# Checks the code while the first tests run.
test: $(VENV)/installed-dev
	$(MAKE) --jobs=2 lint pytest

# Two processes with one thread each: more threads than cores slow each other down.
pytest: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Complete fault injection, all blocks of the site, notebooks, distributions, and other tests that take minutes.
test-slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Runs engines on resized models, and the tools of docs/guides/tools.md, each in its own
# environment in build/engines: those that install in seconds or, with ENGINES=all, also those that
# take minutes and gigabytes.
ENGINES ?= fast
test-engines: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 ENGINES="$(ENGINES)" $(BIN)/python -m pytest -m engines tests/engines

# Builds all model types of the newest transformers, in a separate environment, and compares what
# the entries say with them. Its own libraries are not pinned.
NEWEST := build/newest
PINNED_BY_TRANSFORMERS := transformers|tokenizers|huggingface_hub|safetensors|hf-xet
test-newest:
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	grep -vE '^($(PINNED_BY_TRANSFORMERS))==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --no-compile --constraint $(NEWEST)/constraints.txt --editable '.[dev]'
	$(NEWEST)/bin/ctxextend families | tail -n 2
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n 2 --dist worksteal -m '' $(NEWEST_TESTS)

# Runs the tests with the lowest versions that pyproject.toml states for us and for the extras, in
# a separate environment. pip refuses versions that cannot be installed together. What the tests
# themselves need is pinned by nothing.
LOWEST := build/lowest
test-lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	sed -n '/^dependencies/,/^docs/p' pyproject.toml | grep -oE '[A-Za-z0-9_-]+>=[0-9.]+' | sed 's/>=/==/' > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-compile --constraint $(LOWEST)/constraints.txt --editable '.[dev]'
	$(LOWEST)/bin/ctxextend --version
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Build the site.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

# Update the output of commands and notebooks in README and docs.
docs-output: $(VENV)/installed-dev
	$(BIN)/python -m tests.project.test_docs
	$(BIN)/python -m tests.project.test_notebooks

figures: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.figures

dist: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# Fails if a measure misses its target; the table is written anyway.
bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(BENCH)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Python compiles modules when they are first imported; compiling all of them here would double the time.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) '.[plot,train]'
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
