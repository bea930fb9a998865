"""Import the pack as `higgs_tts`, as tests/conftest.py does. The scripts of this folder import this first."""

import importlib.util
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("higgs_tts", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
sys.modules["higgs_tts"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other
