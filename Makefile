# Every target installs what it needs: Python packages in .venv, programs for tests in .cache.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp
# Modules are compiled to bytecode on import; compiling all of them takes longer.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
  -c constraints.txt

.PHONY: demo serve compare test tools kernels lint bench bench-quick soak chaos fuzz security image-check dist sbom \
  audit docs test-pythons test-debian13 release-check clean

# In a terminal the demo runs until Ctrl-C.
demo: $(STAMP)-core
	@if [ -t 1 ]; then $(BIN)/dualstream demo --stay; else $(BIN)/dualstream demo; fi

serve: $(STAMP)-core
	$(BIN)/dualstream serve

# make compare FILE=yours.csv OPTIONS='--label bought'
compare: $(STAMP)-compare
	@$(BIN)/dualstream compare $(FILE) $(OPTIONS)

# Four jobs on two cores: tests wait for servers. Three take a quarter longer.
TEST_JOBS ?= 4
# Keep bytecode even where the environment forbids it: without it each test process compiles its
# imports and rewrites the assertions of all tests.
test: export PYTHONDONTWRITEBYTECODE =
test:
	@$(MAKE) --no-print-directory -j3 tools kernels $(STAMP)-bytecode
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

# The installed package in a root of Debian 13, which has Python 3.13. Prints why if it is skipped: it
# needs root and Debian's mirror.
test-debian13: $(STAMP)-dev
	tests/fetch_tool.sh debootstrap rclone
	$(BIN)/python -m tests.pythons.debian13

# The installed package with each other Python on PATH.
test-pythons: $(STAMP)-dev
	tests/fetch_tool.sh rclone
	$(BIN)/python -m tests.pythons.interpreters

tools: | $(BIN)/python
	tests/fetch_tool.sh prometheus redis nats mosquitto strace nginx rclone tansu chromium axe

kernels: $(STAMP)-dev
	$(BIN)/python -m dualstream.service.server.compile_kernels

# The first collection of tests compiles their imports and rewrites their assertions. That takes 14 s
# of CPU, here once and not in each job. It needs no kernels.
$(STAMP)-bytecode: $(STAMP)-dev
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest --collect-only >/dev/null
	touch $@

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports importlinter.ini
	@$(MAKE) --no-print-directory audit

bench: $(STAMP)-bench
	tests/fetch_tool.sh redis wrk tansu chromium
	$(BIN)/python -m load_tests

# Hot paths in five minutes; fails if one takes over a tenth more CPU than load_tests/RESULTS.md has.
bench-quick: $(STAMP)-bench
	tests/fetch_tool.sh redis wrk
	BENCH_ROUNDS=3 $(BIN)/python -m load_tests quick

# Memory under constant load; writes its section of load_tests/RESULTS.md.
SOAK_MINUTES ?= 10
soak: $(STAMP)-bench
	$(BIN)/python -m load_tests.soak --minutes $(SOAK_MINUTES)

# Many rounds of the chaos tests and all simulated schedules; writes load_tests/RELIABILITY.md. Then the
# overload benchmark.
chaos: $(STAMP)-bench
	tests/fetch_tool.sh redis wrk strace tansu nats mosquitto
	DUALSTREAM_CHAOS_FAULTS=200 DUALSTREAM_CHAOS_ROUNDS=20 \
	  DUALSTREAM_RELIABILITY=load_tests/RELIABILITY.md \
	  $(BIN)/python -m pytest tests/chaos tests/simulation tests/service/journal/test_processes.py
	$(BIN)/python -m load_tests overload

# Property tests with fifty times the examples of `make test`, then a fuzzer of all readers of bytes.
FUZZ_MINUTES ?= 30
fuzz: $(STAMP)-fuzz
	DUALSTREAM_FUZZ_SCALE=10 $(BIN)/python -m pytest -n 2 \
	  $$(grep -rlE 'hypothesis|tests.fuzzing' tests --include='test_*.py')
	$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES)

# Static analysis, API description and hostile clients; writes load_tests/SECURITY.md, as `make fuzz` does.
security: $(STAMP)-dev
	$(BIN)/python -m load_tests.static_analysis
	$(BIN)/python -m tests.openapi_fuzz
	$(BIN)/python -m tests.hostile

# Build the image, run it with a read-only root and use it; needs root, but no container engine.
image-check: | $(BIN)/python
	tests/fetch_tool.sh buildah
	$(BIN)/python -m tests.image

# Wheels and sdist in .cache/dist, checked as a package index checks them. The second wheel has compiled
# kernels.
dist: $(STAMP)-dist
	rm -rf .cache/dist build
	$(BIN)/python -m build --outdir .cache/dist
	rm -rf build
	$(BIN)/python -m deploy.platform_wheel .cache/dist/*-py3-none-any.whl
	$(BIN)/python -m twine check --strict .cache/dist/*

# All that a release consists of, built, installed and used; needs root.
release-check: $(STAMP)-dev
	tests/fetch_tool.sh buildah
	$(BIN)/python -m tests.release

# Software bill of materials, from an environment with the server and nothing else.
SBOM := .cache/sbom
sbom: $(STAMP)-supply
	rm -rf $(SBOM) build
	$(PYTHON) -m venv $(SBOM)/env
	$(SBOM)/env/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[server]'
	rm -rf build
	$(BIN)/python -m deploy.supply.sbom $(SBOM)/env/bin/python $(SBOM)/dualstream.cdx.json
	@echo "wrote $(SBOM)/dualstream.cdx.json"

# Known vulnerabilities of all pinned versions; skipped with a message if no index can be reached.
audit: $(STAMP)-dev
	@if index=$$($(BIN)/python -m deploy.supply.advisories); then $(MAKE) --no-print-directory audit-by-$$index; fi

audit-by-%: $(STAMP)-supply
	$(BIN)/python -m deploy.supply.audit $*

# Documentation site, in .cache/site; a warning is an error.
docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf .venv .cache build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv

$(STAMP)-core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[server]'
	touch $@

$(STAMP)-compare: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[compare]'
	touch $@ $(STAMP)-core

$(STAMP)-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev]'
	touch $@ $(STAMP)-core

$(STAMP)-fuzz: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev,fuzz]'
	touch $@ $(STAMP)-dev $(STAMP)-core

$(STAMP)-supply: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev,supply]'
	touch $@ $(STAMP)-dev $(STAMP)-core

$(STAMP)-dist: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dist]'
	touch $@ $(STAMP)-core

$(STAMP)-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[server,docs]'
	touch $@ $(STAMP)-core

$(STAMP)-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev,bench]'
	touch $@ $(STAMP)-dev $(STAMP)-core
