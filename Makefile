# Everything runs in $(VENV), with the versions in constraints.txt. Needs Python 3.11 or later, pip and make.

VENV ?= .venv
BENCHMARK ?= benchmarks/vector_envs.py
PYTEST_ARGS ?= -n 2 --dist worksteal
DEMO ?= build/demo
SITE ?= build/site

# The first interpreter that runs and is new enough: a name on PATH may belong to a version that is not installed.
PYTHON ?= $(shell for name in python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# Touched after an install, and older than these files when it must be repeated.
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
REQUIREMENTS := pyproject.toml constraints.txt

.DELETE_ON_ERROR:
.PHONY: help demo test test-cluster test-worlds check format docs wheel bench clean

help:
	@echo "make demo    install Stretto into $(VENV) and run its demonstration"
	@echo "make test    install what tests need and run them (PYTEST_ARGS='-k vector' selects some)"
	@echo "make test-cluster  run the tests on a Ray cluster of three nodes on this machine"
	@echo "make test-worlds  run the tests with programs that others wrote, each in an environment of its own"
	@echo "make check   lint, formatting, types, layers, and the links of the documentation"
	@echo "make format  rewrite the code as 'make check' wants it, where that can be done safely"
	@echo "make docs    build the documentation into $(SITE), and check its links"
	@echo "make wheel   build a wheel into dist, to install elsewhere"
	@echo "make bench   run $(BENCHMARK) (BENCHMARK=... picks another)"
	@echo "make clean   delete $(VENV), caches and build results"

demo: $(CORE)
	@rm -rf $(DEMO)
	$(BIN)/stretto eval -m foundry_1 -m foundry_2 -m foundry_3 -p random -p gatherer -p planner \
		--episodes 3 --steps 150 --out $(DEMO)

test: $(DEV)
	$(BIN)/python -m pytest $(PYTEST_ARGS) --ignore=tests/cluster

# One after the other: they share the cluster, and kill its nodes.
test-cluster: $(DEV)
	$(BIN)/python -m pytest tests/cluster

# Programs that need folders which are on no registry look for them in $$STRETTO_WORLDS.
test-worlds:
	@$(PYTHON) tests/worlds/run.py $(VENV)-worlds $(PYTEST_ARGS)

check: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

docs: $(DEV)
	@# With --quiet, --strict would not count warnings.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(SITE)
	$(BIN)/python docs/tools/check_links.py $(SITE)

wheel: | $(BIN)/pip
	$(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(DEV)
	$(BIN)/python $(BENCHMARK)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CORE): $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing Stretto into $(VENV)"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(DEV): $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing Stretto and what its tests need into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(CORE) $@

# pip arrives last, so its presence shows that an earlier run was not cut short. Some systems ship Python
# without ensurepip; there the system's pip puts one into the new environment.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Stretto needs Python 3.11 or later, and found none on PATH;" \
		"install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install -qq --disable-pip-version-check pip; }
