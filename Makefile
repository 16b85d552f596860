# Everything else is a `python -m` entry point; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup libtpu browser docs demo test test-all lint

setup: $(STAMP)

# An environment that is there is kept, as it may have been made by another Python, whose
# libraries it needs. uv only makes the install quick: the same constraints serve pip.
$(STAMP): pyproject.toml infra/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/constraints.txt \
	  --editable '.[pipeline,trainer,eval,report,cloud,dask,rlds,launch,docs,dev]'
	touch $@

# The compiler for TPUs, which needs no TPU: 0.7 GB, for Linux on x86-64. It is installed
# beside the other packages, not among them, because JAX looks for a TPU on every machine
# that has it. If it cannot be installed, the tests that need it are skipped and say so.
LIBTPU := $(VENV)/libtpu

libtpu: setup
	@test -e $(LIBTPU) || VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/containers/accelerators.txt --no-deps \
	  --target $(LIBTPU) libtpu || rm -rf $(LIBTPU)

# The system's Chromium and the packages that drive it, for the tests of pages. If they
# cannot be installed, these tests are skipped and say so.
browser: setup
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet \
	  --constraint infra/constraints.txt --editable '.[browser]' || true
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { apt-get update && apt-get install --yes --no-install-recommends chromium; } \
	  >/dev/null 2>&1 || echo "no Chromium here, and apt-get cannot install it"

# The documentation, to be opened from the disk. With --strict, a broken link or reference
# is an error. NO_MKDOCS_2_WARNING silences the theme's notice about future versions of
# MkDocs, since ours is pinned.
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

# Two workers, because for much of the time only one thread of each compiles; at the end,
# an idle worker takes over tests of the other one. Lint and types run beside the tests, on
# the time the tests leave of the cores. Their output is printed after that of the tests,
# so that both are seen whichever fails.
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
