# `make help` lists the targets. Every target that needs the environment makes it first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format clean

help: ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# The CPU build of torch first, so that nothing later asks for another.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev,bench]'
	touch $@

demo: $(READY) ## Set up, then compile attention and RMSNorm+Linear for the CPU and show everything.
	$(BIN)/python examples/demo.py

test: $(READY) ## Set up, then run the tests (no GPU needed).
	$(BIN)/python -m pytest -n 2 -m "not gpu and not slow"

test-slow: $(READY) ## Run the long tests: nightly sizes, sanitizers.
	$(BIN)/python -m pytest -n 2 -m "slow and not gpu" --timeout 1800

check: $(READY) ## Format, lint, types and import order.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -p no:cacheprovider tests/test_imports.py

format: $(READY) ## Format the code and fix what the linter can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the environment and all caches of the tools.
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
