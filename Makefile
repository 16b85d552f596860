# Everything else is a `python -m` entry point; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup libtpu browser docs demo test test-all lint

setup: $(STAMP)

# uv only makes the install quick: the same constraints serve plain pip.
$(STAMP): pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/constraints.txt \
	  --editable '.[pipeline,trainer,eval,report,cloud,dask,rlds,launch,docs,dev]'
	touch $@

# The compiler for TPUs, which needs none: 0.7 GB, for Linux on x86-64. It lies beside
# the packages, not among them, since JAX asks every machine that has it for a TPU.
# Where it cannot be had, the tests that need it are skipped and say so.
LIBTPU := $(VENV)/libtpu

libtpu: setup
	@test -e $(LIBTPU) || VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/containers/accelerators.txt --no-deps \
	  --target $(LIBTPU) libtpu || rm -rf $(LIBTPU)

# Chromium of the system, and what drives it: the tests of pages. Where they cannot be
# had, those tests are skipped and say so.
browser: setup
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/constraints.txt --editable '.[browser]' || true
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { apt-get update && apt-get install --yes --no-install-recommends chromium; } \
	  >/dev/null 2>&1 || echo "no Chromium here, and apt-get cannot install it"

# The documentation, to be opened from the disk. Strict: a link or a reference that leads
# nowhere fails. The theme's notice is of its own future versions; ours are pinned.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file .mkdocs.yml --strict --quiet
	@echo "open build/site/index.html"

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" bash infra/demo.sh

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two workers, as much of the time is one thread that compiles; what one of them has
# left at the end is shared. Lint and types run beside the tests, in what these leave of
# the cores, and are printed after them: either may fail, and both are seen.
PYTEST = $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
define beside_lint
@said=$$(mktemp); \
$(MAKE) --no-print-directory lint >$$said 2>&1 & lint=$$!; \
$(PYTEST) $(1); tests=$$?; \
wait $$lint; linted=$$?; \
cat $$said; rm $$said; \
exit $$((tests ? tests : linted))
endef

test: setup libtpu
	$(call beside_lint,)

test-all: setup libtpu browser
	$(call beside_lint,-m 'slow or not slow')
