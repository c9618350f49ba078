# A fresh machine needs Python >= 3.11 and make. The first call of any target sets the environment up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := repro tests
RULES := Snakefile workflow/rules/data.smk workflow/rules/run.smk workflow/rules/theory.smk \
         workflow/rules/tables.smk workflow/rules/papers.smk workflow/rules/site.smk

.PHONY: demo test lint setup lock clean
.DEFAULT_GOAL := demo

setup: $(READY)

# Exactly the locked packages, every one checked by its hash; then this checkout, editable. Compiled once here, since
# many images set PYTHONDONTWRITEBYTECODE, and then every job would compile torch and lightning again: 32 s, not 5.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# All papers at the smallest scale on text that ships inside an installed package; no network.
demo: $(READY)
	$(BIN)/snakemake --cores 2 --quiet rules --config tier=smoke
	@$(BIN)/repro report --tier smoke --verdicts

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check $(RULES)
	$(BIN)/snakemake --lint
	$(BIN)/mypy

# After a change of pyproject.toml. No index address may stand in the lock.
lock:
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --extra dev --python-version 3.11 \
	  --quiet pyproject.toml --output-file requirements.lock
	$(BIN)/python tools/environment.py

clean:
	rm -rf scratch .snakemake
