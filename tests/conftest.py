"""Imports the pack as `higgs_tts`, a package name of its own: with the repository's root on sys.path, `import nodes`
would find the pack's folder instead of ComfyUI's nodes.py."""

import importlib.util
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _import_pack():
    spec = importlib.util.spec_from_file_location(
        "higgs_tts", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["higgs_tts"] = module
    spec.loader.exec_module(module)


if "higgs_tts" not in sys.modules:
    _import_pack()

from higgs_tts.engine import config  # noqa: E402
from higgs_tts.engine.decode.executors import EXECUTORS  # noqa: E402
from higgs_tts.tests.traced import TracedExecutor  # noqa: E402

EXECUTORS["traced"] = TracedExecutor
config.RUNNERS += ("traced",)

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other
