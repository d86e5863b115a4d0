# Included by the Makefile of each example, which may set PICTURE: the CSS selector of the figure for `make picture`.
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
PROFILE ?= local
ENV := env$(if $(filter azureml,$(PROFILE)),-azureml)
BIN ?= $(ROOT)/.v$(ENV)/bin
PICTURE ?= figure.curves

.DEFAULT_GOAL := help
.PHONY: help run picture clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: data/.made ## make the data and run the project under PROFILE (local, slurm or azureml)
	$(BIN)/snakemake --profile profiles/$(PROFILE) $(ARGS)

data/.made: make_data.py | $(BIN)/snakemake
	$(BIN)/python make_data.py data
	@touch $@

$(BIN)/snakemake:
	$(MAKE) -C $(ROOT) $(ENV)

picture: run ## draw the README's picture again, with chromium
	cd $(ROOT) && $(BIN)/python -m examples.picture $(CURDIR)/results/report/index.html $(CURDIR)/picture.png '$(PICTURE)'

clean: ## remove data, results and logs
	rm -rf data results store logs benchmarks .snakemake
