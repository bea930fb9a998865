"""Unloads one engine while another is garbage, in ComfyUI's interpreter and folder. Argument: the pack's folder."""

import gc
import importlib.util
import sys

pack = sys.argv[1]
sys.argv = ["main.py", "--cpu"]
sys.path.insert(0, ".")

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
import comfy.model_management as mm  # noqa: E402

spec = importlib.util.spec_from_file_location("pack", f"{pack}/__init__.py", submodule_search_locations=[pack])
sys.modules["pack"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["pack"])
engines, patchers = importlib.import_module("pack.engine"), importlib.import_module("pack.nodes.comfy.patcher")


def load():
    config = engines.EngineConfig(engines.EMBEDDED, device="cpu", context=256)
    patcher = patchers.make_patcher(engines.Engine(config))
    mm.load_models_gpu([patcher])
    return patcher


def leave(patcher):
    """Drop the last reference outside a cycle, as after a node's error, whose traceback refers to its own frames."""
    frames = [patcher]
    frames.append(frames)


for allocations in (40, 80, 160, 320, 640):  # until the next collection
    garbage = load()
    kept = load()
    gc.collect()
    gc.set_threshold(allocations, 1000, 1000)
    leave(garbage)
    del garbage
    mm.unload_all_models()
    gc.set_threshold(700, 10, 10)
    gc.collect()
    assert mm.current_loaded_models == []
    assert not kept.engine.opened
print("unloaded")
