"""Test nodes and routes: the state of ComfyUI's memory management, a rival model, and faulty outputs."""

import asyncio
import gc
import json
import logging
import pathlib
import sys
import threading
import time
from dataclasses import replace

import comfy.model_management as mm
import folder_paths
import numpy as np
import torch
from aiohttp import web
from comfy.model_patcher import ModelPatcher
from server import PromptServer

_unloading, _free_memory = threading.RLock(), mm.free_memory


def free_memory(*args, **kwargs):
    """ComfyUI's own, which unloads models by their places in a list: no model may be collected meanwhile."""
    with _unloading:
        return _free_memory(*args, **kwargs)


mm.free_memory = free_memory


def open_engines() -> int:
    """Return the number of engines that anything in the process holds open."""
    with _unloading:
        gc.collect()
    return sum(item.opened for item in gc.get_objects() if hasattr(type(item), "planned_bytes"))


def state() -> dict:
    """Return the number of open engines, and (bytes held, total bytes) of each in ComfyUI's register."""
    open_now = open_engines()  # first: it collects what would leave the register
    entries = [entry for entry in mm.current_loaded_models if entry.model is not None]
    entries = [entry for entry in entries if type(entry.model).__name__ == "HiggsPatcher"]
    return {
        "open": open_now,
        "loaded": [entry.model_loaded_memory() for entry in entries],
        "whole": [entry.model_memory() for entry in entries],
        "missing": [entry.model_memory_required(entry.device) for entry in entries],
    }


@PromptServer.instance.routes.get("/higgs_probe")
async def show(request):
    return web.json_response(state())


@PromptServer.instance.routes.get("/higgs_probe/keep")
async def keep(request):
    """Keep the exception of each cancel from now on, and with it every frame that it passed."""
    real = mm.throw_exception_if_processing_interrupted

    def throw():
        try:
            real()
        except BaseException as error:
            keep.last = error
            raise

    mm.throw_exception_if_processing_interrupted = throw
    logging.getLogger("higgs_tts").debug("probe: a cancel is kept")  # shows that such messages are told
    return web.json_response({})


@PromptServer.instance.routes.get("/higgs_probe/bad")
async def bad(request):
    """Make the next attempt count as bad."""
    (attempts,) = [module for name, module in sys.modules.items() if name.endswith("engine.speech.attempts")]
    real = attempts.judge

    def judge(sequence, wav):
        attempts.judge = real
        return ("silence",)

    attempts.judge = judge
    return web.json_response({})


@PromptServer.instance.routes.get("/higgs_probe/doubt")
async def doubt(request):
    """Make these words of the next speech's first chunk count as said again, until it has other codes."""
    kind, sentence = request.query["kind"], int(request.query["sentence"])
    words = int(request.query["first"]), int(request.query["stop"])
    (check,) = [module for name, module in sys.modules.items() if name.endswith("engine.words.check")]
    real, seen = check.ChunkCheck.verdict, []

    def verdict(self, codes, ended=True):
        found = real(self, codes, ended)
        if found is not None and not seen:
            seen.append(codes.clone())
        if found is None or not torch.equal(codes, seen[0]):
            return found
        frames = [*found.starts, len(codes)][sentence : sentence + 2]
        planted = check.Doubt(kind, "these words", words, (frames[0], frames[0] + 9))
        passage = check.Passage((sentence, sentence + 1), tuple(frames), (planted,))
        return replace(found, passages=(passage,), heard=())

    check.ChunkCheck.verdict = verdict
    return web.json_response({})


@PromptServer.instance.routes.get("/higgs_probe/hour")
async def hour(request):
    """Stream so many seconds of noise, as if a node of this client had spoken them."""
    seconds, client = int(request.query["seconds"]), request.query["client"]
    (events,) = [module for name, module in sys.modules.items() if name.endswith("Higgs-TTS.nodes.page.events")]
    wav, server = torch.rand(24000) - 0.5, PromptServer.instance
    server.client_id, server.last_node_id = client, "2"

    def speak():
        with events.heard() as sound:
            for second in range(seconds):
                sound.hear(wav)
                sound.step(25 * second, 25 * seconds)
                time.sleep(0.002)
            sound.finish(wav.repeat(seconds))

    await asyncio.to_thread(speak)
    server.client_id = server.last_node_id = None
    return web.json_response({})


@PromptServer.instance.routes.get("/higgs_probe/slow")
async def slow(request):
    """Have each step of decoding take so many seconds more from now on."""
    (scheduler,) = [module for name, module in sys.modules.items() if name.endswith("engine.decode.scheduler")]
    if slow.seconds is None:
        real = scheduler.Scheduler.step

        def step(self):
            time.sleep(slow.seconds)
            return real(self)

        scheduler.Scheduler.step = step
    slow.seconds = float(request.query["seconds"])
    return web.json_response({})


slow.seconds = None


class Pressure:
    """A rival model that needs a little or all of the device. ComfyUI sees no free memory."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"audio": ("AUDIO",), "wanted": (["a little", "all"],)}}

    def run(self, audio, wanted):
        seen = [state()]
        device = mm.get_torch_device()
        other = ModelPatcher(torch.nn.Linear(8, 8), device, torch.device("cpu"))
        real = mm.get_free_memory
        mm.get_free_memory = lambda *args, torch_free_too=False: (0, 0) if torch_free_too else 0
        try:
            mm.free_memory(other.model_size() if wanted == "a little" else 1e12, device)
            mm.load_models_gpu([other])
        finally:
            mm.get_free_memory = real
        return {"ui": {"text": [json.dumps([*seen, state()])]}}


class Clone:
    """Clones a model, as nodes that patch it do."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("HIGGS_TTS_MODEL",), "run", "probe"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("HIGGS_TTS_MODEL",)}}

    def run(self, model):
        return (model.clone(),)


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


class Dump:
    """Passes AUDIO through, after saving it as numbers."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "run", "probe", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"audio": ("AUDIO",)}}

    def run(self, audio):
        folder = pathlib.Path(folder_paths.get_output_directory())
        folder.mkdir(exist_ok=True)
        np.save(folder / "dump.npy", audio["waveform"].numpy())
        return {}


class Fail(Dump):
    """Does the same, and fails."""

    def run(self, audio):
        super().run(audio)
        raise RuntimeError("probe: it fails")


class Lines:
    """The lines of a text as a list."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_IS_LIST = ("STRING",), "run", "probe", (True,)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {"multiline": True})}}

    def run(self, text):
        return (text.splitlines(),)


NODE_CLASS_MAPPINGS = {
    "HiggsProbeFail": Fail,
    "HiggsProbeDump": Dump,
    "HiggsProbePressure": Pressure,
    "HiggsProbeClone": Clone,
    "HiggsProbeBadAudio": BadAudio,
    "HiggsProbeLines": Lines,
}
