# gpubox: `make demo` shows the kit at work, `make test` tests it, `make check` is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check venv lock docs

venv: $(VENV)/.ready

$(VENV)/.ready: requirements-dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	touch $@

check: venv
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/hadolint --config .hadolint.yaml Dockerfile.cpu Dockerfile.gpu tests/box/Dockerfile
	$(BIN)/shellcheck --severity warning images/base images/lock images/install images/entrypoint tests/system-packages tests/engine .ci/run
	$(BIN)/python docs/make.py --check
	$(BIN)/vermin --quiet --no-tips --violations -t=3.8- deploy/onbox
	$(BIN)/python -m pytest -q -x -m "not engine and not box and not sshd and not tensorflow and not slow" tests --ignore tests/workload

lock:
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements-dev.lock

docs: venv
	$(BIN)/python docs/make.py
