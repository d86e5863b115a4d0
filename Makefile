# Two commands are all that a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin
CORES ?= all
# A file to a worker, so that what its tests share is made once; in the order that tests/support/scheduling.py gives.
WORKERS ?= auto
PYTEST_ARGS ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 0 --durations-min 1
# Each main property once: identity, data order and the command line; two killed ranks; the pipeline and its report.
MAIN_TESTS := tests/unit tests/ranks/test_resume.py tests/workflow/test_main_job.py
# What `make test-all` runs beside the tests of Azure ML.
HERE ?= tests
# What to run of the tests that are marked `rotating`: the tenth of this commit, another one (1 to 10), or all.
TENTH ?= commit
# Which framework of tests/frameworks: the one of this commit on this machine, or one by name, or all, in all places.
FRAMEWORK ?= commit
SEED ?= 1
# What the lock contains: the extra `all` of pyproject.toml.
EXTRAS := conda delta figures hdf5 huggingface images lightning mlflow onnx s3 slurm sweeps tables tensorboard tokenizers venv wandb
PROFILES := local slurm azureml
PLUGIN := plugins/snakemake-executor-plugin-azureml
LOGGER := plugins/snakemake-logger-plugin-shardline
IO := plugins/shardline-io
# Containers often set it, and then each process compiles all that it imports: a rank's start took 11 s, not 4.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env env-azureml docs docs-serve docs-figures reference profiles run demo test test-all test-here test-azureml test-rotating test-frameworks campaign mutants lint format lock dist bench bench-full clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## make .venv from requirements.lock

# azureml-core does not go with the tools in .venv, see pyproject.toml.
env-azureml: $(VENV)-azureml/.installed ## make .venv-azureml, for --profile azureml

# Snakemake looks for --profile NAME in the folder that the first line prints.
profiles: env ## let --profile local, slurm and azureml be found by name
	@folder="$$($(BIN)/python -c 'from snakemake.cli import get_appdirs; print(get_appdirs().user_config_dir)')" && \
	mkdir -p "$$folder" && for name in $(PROFILES); do \
	  link="$$folder/$$name"; profile="$(CURDIR)/profiles/$$name"; \
	  if [ "$$link" -ef "$$profile" ]; then echo "$$link is linked"; \
	  elif [ -e "$$link" ] || [ -L "$$link" ]; then echo "$$link is not ours and stays as it is; use --profile profiles/$$name" >&2; \
	  else ln -s "$$profile" "$$link" && echo "$$link -> profiles/$$name"; fi; done

run: env ## run the whole pipeline on this machine
	$(BIN)/snakemake --profile profiles/local --cores $(CORES)

demo: env ## kill a training, compare its bits, edit its model: a few minutes, in a temporary folder
	@$(BIN)/python examples/demo.py

test: env ## prove the main properties, in a few minutes; needs no more than Python, git and make
	$(BIN)/python -m pytest $(PYTEST_ARGS) --tenth $(TENTH) $(MAIN_TESTS)

test-all: ## run all tests, also those that need other programs; of the rotating ones a tenth (TENTH=all: all), of the frameworks one
	$(MAKE) --keep-going test-here test-azureml

test-here: env ## run all tests but those of Azure ML
	$(BIN)/python -m pytest $(PYTEST_ARGS) --tenth $(TENTH) --framework $(FRAMEWORK) --ignore tests/azureml $(HERE)

campaign: env ## kill and resume trainings in 500 chains, in about five minutes
	OMP_NUM_THREADS=1 SHARDLINE_CAMPAIGN_CHAINS=$${SHARDLINE_CAMPAIGN_CHAINS:-500} $(BIN)/python -m pytest -q -n 0 tests/unit/training/test_resume_chains.py tests/unit/training/test_longer.py

mutants: env ## change the code at 100 places, and look whether the guard of result versions sees it; half an hour
	PYTHONHASHSEED=0 $(BIN)/python -m tests.guard.mutants --seed $(SEED) --folder $$(mktemp -d)

test-azureml: env-azureml ## run the tests of Azure ML, on an emulator of it; TENTH as above
	npm ci --silent --prefix tests/azureml
	$(VENV)-azureml/bin/python -m pytest $(PYTEST_ARGS) --tenth $(TENTH) --framework $(FRAMEWORK) tests/azureml

test-rotating: ## run all of the rotating tests, those of Azure ML too
	$(MAKE) --keep-going test-here test-azureml TENTH=all PYTEST_ARGS="$(PYTEST_ARGS) -m rotating"

test-frameworks: env-azureml ## run programs of every framework in every place, in half an hour, and log it (FRAMEWORK=NAME: one)
	$(VENV)-azureml/bin/python -m pytest -q -n 0 --framework $(or $(filter-out commit,$(FRAMEWORK)),all) --framework-log docs/contributing/laboratory.md \
	  tests/frameworks tests/azureml/test_node_frameworks.py

