# The developer commands. Each one first makes the environment it needs, from python3 (3.10 or newer, with venv), a C++
# compiler and pip alone.
#
#   make test                     the tests this machine can run, without those marked long
#   make test ARGS="-k norm"      arguments for pytest, the demo or the benchmarks; tests they name run, long or not
#   make test-all                 every test this machine can run
#   make dev FAMILY=rms_norm      build what an edit of one kernel family changed; without FAMILY, of all of them
#   make examples                 the packages in examples/, each built, installed and tested in a clean environment
#   make release-local            every wheel of a release, in dist/release
#   TORCH=2.11.0 make test        another torch than the one in constraints.txt, in an environment of its own
#   TORCH=2.9.1 make prove-classic   the host library in that torch, kept in docs/evidence
#   PYTHON=python3.12 make test   another interpreter, likewise
#   make env                      only the environment, so that the other commands need no network
#   make newcomer                 the README's commands on a stranger's machine, a row each; ARGS may name some of them
#   make mutate                   small changes of the Python parts: does a test notice?  ARGS="--count 200 --seed 7"
#   make tools                    only what `python -m tools` needs, without torch; in a workflow, found by later steps
#   make docs                     the documentation site, in build/docs, in an environment of its own without torch
#   make minutes                  everything that CI checks, on two cores; how long that takes, and make test of it
#   make act                      the release workflow on this machine, one wheel of it, as a dry run

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?=
ARGS ?=
FAMILY ?=
FREE_THREADED ?= python3.13t
FREE_VENV := .venv-free-threaded

# One environment per interpreter and torch, so that an override never changes what the plain command uses.
VENV ?= .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))$(if $(TORCH),-torch$(TORCH))
BIN := $(VENV)/bin
TOOLS := .venv-tools
DOCS := .venv-docs
READY := $(VENV)/.ready
CPP_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

.PHONY: help test test-all demo dev examples bench env newcomer faults hostile adopted adopted-newest sanitize free-threaded fuzz mutate minutes release-local prove-classic lint format tools docs act

help:
	@sed -n '/^# The developer/,/^$$/s/^# \{0,1\}//p' Makefile
	@echo "targets: test test-all demo dev examples bench env newcomer faults hostile adopted adopted-newest sanitize free-threaded fuzz mutate minutes release-local prove-classic lint format tools docs act"

test: $(READY)
	$(BIN)/python -m pytest -n auto $(ARGS)

# A run leaves out the long tests unless it names something, and this one names them all.
test-all: $(READY)
	$(BIN)/python -m pytest -n auto tests $(ARGS)

demo: $(READY)
	$(BIN)/python examples/demo.py $(ARGS)

# A family after an edit of its sources: make dev FAMILY=rms_norm; with PRECAST_DEBUG=1 for a debugger.
dev: $(READY)
	@$(BIN)/python -m tools dev $(FAMILY) $(ARGS)

examples: $(READY)
	$(BIN)/python examples/downstream.py $(ARGS)

# Two other ways to load a kernel are peers of one benchmark, which says so where they cannot be had.
bench: $(READY)
	-$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt apache-tvm-ffi kernels
	$(BIN)/python -m benchmarks $(ARGS)

# Real faults, injected one by one, with what the user sees of each; ARGS may name some of them.
faults: $(READY)
	$(BIN)/python -m tests.faults $(ARGS)

# Every argument of every function and op made hostile; ARGS="--op rms_norm --device cuda": some, and on a GPU.
hostile: $(READY)
	$(BIN)/python -m tests.hostile $(ARGS)

# What is adopted in small models of each release of transformers; ARGS=installed: of the one in this environment.
adopted: $(READY)
	$(BIN)/python -m tests.adopt.releases $(ARGS)

# The same of the newest one, which it leaves in the environment.
adopted-newest: $(READY)
	$(BIN)/python -m pip install -qq --upgrade transformers
	$(BIN)/python -m tests.adopt.releases installed

