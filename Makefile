# Everything runs in .venv, which the first target that needs it makes. `make help` tells the targets.
# Needed on the machine: Python 3.11 or later, make, a C compiler, a package registry for pip.

PYTHON ?= python3
PYTEST_ARGS ?=
# Not of OpenMP's variable, which nproc obeys.
WORKERS ?= $(shell env -u OMP_NUM_THREADS nproc)
SOAK_S ?= 60
ODD ?= all
BENCH ?=
ROUNDS ?= 5
SIZE ?= 2GiB
LARGE ?=
BENCH_DIR ?=
BENCH_PAGE ?=
BENCH_ARGS ?=
GPU_PYTHON ?= 3.12
CELLS ?=
# uv does not look into the folders of pyenv, only at its shims.
PYTHON_DIRS ?= $(subst $(eval ) ,:,$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/*/bin))
PYTHONS ?=

VENV := .venv
PEERS := build/peers
TRL := build/trl
TRACKERS := build/trackers
STATES := build/states
TORCHTITAN := build/torchtitan
VLLM := build/vllm
REMOTE := build/remote
RELEASE := build/release
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON_STAMP := $(VENV)/.python
DEMO_STAMP := $(VENV)/.demo
DOCS_STAMP := $(VENV)/.docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := ckstore cli migrations tests

# More threads than workers only fight each other, and results must not depend on the machine's cores.
export OMP_NUM_THREADS := 1

# Tests start hundreds of processes; each would compile all of ckstore again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test pytest shares lint format docs crash reliability endurance mutants soak odd bench bench-peers gpu-kit trl trackers torchtitan vllm javascript states remote matrix measures dist dist-check system-packages clean
.DELETE_ON_ERROR:

help: ## Tell the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

venv: $(STAMP) ## Make .venv with everything that development needs

$(PYTHON_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: ckstore needs Python 3.11 or later, and '$(PYTHON)' is" \
			"$$($(PYTHON) -V 2>/dev/null || echo 'not there')" >&2; \
		echo "hint: say which Python to use: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) with $$($(PYTHON) -V)"; \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "hint: on Debian and Ubuntu the venv module is in the package python3-venv" >&2; exit 1; }; }
	@$(PIP) install -qq -c constraints.txt hatchling editables
	@touch $@

# What a newcomer waits for: no tool of the tests, and of the site not even torch.
# torch comes first and alone: it is by far the largest, and a failure there should be seen as its own.
# No build isolation: hatchling is taken from the same pins as the rest.
$(DEMO_STAMP): $(PYTHON_STAMP)
	@echo "installing torch"
	@$(PIP) install -qq -c constraints.txt torch==2.13.0
	@echo "installing ckstore"
	@$(PIP) install -qq -c constraints.txt --no-build-isolation -e '.[torch]'
	@touch $@

$(DOCS_STAMP): $(PYTHON_STAMP)
	@echo "installing what builds the site"
	@$(PIP) install -qq -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

$(STAMP): $(DEMO_STAMP) $(DOCS_STAMP)
	@echo "installing the development tools"
	@$(PIP) install -qq -c constraints.txt --no-build-isolation -e '.[torch,dev,docs,blake3,compact,watch,remote,integrations]'
	@touch $@

system-packages:
	@tests/tools/system-packages

demo: $(DEMO_STAMP) ## Train, kill -9 in the middle of a save, resume, prove that nothing was lost
	@$(BIN)/ckstore demo

test: $(STAMP) system-packages ## Lint, and beside it the tests: of the long ones those that the commit draws (PYTEST_ARGS="-k name")
	@$(MAKE) --no-print-directory --keep-going -j 2 lint pytest

pytest: $(STAMP)
	$(BIN)/python -m tests.tools.second_try -p tests.tools.processor -p tests.tools.drawing -n $(WORKERS) --dist worksteal --durations=15 --junitxml=build/tests.xml -m 'not bench and not remote' $(PYTEST_ARGS)

shares: $(STAMP) ## Write the processor time of the latest whole `make test` into CONTRIBUTING.md and tests/tools/costs.txt
	$(BIN)/python -m tests.tools.shares build/tests.xml CONTRIBUTING.md
	$(BIN)/python -m tests.tools.drawing build/tests.xml

lint: $(STAMP) ## ruff, mypy, the import contracts and the check of prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.tools.prose
	@$(BIN)/python -m tests.tools.lines

format: $(STAMP) ## Let ruff format and fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The first variable gives each build of a commit one date, the second silences an advertisement of the theme.
docs: $(DOCS_STAMP) ## Build the documentation site into build/docs; a broken link or anchor is an error
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet -f docs/site/mkdocs.yml
	@echo "the first page is build/docs/index.html; the search needs a server: $(BIN)/python -m http.server -d build/docs"

crash: $(STAMP) system-packages ## Every kill point, every failing call, every power cut, every long test (long)
	@mkdir -p build && rm -f build/crash.jsonl
	CKSTORE_CRASH=full CKSTORE_CRASH_REPORT=$(CURDIR)/build/crash.jsonl $(BIN)/python -m pytest -p tests.tools.drawing -n $(WORKERS) --dist worksteal -m "crash or crossed or whole or property or drawn" \
		--timeout=3600 -o faulthandler_timeout=3600 --durations=15 $(PYTEST_ARGS)

reliability: ## Write what the latest `make crash` covered into the table of docs/reliability.md
	$(PYTHON) tests/tools/reliability build/crash.jsonl docs/reliability.md

endurance: $(STAMP) system-packages ## A thousand saves on a small disk, a file larger than memory, packs over 300 saves (long)
	CKSTORE_CRASH=full $(BIN)/python -m pytest -m endurance -s --timeout=3600 -o faulthandler_timeout=3600 $(PYTEST_ARGS)

mutants: $(STAMP) system-packages ## Take each guard of the protocol away and see who notices; writes docs/reliability-mutants.md
	$(BIN)/python -m tests.mutants.runner --write

soak: $(STAMP) system-packages ## Several processes at one store, SOAK_S=60 seconds each (longer: SOAK_S=3600)
	CKSTORE_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest -m soak -s $(PYTEST_ARGS)

odd: $(STAMP) system-packages ## The fast tests under python -O, -W error, umasks, another user, read-only stores, a jumping clock (ODD="clock non-root")
	PYTHON=$(CURDIR)/$(BIN)/python tests/tools/odd-environments $(ODD)

# With the peers that `make bench-peers` installed, if it did.
bench: BENCH_BIN = $(CURDIR)/$(if $(wildcard $(PEERS)/.installed),$(PEERS)/bin,$(BIN))
bench: $(STAMP) ## ckstore beside baselines and peers: BENCH="save load" ROUNDS=5 SIZE=2GiB LARGE=1 BENCH_DIR=… BENCH_PAGE=1 (long)
	PATH="$$PATH:$(BENCH_BIN)" $(BENCH_BIN)/python -m tests.bench $(BENCH) --rounds $(ROUNDS) --size $(SIZE) \
		$(if $(LARGE),--large) $(if $(BENCH_DIR),--dir $(BENCH_DIR)) $(if $(BENCH_PAGE),--page) $(BENCH_ARGS)

bench-peers: $(PEERS)/.installed ## Peers that are rarely installed, for `make bench`: tensorizer, Orbax, DVC, in an environment of their own

# Their own, since DVC wants other versions than development does; what .venv has is seen behind them.
$(PEERS)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(PEERS)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(PEERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(PEERS)/bin/python -m pip --disable-pip-version-check install -q tensorizer orbax-checkpoint dvc
	@command -v restic > /dev/null && command -v borg > /dev/null || echo "hint: restic and borg are the packages restic and borgbackup"
	@touch $@

gpu-kit: $(STAMP) ## Wheels and tests for a machine with a GPU and no network, in build/gpu-kit (GPU_PYTHON=3.12)
	@$(BIN)/python -m tests.gpu.kit build/gpu-kit --python $(GPU_PYTHON)

trl: $(TRL)/.installed ## TRL with a store: killed, resumed with one checkpoint and past a damaged newest, in an environment of its own
	$(TRL)/bin/python -m pytest tests/integrations/test_trl.py $(PYTEST_ARGS)

# Its own, since pandas comes with it, which sqlite-utils imports where it is: each process that saves would be slower.
$(TRL)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(TRL)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(TRL)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(TRL)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt trl==1.16.0
	@touch $@

trackers: $(TRACKERS)/.installed ## Checkpoints as references in the real W&B, MLflow and Trackio, without a network, in an environment of its own
	$(TRACKERS)/bin/python -m pytest tests/integrations/test_real_trackers.py tests/integrations/test_trackers.py $(PYTEST_ARGS)

$(TRACKERS)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(TRACKERS)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(TRACKERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(TRACKERS)/bin/python -m pip --disable-pip-version-check install -q wandb==0.31.0 mlflow-skinny==3.17.2 trackio==0.43.0
	@touch $@

javascript: $(STAMP) ## The reader in JavaScript, tests/format/javascript, which needs node and two packages from npm
	@mkdir -p build/javascript && cp tests/format/javascript/* build/javascript/
	npm ci --silent --prefix build/javascript
	$(BIN)/python -m pytest tests/format/test_javascript_reader.py $(PYTEST_ARGS)

vllm: $(VLLM)/0.25.0/.unpacked $(VLLM)/0.33.0/.unpacked ## The engine of examples/vllm_weights.py with the base class and the reloading of the real vLLM (0.7 GB of downloads)
	CKSTORE_VLLM=$(VLLM)/0.25.0 $(BIN)/python -m pytest tests/weights/test_engines.py $(PYTEST_ARGS)
	CKSTORE_VLLM=$(VLLM)/0.33.0 $(BIN)/python -m pytest tests/weights/test_engines.py $(PYTEST_ARGS)

$(VLLM)/%/.unpacked: $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check download -q --no-deps -d $(VLLM)/$* vllm==$*
	cd $(VLLM)/$* && $(CURDIR)/$(BIN)/python -c "import glob, zipfile; wheel = zipfile.ZipFile(*glob.glob('*.whl')); \
		wheel.extractall(members=[name for name in wheel.namelist() if name.endswith('.py')])" && rm *.whl
	@touch $@

torchtitan: $(TORCHTITAN)/.installed ## Save and resume with the checkpoint manager of the real torchtitan on gloo ranks, in an environment of its own
	$(TORCHTITAN)/bin/python -m pytest tests/integrations/test_torchtitan.py $(PYTEST_ARGS)

$(TORCHTITAN)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(TORCHTITAN)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(TORCHTITAN)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(TORCHTITAN)/bin/python -m pip --disable-pip-version-check install -q torchtitan==0.3.0
	@touch $@

states: $(STATES)/.installed ## The table of real states whole: also optimizers, modules and loaders of other packages, in an environment of its own
	CKSTORE_CRASH=full $(STATES)/bin/python -m pytest tests/states $(PYTEST_ARGS)

# Its own, since few projects have all of these; without what they need in turn, so that torch stays as it is in .venv.
$(STATES)/.installed: $(STAMP) tests/states/requirements.txt
	$(BIN)/python -m venv --clear $(STATES)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(STATES)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(STATES)/bin/python -m pip --disable-pip-version-check install -q --no-deps -r tests/states/requirements.txt
	@touch $@

remote: $(REMOTE)/.installed ## Remotes on real services of object storage: Ceph RGW, rclone, moto, Azurite, in an environment of its own
	CKSTORE_CI=1 $(REMOTE)/bin/python -m pytest tests/remote -m remote $(PYTEST_ARGS)

# Its own, since moto brings boto3 and half a web framework; Ceph comes from the distribution. Whatever .venv has is
# installed again, or the programs of a package would not be in this environment.
$(REMOTE)/.installed: $(STAMP) tests/remote/requirements.txt
	@command -v radosgw > /dev/null || { [ "$$(id -u)" -eq 0 ] && apt-get install -y -qq --no-install-recommends radosgw ceph-mon ceph-osd; } \
		|| echo "hint: Ceph RGW is in the packages radosgw, ceph-mon and ceph-osd"
	$(BIN)/python -m venv --clear $(REMOTE)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(REMOTE)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(REMOTE)/bin/python -m pip --disable-pip-version-check install -q --no-deps --ignore-installed -r tests/remote/requirements.txt
	npm install --silent --prefix $(REMOTE)/node azurite@3.37.0
	@touch $@

matrix: $(STAMP) system-packages ## Each Python and torch, the other packages at their lowest and newest versions; writes docs/compatibility.md (CELLS="…" PYTHON_DIRS=folder:folder)
	$(BIN)/python -m tests.matrix --workers $(WORKERS) --pythons "$(PYTHON_DIRS)" $(CELLS)

dist: $(RELEASE)/.installed ## Wheel, source package, SBOM and digests of HEAD in dist, from two builds that must be equal
	@$(RELEASE)/bin/python -m tests.packaging.dist dist

# Its own, since only a release needs what checks an SBOM.
$(RELEASE)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(RELEASE)
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> $$($(RELEASE)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(RELEASE)/bin/python -m pip --disable-pip-version-check install -q 'cyclonedx-python-lib[json-validation]==11.12.0'
	@touch $@

dist-check: $(STAMP) ## Install what is in dist into empty environments, with and without torch, and use it (PYTHONS="python3.11 python3.13")
	@$(BIN)/python -m tests.packaging.install_check dist build/dist-check $(PYTHONS:%=--python %)

measures: $(STAMP) ## The measuring tests alone, one after another
	$(BIN)/python -m pytest -m bench -s $(PYTEST_ARGS)

clean: ## Remove .venv, caches and built packages
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) docs -name __pycache__ -type d -prune -exec rm -rf {} +
