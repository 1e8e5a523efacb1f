# Everything a person needs: `make run` to talk, `make test` to check. `make help` lists the rest.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# A test waits a good part of its time for a process or a timer. With three for each core it takes longer.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
SCHEDULES ?= 1000
CLUSTER_SCHEDULES ?= 200

.PHONY: help setup setup-dev run test test-postgres faults cluster-faults check format docs ui pictures bench lock clean

help:
	@echo "make run      set up, start the Gateway and open a chat (without a terminal: serve and print the URL)"
	@echo "make test     set up and run every test"
	@echo "make test-postgres  run tests/flows with sessions in PostgreSQL"
	@echo "make faults   kill the Gateway and lock its ledger on SCHEDULES (1000) random schedules; nothing may be lost, repeated or left open"
	@echo "make cluster-faults kill, pause and cut off nodes on CLUSTER_SCHEDULES (200) schedules; restart, lock and fail over their database"
	@echo "make check    formatting, lint and types"
	@echo "make docs     write the reference pages of docs/ from the code"
	@echo "make ui       build the web page from ui/ into src/openclaw/web (needs node)"
	@echo "make pictures take the pictures of the web page and of the terminal again (needs chromium and tmux)"
	@echo "make bench    measure the speed figures and print them beside their bars"
	@echo "make setup    only create $(VENV) and install"
	@echo "make lock     renew the lock files after changing pyproject.toml"

setup: $(VENV)/.ready

setup-dev: $(VENV)/.ready-dev

$(VENV)/.ready: requirements.lock pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup requirements.lock
	@touch $@

$(VENV)/.ready-dev: requirements-dev.lock pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup requirements-dev.lock
	@touch $@ $(VENV)/.ready

run: setup
	@scripts/run

test: setup-dev
	@$(BIN)/python -m compileall -q -j 0 src
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-postgres: setup-dev
	OPENCLAW_TEST_STORAGE=postgres $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/flows $(PYTEST_ARGS)

faults: setup-dev
	$(BIN)/python -m tests.faults.kill_schedules $(SCHEDULES)

cluster-faults: setup-dev
	$(BIN)/python -m tests.faults.cluster_schedules $(CLUSTER_SCHEDULES)

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup-dev
	$(BIN)/python -m openclaw.config.reference docs/configuration.md
	$(BIN)/python -m scripts.reference

ui: ui/node_modules/.package-lock.json
	cd ui && node build.mjs

ui/node_modules/.package-lock.json: ui/package-lock.json
	cd ui && npm ci --ignore-scripts --no-audit --no-fund

pictures: setup-dev
	$(BIN)/python -m tests.browser.pictures
	$(BIN)/python -m scripts.record

bench: setup-dev
	$(BIN)/python -m bench

lock:
	$(BIN)/python -m scripts.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
