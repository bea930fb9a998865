PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
FLOOR := .floor

.PHONY: demo test lint clean

demo: $(VENV)/.ready
	@mkdir -p output
	OMP_NUM_THREADS=1 $(PY) -m engine say "Hello! Your computer can speak now, and this is how it sounds." --out output/demo.wav

test: lint $(FLOOR)/.ready
	$(PY) -m pytest
	PYTHONPATH=$(FLOOR) $(PY) -m pytest

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

$(VENV)/.ready: requirements.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet torch==2.11.0 torchaudio==2.11.0 -r requirements.txt pytest ruff
	@touch $@

# transformers 4.50.3 is the oldest that ComfyUI accepts; it lies ahead on the path, so one environment serves both.
$(FLOOR)/.ready: Makefile $(VENV)/.ready
	rm -rf $(FLOOR)
	$(PY) -m pip install --quiet --no-deps --target $(FLOOR) transformers==4.50.3 "tokenizers>=0.21,<0.22" "huggingface_hub<1.0"
	$(PY) -m pip install --quiet --target $(FLOOR) requests
	@touch $@

clean:
	rm -rf $(VENV) $(FLOOR) output
