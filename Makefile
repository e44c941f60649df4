# The commands of this project; `make` alone lists them.
SHELL := /bin/sh
# Every process would compile all that it imports, and pytest rewrite the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE
VENV ?= .venv
BIN := $(VENV)/bin
# Test processes at once: one more than cores, as some tests wait for leases and failovers.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n + 1)))
# Tests that depend on timing form one group, which one process runs: see CONTRIBUTING.md.
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 8 --dist loadgroup
# uv takes a fifth of pip's time. pip stands in, and says what is wrong, where uv finds no index that it can read.
# Python compiles modules when they are first imported; pip would compile all of them, which takes longer.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile --constraint constraints.txt
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
INSTALL := install() { $(UV) "$$@" 2>/dev/null || $(PIP) "$$@"; }; install

# The first Python of at least 3.11 on PATH; `make PYTHON=...` overrides it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

.PHONY: help install demo live test slow spark fuzz kernels kernels-checked kernels-python check format bench bench-serve bench-live bench-serve-peers bench-ps bench-wide bench-features bench-spark bench-peers bench-simulate drill serve-drill hosts wheel clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.warm ## Make .venv, install the project into it, and compile its kernels

demo: $(VENV)/.demo ## Make a click log, train on it, evaluate, serve one prediction (under 60 s)
	$(BIN)/python examples/demo.py

live: $(VENV)/.ctr ## A model that learns from what it serves, beside one that does not, while the truth changes (4 min)
	$(BIN)/python examples/live.py

test: $(VENV)/.test ## Run all tests but slow ones and those with Spark
	$(PYTEST) -m 'not slow' --ignore tests/spark

slow: $(VENV)/.test ## The slow tests: real data, all benchmarks in small, faults in turn, deployments (about 3 minutes)
	$(PYTEST) -m slow --ignore tests/spark

# One after the other: each has a Spark of its own, and some kill executors.
spark: $(VENV)/.spark ## Tests with Apache Spark, which this installs (450 MB; needs Java 17)
	$(BIN)/python -m pytest tests/spark

FUZZ_S ?= 600
fuzz: $(VENV)/.test ## The property tests with new random examples and checked bounds, round after round for FUZZ_S=600 seconds
	@end=$$(($$(date +%s) + $(FUZZ_S))); while [ $$(date +%s) -lt $$end ]; do \
		seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
		echo "seed $$seed (make fuzz FUZZ_S=1 SEED=$$seed repeats this round)"; \
		NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/fuzz $(PYTEST) -q -m hypothesis --hypothesis-profile fuzz --hypothesis-seed $$seed || { \
			echo "seed $$seed found something: pin it with @example(...), then fix it"; exit 1; }; \
	done

# Side by side, one process each. With the JIT off, integers that wrap around are a warning.
kernels: $(VENV)/.kernels ## The tests of Numba kernels with checked bounds, and as plain Python with their coverage
	$(MAKE) --jobs 2 kernels-checked kernels-python

kernels-checked:
	rm -rf $(VENV)/kernels-checked
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/kernels-checked $(BIN)/python -m pytest -q -m kernel

kernels-python: COVERAGE := PYTHONPATH=$(VENV)/coverage $(BIN)/python -m coverage
kernels-python: DATA := --data-file $(VENV)/kernels.coverage
kernels-python:
	NUMBA_DISABLE_JIT=1 $(COVERAGE) run $(DATA) --include '*kernels.py,*/text/hashing.py' \
		-m pytest -q -m 'kernel and not large' -W ignore::RuntimeWarning
	$(COVERAGE) report $(DATA) --show-missing

check: $(VENV)/.check ## Format, lint and types, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.check ## Bring the code into format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## Speed beside Vowpal Wabbit, memory and start-up, in one run (about 3 minutes)
	$(BIN)/python -m benchmarks

bench-ps: $(VENV)/.bench ## Parameters in Redis: requests, memory, training beside Vowpal Wabbit, `ctr ps plan`, load, checkpoints
	$(BIN)/python -m benchmarks parameters plan board checkpoints --rows 2000000 --rounds 3

bench-wide: $(VENV)/.bench ## The same with 2**28 slots and ten million rows (10 GB on disk, about 10 minutes)
	$(BIN)/python -m benchmarks wide

