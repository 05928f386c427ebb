# Two commands for a newcomer, `make demo` and `make test`; the rest is for developers.
# Everything is made inside this folder: .venv for Python, .servers for test servers.

PYTHON ?= python3
# For two cores: most tests wait. What is left to test-all runs more processes, and more would starve them.
WORKERS ?= 8
FEWER ?= 5
PYTEST_ARGS ?=
CHAOS_ARGS ?=
SIZE_ARGS ?=
PROFILE_ARGS ?=

# An engine has a folder of tests, a file of the contract, or both.
ENGINES = $(sort $(patsubst tests/contract/test_%.py,%,$(wildcard $(addprefix tests/contract/test_, \
  $(addsuffix .py,memory $(notdir $(patsubst %/,%,$(wildcard tests/stores/*/))))))))
ENGINE_TESTS = $(if $(filter $(E),$(ENGINES)),$(wildcard tests/contract/test_$(E).py \
  tests/contract/test_$(E)_*.py tests/stores/$(E)))

VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt $(wildcard requirements/*.txt)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TESTS := $(BIN)/python -m tests

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-all quick engine chaos mutants lint format type size profile bench changes dist docs \
  servers promtool browser clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.core ## leaders killed, frozen and cut off, on SQLite, beside a plain loop
	@$(BIN)/incumbent demo

test: $(VENV)/.test servers ## the tests, in some minutes; brings the servers that they need
	$(TESTS) thin $(WORKERS) $(PYTEST_ARGS)

test-all: test promtool $(VENV)/.browser $(VENV)/.helm $(VENV)/.docs $(VENV)/.cookbook browser ## and every product of store, fault and driver, and all seeds
	$(TESTS) rest $(FEWER) $(PYTEST_ARGS)

# For two cores, too: with fewer workers cores are idle.
quick: $(VENV)/.test ## what needs no server, in a minute and a half
	$(TESTS) quick $(WORKERS) $(PYTEST_ARGS)

check: lint type size quick ## what to run before a commit

engine: $(VENV)/.test servers ## the contract and all tests of one engine: make engine E=redis
	@test -n "$(ENGINE_TESTS)" || { echo "make engine E=NAME, of:$(ENGINES)" >&2; exit 2; }
	$(TESTS) thin $(FEWER) $(PYTEST_ARGS) $(ENGINE_TESTS)
	$(TESTS) rest $(FEWER) $(PYTEST_ARGS) $(ENGINE_TESTS) || test $$? = 5 # there may be no such tests

lint: $(VENV)/.lint ## style and defects
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint ## put the code into its style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

type: $(VENV)/.lint $(VENV)/.bench ## mypy --strict, tests included; and what users see of our types
	$(BIN)/mypy $(wildcard src tests examples benchmarks)
	$(BIN)/python -m tests.typing

size: $(VENV)/.core ## how much there is to read, against limits
	@$(BIN)/python -m tests.architecture.size $(SIZE_ARGS)

profile: $(VENV)/.test servers ## which files and functions a lease passes through, store by store
	@$(BIN)/python -m tests.architecture.roads $(PROFILE_ARGS)

changes: $(VENV)/.lint ## what the next release will say of changes/
	$(BIN)/towncrier build --draft --version next

chaos: $(VENV)/.test servers ## thousands of random faults on fleets; goes on where it ended
	$(BIN)/python -m tests.chaos --write docs/chaos.md $(CHAOS_ARGS)
	$(BIN)/python -m tests.chaos --shared --write docs/chaos.md $(CHAOS_ARGS)
	$(BIN)/python -m tests.quorum.campaign
	$(BIN)/python -m tests.combined --write docs/chaos.md

mutants: $(VENV)/.test servers ## which test dies of which changed line, for docs/proof.md
	$(BIN)/python -m tests.mutants --write docs/proof.md

bench: $(VENV)/.bench servers ## the table of the speed page
	$(BIN)/python -m benchmarks

dist: $(VENV)/.dist ## the wheel and the source package, in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

docs: $(VENV)/.docs ## the documentation, warnings as errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in $(CURDIR)/site/index.html (open it, or: python3 -m http.server -d site)"

servers: ## servers for the tests, unpacked under .servers
	@scripts/servers.sh

promtool: ## checks the alert rules in deploy/
	@scripts/servers.sh promtool

browser: ## a browser for `make test-all`, unpacked under .servers
	@scripts/servers.sh browser

clean: ## remove everything that make made
	rm -rf $(VENV) .servers .chaos.jsonl .chaos-shared.jsonl .quorum.jsonl .combined.jsonl .mutants.jsonl .drawn site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# One environment, filled as far as a target needs it; a stamp for each part.
$(VENV)/.made:
	@PYTHON="$(PYTHON)" scripts/venv.sh $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made $(PINS)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.lint $(VENV)/.docs $(VENV)/.browser $(VENV)/.helm $(VENV)/.dist: $(VENV)/.%: $(VENV)/.core
	$(INSTALL) -e '.[all]' -r requirements/$*.txt
	@touch $@

# Frameworks pin what the test suite has in other versions.
$(VENV)/.cookbook: $(VENV)/.core constraints-cookbook.txt
	@PYTHON="$(PYTHON)" scripts/venv.sh $(VENV)/cookbook
	$(VENV)/cookbook/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints-cookbook.txt -e '.[redis,postgresql,mysql,cron]' -r requirements/cookbook.txt
	@touch $@

# redlock-ng caps redis below 6 and works with the newest all the same, so it
# comes without its dependencies.
$(VENV)/.test $(VENV)/.bench: $(VENV)/.%: $(VENV)/.core
	$(INSTALL) -e '.[all]' -r requirements/$*.txt
	$(INSTALL) --no-deps redlock-ng
	@touch $@
