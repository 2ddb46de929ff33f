# Every target sets up what it needs: Python 3.11, a C++ compiler and make are enough to start from.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := CMakeLists.txt pyproject.toml $(wildcard native/*/*)

STUB := src/softindex/kernels/_native.pyi
# Generates the types of the compiled module into the file $(1).
write_stub = $(BIN)/python -m nanobind.stubgen -q -m softindex.kernels._native -o $(1) && $(BIN)/ruff format -q $(1)

.PHONY: demo test mutate check stub docs install bench clean

demo: .venv/core
	$(BIN)/softindex demo

# There is a worker for each core: threads of their own would only wait for one another.
test: .venv/all
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

# Saved files of every kind that lie with valid checksums: about two minutes.
mutate: .venv/all
	for kind in index mixture-index adaptive-softmax; do \
	  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/store/mutations.py $$kind 3000 || exit 1; done

check: .venv/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(wildcard native/*/*.h native/*/*.cpp)
	mkdir -p build
	$(call write_stub,build/_native.pyi)
	diff -u $(STUB) build/_native.pyi || { echo "$(STUB) is out of date; run 'make stub'." >&2; exit 1; }

stub: .venv/all
	$(call write_stub,$(STUB))

docs: .venv/docs
	$(BIN)/python -m pytest tests/test_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: .venv/all

bench: .venv/bench
	$(BIN)/python -m benchmarks paper --markdown docs/benchmarks.md
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build site

.venv/tools: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	touch $@

.venv/core: .venv/tools $(SOURCES)
	$(PIP) install -c constraints.txt --no-build-isolation -e .
	touch $@

.venv/all: .venv/core
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[data,train,mol,dev]"
	touch $@

.venv/bench: .venv/all
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[data,train,mol,dev,bench]"
	touch $@

.venv/docs: .venv/all
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev,docs]"
	touch $@
