# Two commands are all that a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= all
PYTEST_ARGS ?= -n auto

.DEFAULT_GOAL := help
.PHONY: help env run test lint format lock bench bench-full clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## make .venv from requirements.lock

run: env ## run the whole pipeline on this machine
	$(BIN)/snakemake --profile profiles/local --cores $(CORES)

test: env ## run the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests

lint: env ## check format, lint, types and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/snakemake --lint

format: env ## format Python and Snakemake files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile rules

# A CPU wheel calls itself 2.13.0+cpu; the label is dropped so that the same
# lock installs the CUDA build where pip finds that one.
lock: env ## refresh requirements.lock from pyproject.toml
	$(BIN)/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-find-links \
	    --no-emit-trusted-host --allow-unsafe --extra dev --output-file requirements.lock $(LOCK_ARGS) pyproject.toml
	sed -i 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' requirements.lock

bench: env ## measure all of it quickly, in about ten minutes
	$(BIN)/python benchmarks/parse.py --repeats 2
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/format.py
	$(BIN)/python -m benchmarks.reader

bench-full: env ## measure the reader in full and write docs/benchmarks.md
	$(BIN)/python -m benchmarks.reader --full

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] < (3, 13) else f"{sys.executable} is Python {v[0]}.{v[1]}; Shardline needs 3.11 or 3.12: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

clean: ## remove .venv (results and store stay)
	rm -rf $(VENV)
