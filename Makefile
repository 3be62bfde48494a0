# `make demo` and `make test` set everything up on a fresh machine; the stamp makes them quick afterwards.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: install demo test lint types check clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(VENV)/bin/eigenshot demo --out demo

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)
	$(VENV)/bin/mypy

check: test lint types

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
