# Everything else is a `python -m` entry point; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-all lint

setup: $(STAMP)

# uv only makes the install quick: the same constraints serve plain pip.
$(STAMP): pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/constraints.txt \
	  --editable '.[pipeline,trainer,eval,report,cloud,launch,dev]'
	touch $@

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" bash infra/demo.sh

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m 'slow or not slow'
