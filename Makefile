# setup   the environment in .venv, with the package built from this checkout
# demo    set up, then compare norms and placements by training them: ranked table and report in runs/
# test    set up and run the tests
# extras  each extra of the package installed alone, and its smallest use
# matrix  build and test with the oldest, the pinned and the newest torch (downloads several GB)
# check   test, plus linter, type checker, import layers and the sanitizer run of the C++ tests
# bench   the full benchmark (ratios against torch, torch.compile and the memory limit)
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test check lint bench numerics sanitize mutation extras matrix clean

setup: .venv/stamp

SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

.venv/stamp: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e ".[dev]"
	touch $@ .venv/demo

# What a demonstration needs, without the tools of development: half the download.
.venv/demo: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e ".[lab]"
	touch $@

demo: .venv/demo
	$(BIN)/normlab doctor --no-allocator
	$(BIN)/normlab compare

test: setup
	$(BIN)/python -m pytest -n 2 -m "not nightly"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test sanitize

bench: setup
	$(BIN)/normlab bench --json bench-$(shell date +%Y%m%d-%H%M).json

numerics: setup
	$(BIN)/normlab numerics --write docs

sanitize:
	cmake -S . -B build/sanitize -DNORMLAB_CPP_TESTS=ON -DNORMLAB_SANITIZE=ON -DCMAKE_BUILD_TYPE=None
	cmake --build build/sanitize --parallel 2
	./build/sanitize/kernel_test

mutation: setup
	$(BIN)/python tests/mutation_drill.py

extras: setup
	$(BIN)/python tests/extras.py

matrix: setup
	$(BIN)/python tests/matrix.py --write

clean:
	rm -rf build .venv
