# make run and make test are all a newcomer needs; both set up everything on their own.
.PHONY: run test check install chaos bench bench-quick peers bench-promises demo docs protos format clean

PYTHON := .venv/bin/python
DATA ?= .data/run

# Set in many containers. Every process would compile all that it imports: half of what a broker's start takes.
unexport PYTHONDONTWRITEBYTECODE

run:
	@scripts/setup.sh broker
	@$(PYTHON) -m penstock.cli.main serve --data-dir $(DATA) --hints

install:
	@scripts/setup.sh all

test: install
	@$(PYTHON) -m pytest -q -n 2 --dist loadgroup tests

# Format, lint, types, imports, generated pages and the quick tests: what to run before every commit.
check: install
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports --no-cache
	@$(PYTHON) scripts/generate_docs.py --check
	@$(PYTHON) -m pytest -q -n 2 -m quick tests

# The full counts of the crash and fault tests; PENSTOCK_TEST_SEED=... repeats a run.
chaos: install
	@PENSTOCK_TEST_CHAOS=full $(PYTHON) -m pytest -q -s tests/chaos tests/simulation tests/spark/test_*_kill.py tests/spark/test_stores.py

# Beside Apache Kafka and others: every row into bench/results/latest.json. ARGS=--resume goes on with a run that was stopped.
bench: install peers
	@$(PYTHON) -m bench.side_by_side --page bench/results/latest.html $(ARGS)

# The main rows in under five minutes.
bench-quick: install peers
	@$(PYTHON) -m bench.side_by_side --quick --repeat 3 $(ARGS)

# Brokers to compare with; one that is out of reach is named as missing in the result.
peers:
	@scripts/fetch_peers.sh || [ $$? = 3 ]

# Penstock alone, beside the limits of this machine; fails when a promise is not kept.
bench-promises: install
	@$(PYTHON) -m bench $(ARGS)

# A broker, a click-stream, and Spark: archive, windows, audit. ARGS=--stay keeps the broker.
demo: install
	@$(PYTHON) scripts/demo.py $(ARGS)

docs: install
	@$(PYTHON) scripts/generate_docs.py

protos: install
	@scripts/generate_protos.sh

format: install
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .

clean:
	rm -rf .data build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
