# setup   the environment in .venv, with the package built from this checkout
# demo    set up, then compare norms and placements by training them: ranked table and report in runs/
# test    set up and run the tests
# browser the pages: types of their JavaScript (npm) and tests in chromium
# explorer what the explorer draws, computed again: sets of cells, a scaled column, streams by depth (minutes; names this machine)
# nightly the tests that take minutes: marked nightly, left out of test
# extras  each extra of the package installed alone, and its smallest use
# matrix  build and test with the oldest, the pinned and the newest torch (downloads several GB)
# native  the C++ tests of the kernels, compiled as they are shipped
# check   test, plus linter, type checker, import layers, native, and the sanitizer run of the C++ tests
# fuzz    strange inputs against the native boundary, for SECONDS (60)
# asan    the tests of that boundary, and the fuzz, with the kernels under AddressSanitizer (gcc; half an hour)
# corpus  train the labelled corpus of sick and healthy models, diagnose it, rewrite its table in docs/*/diagnosis.md (half an hour; SET=second and SET=third for the other sets)
# zoo     inspect against architectures whose truth is known; rewrites the table in docs/en/inspect.md and docs/zh/inspect.md
# bench   the full benchmark (ratios against torch, torch.compile and the memory limit)
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test check lint bench numerics zoo native sanitize fuzz asan mutation extras matrix nightly browser explorer corpus clean

setup: .venv/stamp

SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp)

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
	$(BIN)/python -m pytest -n 2 -m "not nightly and not browser"

# npm serves development alone: the type checker of the pages' JavaScript, and axe-core for their accessibility.
node_modules/stamp: package.json package-lock.json
	npm ci --no-audit --no-fund
	touch $@

browser: setup node_modules/stamp
	node_modules/.bin/tsc --project .
	$(BIN)/python -m pytest -m browser tests/report

nightly: setup
	$(BIN)/python -m pytest -n 2 -m nightly

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test native sanitize

bench: setup
	$(BIN)/normlab bench --json bench-$(shell date +%Y%m%d-%H%M).json

numerics: setup
	$(BIN)/normlab numerics --write docs

zoo: setup
	$(BIN)/python tests/surgery/zoo.py --write

# Not implied by sanitize, which optimizes less: what the compiler fuses, and so the last bit, is seen here alone.
native:
	cmake -S . -B build/native -DNORMLAB_CPP_TESTS=ON -DCMAKE_BUILD_TYPE=Release
	cmake --build build/native --parallel 2
	./build/native/kernel_test

sanitize:
	cmake -S . -B build/sanitize -DNORMLAB_CPP_TESTS=ON -DNORMLAB_SANITIZE=ON -DCMAKE_BUILD_TYPE=None
	cmake --build build/sanitize --parallel 2
	./build/sanitize/kernel_test

SECONDS ?= 60
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) --first $(shell date +%s)

# A second environment, with the tools of the first and a sanitized build in place of the editable one. torch is not built
# with the sanitizer: its runtime is loaded first, and what torch does with memory of its own is none of our business.
ASAN := build/asan
ASAN_RUN := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1:handle_segv=0:quarantine_size_mb=16 $(ASAN)/env/bin/python
asan: setup
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(ASAN)/site . -C build-dir=$(ASAN)/build \
		-C cmake.build-type=None -C install.strip=false -C cmake.define.NORMLAB_SANITIZE=ON
	$(BIN)/python -m venv --without-pip --clear $(ASAN)/env
	$(BIN)/python -c 'import sysconfig; print("$(CURDIR)/$(ASAN)/site"); print(sysconfig.get_path("purelib"))' \
		> "$$($(ASAN)/env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/paths.pth"
	$(ASAN_RUN) -m pytest -p no:cacheprovider -p no:xdist -m "not nightly" tests/kernels/test_eager.py tests/kernels/test_handover.py \
		tests/kernels/test_boundary.py tests/kernels/test_padding_bits.py \
		tests/kernels/test_kernels.py tests/kernels/test_graph.py tests/kernels/test_fuzz.py tests/norms --deselect tests/norms/test_distributed.py

mutation: setup
	$(BIN)/python tests/mutation_drill.py

extras: setup
	$(BIN)/python tests/extras.py

matrix: setup
	$(BIN)/python tests/matrix.py --write

explorer: setup
	$(BIN)/python benchmarks/explorer_data.py sets scaling depth fluctuation

CORPUS := build/corpus
SET ?= evaluation
corpus: setup
	rm -rf $(CORPUS)/$(SET)
	PYTHONPATH=tests/diagnosis $(BIN)/python -m corpus $(SET) --out $(CORPUS) --part 0/2 & \
	PYTHONPATH=tests/diagnosis $(BIN)/python -m corpus $(SET) --out $(CORPUS) --part 1/2; wait
	PYTHONPATH=tests/diagnosis $(BIN)/python -m corpus $(SET) --out $(CORPUS) --write docs

clean:
	rm -rf build .venv
