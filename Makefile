# gpubox: `make demo` shows the kit at work, `make test` tests it, `make check` is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAIN := .venv-train

.PHONY: demo test check venv lock docs

venv: $(VENV)/.ready

# What the kit itself needs; on a bare Debian or Ubuntu root gets python3-venv first.
$(VENV)/.kit: requirements.lock
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing python3-venv" \
	       && apt-get -qq update && apt-get -qq install -y --no-install-recommends python3-venv >/dev/null; } \
	  || { echo "The kit needs Python 3.10 or newer with venv: sudo apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	touch $@

$(VENV)/.ready: $(VENV)/.kit requirements-dev.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	touch $@

# TensorFlow, for the tests of the workload alone: the laptop's environment has none.
$(TRAIN)/.ready: images/requirements-cpu.lock tests/workload/requirements.lock
	$(PYTHON) -m venv $(TRAIN)
	$(TRAIN)/bin/python -m pip install --quiet --require-hashes -r images/requirements-cpu.lock
	$(TRAIN)/bin/python -m pip install --quiet --require-hashes -r tests/workload/requirements.lock
	touch $@

demo: $(VENV)/.kit
	$(BIN)/fab demo

# Says what it installs (root on a machine with apt), or what is missing and what it leaves out.
test:
	tests/system-packages
	-tests/engine start
	$(MAKE) --no-print-directory $(VENV)/.ready $(TRAIN)/.ready
	$(BIN)/python tests/run.py

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
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header tests/workload/requirements.in -c images/requirements-cpu.lock -o tests/workload/requirements.lock

docs: venv
	$(BIN)/python docs/make.py
