"""Custom nodes: the device's free memory, and a rival model that wants all of it.

random_user.py and benchmarks/comfyui_unload.py copy this into custom_nodes. It uses only the name of the pack's
patcher.
"""

import hashlib
import json

import comfy.memory_management
import comfy.model_management as mm
import comfy.model_patcher
import comfy.ops
import torch
from aiohttp import web
from server import PromptServer

GIB = 1 << 30
WIDTH = 8192  # a layer of the rival takes 128 MiB
_kept = {}  # as a loader's cached output would: the rival, and the block that makes the card small


def free_bytes() -> list[int]:
    """Return the free bytes of each idle GPU, ComfyUI's own first."""
    if mm.get_torch_device().type != "cuda":
        return [0]
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    return [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]


def loaded_bytes() -> list[int]:
    """Return the bytes of each engine in ComfyUI's register."""
    entries = [entry for entry in mm.current_loaded_models if entry.model is not None]
    return [entry.model_loaded_memory() for entry in entries if type(entry.model).__name__ == "HiggsPatcher"]


@PromptServer.instance.routes.get("/higgs_bench")
async def state(request):
    return web.json_response(
        {
            "free": sum(free_bytes()),
            "registered": len(mm.current_loaded_models),
            "dynamic_vram": bool(comfy.memory_management.aimdo_enabled),
        }
    )


class RivalModel(torch.nn.Module):
    """A stack of ComfyUI's own layers, which ComfyUI streams and moves like any of its models."""

    def __init__(self, gib: float):
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)).div_(WIDTH**0.5).half()
        self.layers = torch.nn.ModuleList()
        for _ in range(max(1, round(gib * GIB / weight.nbytes))):
            layer = comfy.ops.disable_weight_init.Linear(WIDTH, WIDTH, bias=False, dtype=weight.dtype)
            layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def run_rival(gib: float) -> str:
    """Load `gib` GiB of weights through ComfyUI, compute with them, and return the result's hash."""
    if "rival" not in _kept:
        loader = comfy.model_patcher.CoreModelPatcher  # resolved late: Dynamic VRAM replaces it
        _kept["rival"] = loader(RivalModel(gib), mm.get_torch_device(), torch.device("cpu"))
    rival = _kept["rival"]
    mm.load_models_gpu([rival])
    result = rival.model(torch.ones(1, WIDTH, dtype=torch.float16, device=rival.load_device))
    return digest(result.float())


def digest(tensor) -> str:
    return hashlib.sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()[:16]


class Prepare:
    """Leave `room` GiB of the device free for good, and run the rival, if any, to load its libraries."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"room": ("FLOAT", {"max": 1e6}), "rival": ("FLOAT", {"max": 1e6})}}

    def run(self, room, rival):
        rest = free_bytes()[0] - int(room * GIB)
        if rest > 0:
            _kept["block"] = torch.empty(rest, dtype=torch.uint8, device=mm.get_torch_device())
        return {"ui": {"text": [run_rival(rival) if rival else ""]}}


class Pressure:
    """Between two speeches: a rival that needs more than is free, or a request for a little more than is free."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = ("STRING",), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "audio": ("AUDIO",),
                "text": ("STRING", {}),
                "kind": (["rival", "nudge"],),
                "rival": ("FLOAT", {"max": 1e6}),
            }
        }

    def run(self, audio, text, kind, rival):
        seen = {"before": loaded_bytes()}
        if kind == "rival":
            seen["rival"] = run_rival(rival)
        else:
            device = mm.get_torch_device()
            mm.free_memory(mm.get_free_memory(device) + (1 << 20), device)
        seen["after"] = loaded_bytes()
        return {"ui": {"text": [json.dumps(seen)]}, "result": (text,)}


class Result:
    """Return hashes of the node's samples, and the warnings in its info output."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        first = {"audio": ("AUDIO",), "info": ("STRING", {"forceInput": True})}
        return {"required": first, "optional": {name + "_2": kind for name, kind in first.items()}}

    def run(self, audio, info, audio_2=None, info_2=""):
        waves = [clip["waveform"] for clip in (audio, audio_2) if clip is not None]
        lines = (info + "\n" + info_2).splitlines()
        told = {
            "audio": [digest(wave) for wave in waves],
            "samples": [wave.shape[-1] for wave in waves],
            "warnings": [line for line in lines if line.startswith("Warning")],
        }
        return {"ui": {"text": [json.dumps(told)]}}


NODE_CLASS_MAPPINGS = {"HiggsBenchPrepare": Prepare, "HiggsBenchPressure": Pressure, "HiggsBenchResult": Result}
