"""For tests: what ComfyUI's memory management holds, another model that needs room, and audio no node should make."""

import gc
import json

import comfy.model_management as mm
import torch
from aiohttp import web
from comfy.model_patcher import ModelPatcher
from server import PromptServer


def open_engines() -> int:
    """How many engines anything in the process still holds open."""
    gc.collect()
    return sum(item.opened for item in gc.get_objects() if hasattr(type(item), "planned_bytes"))


@PromptServer.instance.routes.get("/higgs_probe")
async def state(request):
    entries = [entry for entry in mm.current_loaded_models if entry.model is not None]
    loaded = [entry.model_loaded_memory() for entry in entries if type(entry.model).__name__ == "HiggsPatcher"]
    return web.json_response({"open": open_engines(), "loaded": loaded})


class Pressure:
    """Another model that wants the whole device, as seen by ComfyUI: nothing is free."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"audio": ("AUDIO",)}}

    def run(self, audio):
        before = open_engines()
        other = ModelPatcher(torch.nn.Linear(8, 8), torch.device("cpu"), torch.device("cpu"))
        real = mm.get_free_memory
        mm.get_free_memory = lambda *args, torch_free_too=False: (0, 0) if torch_free_too else 0
        try:
            mm.free_memory(other.model_size(), torch.device("cpu"))
            mm.load_models_gpu([other])
        finally:
            mm.get_free_memory = real
        return {"ui": {"text": [json.dumps({"before": before, "after": open_engines()})]}}


class BadAudio:
    RETURN_TYPES, FUNCTION, CATEGORY = ("AUDIO",), "run", "probe"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": (["none", "nan", "two clips"],)}}

    def run(self, kind):
        if kind == "none":
            return (None,)
        wave = torch.full([2 if kind == "two clips" else 1, 1, 48000], 0.1)
        if kind == "nan":
            wave[0, 0, 100] = float("nan")
        return ({"waveform": wave, "sample_rate": 24000},)


NODE_CLASS_MAPPINGS = {"HiggsProbePressure": Pressure, "HiggsProbeBadAudio": BadAudio}
