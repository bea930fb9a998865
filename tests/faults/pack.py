"""Import the pack as `higgs_tts`, as tests/conftest.py does. The scripts of this folder import this first."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("higgs_tts", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
sys.modules["higgs_tts"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