# The GPU tests of the optimizers under every tool of compute-sanitizer; ARGS="-- tests/ops/test_rms_norm.py": others.
sanitize: $(READY)
	$(BIN)/python -m tests.gpu.sanitize $(ARGS)

# The last step is make test, whose summary says how long it took.
minutes:
	time taskset --cpu-list 0,1 .ci/run

env: $(READY)
	@echo '. $(BIN)/activate'

# It makes each environment by the commands that it tries, so it needs none itself.
newcomer:
	$(NEW_ENOUGH)
	$(PYTHON) -m tests.newcomer $(ARGS)

# What runs on a Python without its global lock, in an environment of its own; the last torch for 3.13t is 2.12.0.
free-threaded: $(READY)
	test -e $(FREE_VENV)/.ready || { rm -rf $(FREE_VENV); $(FREE_THREADED) -m venv $(FREE_VENV); }
	test -e $(FREE_VENV)/.ready || $(FREE_VENV)/bin/python -m pip install -qq torch==$(or $(TORCH),2.11.0) ninja
	touch $(FREE_VENV)/.ready
	FREE_THREADED_PYTHON=$(abspath $(FREE_VENV))/bin/python $(BIN)/python -m pytest -m freethreaded $(ARGS)

# Coverage-guided fuzzing of what parses files; ARGS may be the seconds for each target. atheris is not on every Python.
fuzz: $(READY)
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt atheris
	$(BIN)/python -m tests.fuzz $(ARGS)

# Small changes of the Python parts, drawn at random, each of which a test must notice; ARGS="--coverage" prints the
# branches that no test takes. Only the operators of cosmic-ray are used, so what its own runner needs stays away.
mutate: $(READY)
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt coverage parso attrs
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --no-deps cosmic-ray
	$(BIN)/python -m pytest -q -n0 tests/mutation -m mutants
	$(BIN)/python -m tests.mutation $(ARGS)

release-local: $(READY)
	$(BIN)/python -m tools release $(ARGS)

prove-classic: $(READY)
	$(BIN)/python -m tools prove-classic $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CPP_FILES),$(BIN)/clang-format --dry-run --Werror $(CPP_FILES))

act: $(READY)
	$(BIN)/python -m tests.workflows.act $(ARGS)

# A workflow looks for the programs of its later steps in the folders that this file lists.
tools: $(TOOLS)/.ready
	$(if $(GITHUB_PATH),echo $(CURDIR)/$(TOOLS)/bin >> $(GITHUB_PATH),@echo '. $(TOOLS)/bin/activate')

# A warning is an error. To read it: python3 -m http.server --directory build/docs
docs: $(DOCS)/.ready
	$(DOCS)/bin/python -m tools site $(ARGS)

format: $(READY)
	$(BIN)/python -m tools tables
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

# The environment: pinned tools, pinned torch, and this checkout as an editable install. `--no-build-isolation` because
# the pinned build backend is already there. Made again whenever one of the files that describe it changes.
NEW_ENOUGH = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"Python 3.10 or newer is needed, {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'

$(READY): constraints.txt pyproject.toml setup.py Makefile
	$(NEW_ENOUGH)
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m tools constraints --torch "$(TORCH)" > $(VENV)/constraints.txt
	@echo 'Installing torch and the tools that constraints.txt pins; this may take minutes.'
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --upgrade pip
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --group dev torch
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --group models
	@# A torchvision that was built for another torch would break transformers too.
	-$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --group vision
	@$(BIN)/python -c 'import timm' 2> /dev/null || $(BIN)/python -m pip uninstall -qq --yes timm torchvision
	$(BIN)/python -m pip install -qq -c $(VENV)/constraints.txt --no-build-isolation --editable .
	touch $@

# What needs no torch: the group of pyproject.toml that the folder is named after.
$(TOOLS)/.ready $(DOCS)/.ready: .venv-%/.ready: constraints.txt pyproject.toml Makefile
	$(NEW_ENOUGH)
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m tools constraints > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install -qq -c .venv-$*/constraints.txt --upgrade pip
	.venv-$*/bin/python -m pip install -qq -c .venv-$*/constraints.txt --group $*
	touch $@
