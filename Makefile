# `make run` shows Paceline at work, `make serve` serves it, `make test` checks it. Each sets up .venv itself, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: run serve test lint types native tests docs asan clean

run: $(VENV)/installed
	$(BIN)/paceline demo

# SmolLM2 over HTTP, or where it cannot be fetched the bundled demo pair; prints the address of its playground.
# SERVE='MODEL --draft DRAFT --port 9000' for another.
serve: $(VENV)/installed
ifdef SERVE
	$(BIN)/paceline serve $(SERVE)
else
	@$(BIN)/paceline pull smollm2 > /dev/null && MODEL=smollm2 || echo "The bundled demo pair is served instead."; \
	exec $(BIN)/paceline serve $$MODEL
endif

test: lint
	$(MAKE) -j 2 types native
	$(MAKE) tests

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/installed-dev
	$(BIN)/mypy

# The native library where the tests look for it; a compiler has one core for over a minute.
native: $(VENV)/installed-dev
	PACELINE_CACHE=$(CURDIR)/.cache/paceline $(BIN)/python -c 'from paceline.native.build import library; library()'

# One thread per worker: torch would otherwise start as many as there are cores in each of them.
tests: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# The native library with every access to memory checked (AddressSanitizer), under the tests that call it: minutes.
asan: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m full tests/native/test_asan.py

# The documentation as a site, in site/.
docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[docs]'
	$(BIN)/zensical build --clean

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing Paceline into $(VENV); the first time this downloads torch."
	$(INSTALL) .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV)