lint: env ## check format, lint, types and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow rules config/project
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/snakemake --lint

format: env ## format Python and Snakemake files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile workflow rules config/project

# A CPU wheel calls itself 2.13.0+cpu; the label is dropped so that the same
# lock installs the CUDA build where pip finds that one.
# The last line asks conda channels; where none can be reached, all but the pin files is done.
lock: env ## refresh the pip locks from pyproject.toml, and the conda environments from them
	$(BIN)/pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-find-links \
	    --no-emit-trusted-host --allow-unsafe --extra dev --extra test $(addprefix --extra ,$(EXTRAS)) \
	    --output-file requirements.lock $(LOCK_ARGS) pyproject.toml
	grep -vE '^(torch|pathspec|mlflow.*|opentelemetry.*)=' requirements.lock | \
	    $(BIN)/uv pip compile --quiet --no-emit-index-url --python $(BIN)/python --constraints - \
	    --no-emit-package snakemake-executor-plugin-azureml --extra azureml --extra test \
	    --output-file requirements-azureml.lock $(LOCK_ARGS) pyproject.toml
	sed -i -e '/^# The following packages were excluded/,$$d' requirements-azureml.lock
	sed -i 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' requirements.lock requirements-azureml.lock
	$(BIN)/uv pip compile --quiet --no-emit-index-url --python $(BIN)/python --group docs --output-file requirements-docs.lock $(LOCK_ARGS)
	for lock in requirements requirements-azureml requirements-docs; do \
	    $(BIN)/uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --no-deps --generate-hashes --python $(BIN)/python \
	    --output-file $$lock.hashes $$lock.lock || exit; done
	$(BIN)/snakemake --cores 1 lock_envs

reference: env ## write docs/reference/ and config/README.md from the code
	$(BIN)/python -m shardline.config.reference > config/README.md
	$(BIN)/python docs/reference/generate.py

docs: $(VENV)-docs/.installed ## build the site into site/, and fail on a dead link
	$(DOCS)/mkdocs build --strict

docs-serve: $(VENV)-docs/.installed ## show the site on http://127.0.0.1:8000, and follow changes
	$(DOCS)/mkdocs serve --no-strict

docs-figures: run ## make the site's pictures again, by trainings, chromium and npm; in about ten minutes
	$(BIN)/python -m docs.figures.diagrams
	$(BIN)/python -m docs.figures.report
	$(BIN)/python -m docs.figures.resume

dist: env ## build sdist and wheel of Shardline, of shardline-io and of both Snakemake plugins in dist/
	$(BIN)/python -m hatchling build
	for plugin in $(PLUGIN) $(LOGGER) $(IO); do (cd $$plugin && $(CURDIR)/$(BIN)/python -m hatchling build --directory $(CURDIR)/dist) || exit; done

bench: env ## measure all of it quickly, in about ten minutes
	$(BIN)/python benchmarks/parse.py --repeats 2
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/format.py
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.reader

bench-full: env ## measure the reader in full and write docs/contributing/laboratory.md
	$(BIN)/python -m benchmarks.reader --full

# The locks name every package, so pip has nothing to resolve; what is imported is compiled then. Files are checked against
# requirements.hashes. Of torch, the version alone is checked, since each build (CPU, CUDA) is another file.
WITHOUT = awk '/^[^ ]/ { left = /^($(1))/ } !left'
# NVIDIA's libraries (3.4 GB), which only a CUDA build of torch needs, come with the second step where they are needed.
$(VENV)/.installed: requirements.lock requirements.hashes pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] < (3, 13) else f"{sys.executable} is Python {v[0]}.{v[1]}; Shardline needs 3.11 or 3.12: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(call WITHOUT,torch==) requirements.hashes >$(VENV)/hashes.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes --requirement $(VENV)/hashes.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile $$(grep '^torch==' requirements.lock)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --no-build-isolation --editable .
	@touch $@

$(VENV)-azureml/.installed: requirements-azureml.lock requirements-azureml.hashes pyproject.toml $(PLUGIN)/pyproject.toml
	$(PYTHON) -m venv $(VENV)-azureml
	$(call WITHOUT,cuda-|nvidia-|triton==|torch==) requirements-azureml.hashes >$(VENV)-azureml/hashes.txt
	$(VENV)-azureml/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes --requirement $(VENV)-azureml/hashes.txt
	$(VENV)-azureml/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile $$(grep '^torch==' requirements-azureml.lock)
	$(VENV)-azureml/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements-azureml.lock --no-build-isolation --editable . --editable $(PLUGIN)
	@touch $@

$(VENV)-docs/.installed: requirements-docs.hashes
	$(PYTHON) -m venv $(VENV)-docs
	$(DOCS)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements-docs.hashes
	@touch $@

clean: ## remove the environments (results and store stay)
	rm -rf $(VENV) $(VENV)-azureml $(VENV)-docs