bench-features: $(VENV)/.bench ## Making features: raw text, Parquet, fitting, suggestions, windows, beside their peers
	$(BIN)/python -m benchmarks features --rows 1000000

bench-serve: $(VENV)/.bench ## Requests per second beside a bare FastAPI endpoint on the same server (about 1 minute)
	$(BIN)/python -m benchmarks serve

bench-live: $(VENV)/.bench ## How soon a push is served, and what requests notice of it (about 2 minutes)
	$(BIN)/python -m benchmarks live

bench-serve-peers: $(VENV)/.bench ## Beside MLServer, mlflow models serve and VW, in an environment of their own (about 5 minutes)
	[ -x $(VENV)/peers/bin/mlserver ] || { $(PYTHON) -m venv $(VENV)/peers && $(VENV)/peers/bin/python -m pip install --quiet \
		--disable-pip-version-check --editable . mlflow mlserver mlserver-sklearn scikit-learn 'uvloop<0.22' vowpalwabbit; }
	$(BIN)/python -m benchmarks serving-peers --peer-python $(VENV)/peers/bin/python

bench-spark: $(VENV)/.bench $(VENV)/.spark ## On Apache Spark, beside Spark ML (about 5 minutes; needs Java 17)
	$(BIN)/python -m benchmarks spark --rows 1000000

bench-peers: $(VENV)/.bench ## Beside VW, scikit-learn, modern-fm and river: accuracy, speed, memory; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks peers

bench-simulate: $(VENV)/.bench ## Simulated clusters: board and sessions on virtual time, beside `ctr ps plan` (about 10 minutes)
	$(BIN)/python -m benchmarks simulate

MINUTES ?= 30
drill: $(VENV)/.test ## Break Redis servers and workers while they train: is any update lost or doubled? (MINUTES=30)
	$(BIN)/python -m tests.drill --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

BAD ?= 1000000
AWAY ?= 60
serve-drill: $(VENV)/.test ## Serve under load while versions change, files are torn and processes die (about 7 minutes; BAD=1000000 bad requests, AWAY=60 seconds without the registry)
	$(BIN)/python -m tests.serving --bad $(BAD) --away-s $(AWAY)

hosts: $(VENV)/.test ## Train across network namespaces: delays, a slow host, losses, partitions (about 10 minutes; needs root)
	$(BIN)/python -m tests.hosts $(SCENARIO)

wheel: $(VENV)/.wheel $(VENV)/.warm ## Build a wheel with compiled kernels into dist/, and try it in an environment of its own
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build .
	$(BIN)/ctr warm-up
	$(BIN)/python docker/compiled_wheel.py build/*.whl dist
	$(BIN)/python tests/wheel.py dist/*.whl

clean: ## Remove everything that the other commands made
	rm -rf "$(VENV)" demo bench-data build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ctr needs Python 3.11 or newer on PATH (or: make PYTHON=/path/to/python)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "This Python cannot make a virtual environment; \
on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PIP) uv 2>/dev/null || echo "uv cannot be installed; pip takes half a minute longer"
	@$(INSTALL) --editable '.[embedded,serve]'
	@touch $@

$(VENV)/.ctr: $(VENV)/.demo
	@$(INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.warm: $(VENV)/.ctr
	$(BIN)/ctr warm-up
	@touch $@

$(VENV)/.test: $(VENV)/.ctr
	@$(INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/.spark: $(VENV)/.test
	@$(INSTALL) --editable '.[spark]'
	@touch $@

# Not among the tests' own packages: Numba loads coverage wherever it finds it, which takes 0.3 s of every start.
$(VENV)/.kernels: $(VENV)/.test
	@$(INSTALL) --upgrade --target $(VENV)/coverage coverage
	@touch $@

$(VENV)/.check: $(VENV)/.ctr
	@$(INSTALL) --editable '.[check]'
	@touch $@

$(VENV)/.wheel: $(VENV)/.ctr
	@$(INSTALL) wheel
	@touch $@

$(VENV)/.bench: $(VENV)/.ctr
	@$(INSTALL) --editable '.[bench]'
	@touch $@
