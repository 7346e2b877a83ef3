# One command each. Every target sets up what it needs in .venv first; a second run installs nothing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The extra docs of pyproject.toml, without fastcaps itself.
DOCS := $(shell sed -n 's/^docs = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',')
# Tests of a file share what they train, so a file goes to one worker; tests/conftest.py says which files and in which order.
# One worker more than there are processors, since some tests wait for processes of theirs.
PARALLEL = -n $(shell $(PYTHON) -c 'import os; print(min(4, 1 + os.cpu_count()))') --dist loadfile --no-loadscope-reorder
# Every process would compile all modules again where this is set.
test test-fast: export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test test-fast fuzz check docs bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install fastcaps with everything it needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "fastcaps needs Python 3.11 or newer, %s is %d.%d: run make PYTHON=/path/to/python3.11" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; a few minutes) ..." >&2
	@PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## the MNIST network with and without its loop, then the whole way on real digits
	@$(BIN)/fastcaps demo

test: $(READY) ## all tests
	@$(BIN)/python -m pytest $(PARALLEL)

test-fast: $(READY) ## all tests but the slow ones, for the inner loop
	@$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

fuzz: $(READY) ## 30,000 damaged and hostile files against every reader; the summary goes to results/hostile.json
	@$(BIN)/python -m tests.hostile --tries 30000 --out results/hostile.json

check: $(READY) ## format, lint, type-check, and hold imports to the architecture
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# Sources are read, not imported, so the site needs neither fastcaps nor PyTorch.
docs: ## the documentation as a site that opens from disk: site/index.html
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site/index.html"

bench: $(READY) ## all benchmarks, as ratios inside one run
	@$(BIN)/python -m benchmarks
	@$(BIN)/fastcaps bench

clean: ## remove the virtual environment, all caches and what was built
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
