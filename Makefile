# Two commands matter: `make train` and `make test`. Both build everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := arrow,dev,mpi,partition,plot,pyg,yaml
# Kernels are compiled for this machine alone; tests and wheels have those of all.
SETS ?= native
SOURCES := pyproject.toml constraints.txt CMakeLists.txt \
	$(shell find spgnn -name '*.cpp' -o -name '*.hpp' -o -name 'CMakeLists.txt')

# `make train` needs no more than the package; tests need the extras as well, and docs their own.
# What extras need is read from the installed package, which is not built again.
PIP := $(BIN)/python -m pip install --progress-bar off --constraint constraints.txt

.PHONY: build train test tests test-slow docs wheel lint format clean

build: $(VENV)/.built-$(SETS) $(VENV)/.extras

$(VENV)/.tools: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja torch
	touch $@

$(VENV)/.built-$(SETS): $(VENV)/.tools $(SOURCES)
	$(PIP) --no-build-isolation --config-settings=cmake.define.SPGNN_SETS=$(SETS) --editable .
	touch $@

$(VENV)/.extras: pyproject.toml constraints.txt | $(VENV)/.built-$(SETS)
	$(PIP) 'spgnn[$(EXTRAS)]'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.extras
	$(PIP) 'spgnn[docs]'
	touch $@

# What the README's first page uses.
$(VENV)/.start: pyproject.toml constraints.txt | $(VENV)/.built-$(SETS)
	$(PIP) 'spgnn[pyg]' pymetis
	touch $@

train: $(VENV)/.built-$(SETS) $(VENV)/.start
	$(BIN)/python experiments/gcn.py --nproc 4 --dataset sbm --json build/train.json

# Three processes on two cores, for the ranks of a test mostly wait for one another. What Python
# compiles is kept, whatever the shell says: tests start interpreters. The engine is tested with
# the add-ons taken away.
test:
	$(MAKE) --no-print-directory SETS=all build
	$(MAKE) --no-print-directory SETS=all --jobs=2 --keep-going --output-sync=target lint tests

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -m 'not slow' --numprocesses=3 --dist=worksteal
ABOVE := tests/addons tests/docs tests/experiments tests/support tests/systems
tests:
	PYTHONPATH=tests/without_addons $(PYTEST) $(addprefix --ignore=,$(ABOVE))
	$(PYTEST) $(ABOVE)

test-slow: build $(VENV)/.docs
	$(BIN)/python -m pytest -m slow

# The site, in build/docs/html. Runs the gallery; needs no network.
docs: build $(VENV)/.docs
	MPLBACKEND=Agg $(BIN)/python -m sphinx --fail-on-warning --quiet \
		-c docs -d build/docs/doctrees . build/docs/html

# The source archive, and the wheel made of it, in dist.
wheel: build
	$(BIN)/python -m build -C cmake.define.SPGNN_SETS=all --outdir dist

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find spgnn tests -name '*.cpp' -o -name '*.hpp' -o -name '*.cuh')

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find spgnn tests -name '*.cpp' -o -name '*.hpp' -o -name '*.cuh')

clean:
	rm -rf build dist docs/examples $(VENV) .pytest_cache .mypy_cache .ruff_cache

.PHONY: sanitize
sanitize: build
	PATH="$(abspath $(BIN)):$$PATH" $(MAKE) -C tests/cpp
