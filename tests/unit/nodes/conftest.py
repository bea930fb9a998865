"""A minimal fake ComfyUI, for cases that tests/comfyui cannot provoke without a GPU."""

from __future__ import annotations

import asyncio
import importlib
import json
import pathlib
import sys
import types

import pytest
import torch
from higgs_tts.engine import SpeechResult, SpokenTurn, Voice, Word

CPU = torch.device("cpu")


class Interrupted(BaseException):
    """ComfyUI's, which is not an Exception since 0.20."""


class Recorder:
    """Stands for io.Schema and every io.Type.Input or Output, and keeps its arguments."""

    def __init__(self, *args, **given):
        self.args = args
        self.__dict__.update(given)


def save_path(prefix, root):
    """Like ComfyUI's: (folder, name, next number, subfolder, prefix)."""
    prefix = prefix.replace("%year%", "2026")
    folder, name = (root / prefix).parent, pathlib.Path(prefix).name
    if not folder.resolve().is_relative_to(root.resolve()):
        raise Exception("**** ERROR: Saving image outside the output folder is not allowed.")
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name[len(name) + 1 :].split("_")[0]) for path in folder.glob(f"{name}_*")]
    return str(folder), name, max(numbers, default=0) + 1, "", prefix


def socket_type(name):
    return types.SimpleNamespace(
        Input=type("Input", (Recorder,), {"kind": name}), Output=type("Output", (Recorder,), {"kind": name})
    )


class FakePatcher:
    """The parts of ModelPatcher that ours builds on, as in ComfyUI 0.18 and 0.33."""

    def __init__(self, model, load_device, offload_device, size=0, weight_inplace_update=False):
        self.model, self.size = model, size
        self.load_device, self.offload_device, self.parent = load_device, offload_device, None
        self.on_detach, self.model.device = [], offload_device

    def is_dynamic(self):
        return False

    def model_size(self):
        return self.size

    def clone(self):
        clone = type(self)(self.model, self.load_device, self.offload_device, self.model_size())
        clone.parent = self
        return clone

    def patch_model(self, device_to=None, load_weights=True):
        self.model.to(device_to).device = device_to
        return self.model

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        self.model.to(device_to).device = device_to

    def detach(self, unpatch_all=True):
        if unpatch_all:
            self.unpatch_model(self.offload_device, unpatch_weights=unpatch_all)
        for callback in self.on_detach:
            callback(self, unpatch_all)
        return self.model

    def __del__(self):
        self.detach(unpatch_all=False)


class FakeEngine:
    """Counts the calls it gets. Has weights of 700 bytes, and 300 that `trim` frees."""

    device, planned_bytes, encoder_bytes, fingerprint = CPU, 1000, 300, "fake"
    card, kept, context, model = types.SimpleNamespace(one_voice=False), None, 512, "fake"

    def __init__(self, fails=None):
        self.opened, self.trimmed, self.fails, self.calls = False, False, fails, []
        self.planner = self  # both are played by this fake

    @property
    def held_bytes(self):
        return (700 if self.trimmed else 1000) if self.opened else 0

    def open(self):
        if self.opened:
            return
        self.calls.append("open")
        if self.fails:
            raise self.fails
        self.opened, self.trimmed = True, False

    def trim(self):
        self.calls.append("trim")
        freed = 300 if self.opened and not self.trimmed else 0
        self.trimmed = True
        return freed

    def close(self):
        self.calls.append("close")
        self.opened = False

    def speak(self, text, voice, params, scene=None, listener=None, retakes=None):
        self.calls.append((text, voice, params, scene))
        self.retakes = retakes
        self.trimmed = False
        wav, codes = torch.linspace(-0.5, 0.5, 1920), torch.zeros(2, 8, dtype=torch.int64)
        if listener.on_audio:
            listener.on_audio(torch.zeros(700))
            listener.on_restart("it fell silent")
            listener.on_audio(wav[:960])
        listener.on_frame(1, 2)
        chunk = SpokenTurn("", text, 0, len(wav))
        if listener.on_audio:
            listener.on_audio(wav[960:])
            listener.on_chunk(chunk, wav)
        return SpeechResult(
            wav,
            codes,
            elapsed=0.02,
            chunks=1,
            stopped="end of speech",
            warnings=("a warning",),
            how="by hand",
            said=(chunk,),
        )

    def words(self, speech):
        self.calls.append("words")
        return tuple(Word(chunk.text, 0.01, 0.07, method="attention") for chunk in speech.said)

    def speak_turns(self, turns, voices, params, scene=None, listener=None, reuse=True, even=True, retakes=None):
        self.retakes = retakes
        self.calls.append((turns, voices, params, scene, even))
        listener.on_frame(1, 2)
        spoken = tuple(SpokenTurn(turn.speaker, turn.text, 10 * at, 10 * at + 5) for at, turn in enumerate(turns))
        wav, codes = torch.ones(10 * len(turns)), torch.zeros(2, 8, dtype=torch.int64)
        return SpeechResult(wav, codes, 0.02, len(turns), "end of speech", how="by hand", turns=spoken, said=spoken)

    def read_as(self, text):
        return f"{text}, in words"

    def knows_tag(self, tag):
        return "speed" in tag

    def is_spoken(self, text):
        return any(map(str.isalnum, text))

    def encode_voice(self, wav, sample_rate, transcript=None, name=""):
        self.calls.append((tuple(wav.shape), sample_rate, transcript, name))
        return Voice(torch.zeros(5, 8, dtype=torch.int64), transcript, name)


def route(server, path):
    """Return the decorator of routes.get(path) and routes.post(path), which keeps the handler."""
    return lambda handler: server.routes.setdefault(path, handler)


def comfy_modules(base: pathlib.Path) -> dict:
    mm = types.ModuleType("comfy.model_management")
    mm.stop, mm.freed, mm.loads, mm.args = False, [], [], types.SimpleNamespace()
    mm.get_torch_device = lambda: CPU
    mm.minimum_inference_memory = lambda: 7
    mm.free_memory = lambda size, device: mm.freed.append((size, device))
    mm.processing_interrupted = lambda: mm.stop

    def throw():
        if mm.stop:
            mm.stop = False
            raise Interrupted

    def load_models_gpu(patchers):
        mm.loads += patchers
        for patcher in patchers:
            patcher.partially_load(patcher.load_device, 0.1)

    mm.throw_exception_if_processing_interrupted, mm.load_models_gpu = throw, load_models_gpu
    utils = types.ModuleType("comfy.utils")
    utils.bars = []
    utils.ProgressBar = lambda total, node_id=None: types.SimpleNamespace(
        update_absolute=lambda value, total=total: utils.bars.append((value, total))
    )
    model_patcher = types.ModuleType("comfy.model_patcher")
    model_patcher.ModelPatcher = FakePatcher
    comfy = types.ModuleType("comfy")
    comfy.model_management, comfy.utils, comfy.model_patcher = mm, utils, model_patcher
    cli_args = types.ModuleType("comfy.cli_args")
    cli_args.args = types.SimpleNamespace(disable_metadata=False)

    io = types.SimpleNamespace(
        **{name: socket_type(name) for name in ("Combo", "Int", "Float", "String", "Boolean", "Audio", "Image")},
        Autogrow=types.SimpleNamespace(Input=socket_type("Autogrow").Input, TemplateNames=Recorder),
        Custom=socket_type, Schema=Recorder, NodeOutput=Recorder, Input=object, NodeReplace=object,
        ComfyNode=type("ComfyNode", (), {"hidden": types.SimpleNamespace(unique_id="7")}),
        Hidden=types.SimpleNamespace(unique_id="UNIQUE_ID"),
    )  # fmt: skip
    latest = types.ModuleType("comfy_api.latest")
    latest.io, latest.ui = io, types.SimpleNamespace(PreviewText=Recorder)
    latest.ComfyExtension = type("ComfyExtension", (), {})

    paths = types.ModuleType("folder_paths")
    paths.models_dir = str(base / "models")
    paths.get_temp_directory = lambda: str(base / "temp")
    paths.get_output_directory = lambda: str(base / "output")
    paths.get_save_image_path = lambda prefix, root: save_path(prefix, pathlib.Path(root))
    paths.get_input_directory = lambda: str(base / "input")
    paths.get_user_directory = lambda: str(base / "user")
    paths.folder_names_and_paths = {"higgs_tts": ([str(base / "disk")], set())}  # as a yaml file leaves it

    def add(name, path):
        known, _ = paths.folder_names_and_paths.setdefault(name, ([], set()))
        if path not in known:
            known.append(path)

    paths.add_model_folder_path, paths.get_folder_paths = add, lambda name: paths.folder_names_and_paths[name][0]
    server = types.ModuleType("server")
    server.running = True
    loop = types.SimpleNamespace(is_running=lambda: server.running, call_soon_threadsafe=lambda call: call())
    server.sent, server.routes, server.told, server.queued = [], {}, [], []
    server.PromptServer = types.SimpleNamespace(
        instance=types.SimpleNamespace(
            loop=loop,
            client_id=None,
            last_node_id=None,
            last_prompt_id="a prompt",
            sockets={},
            prompt_queue=types.SimpleNamespace(get_current_queue_volatile=lambda: (server.queued, [])),
            send_progress_text=lambda text, node_id, sid=None: server.told.append((text, node_id, sid)),
            send_sync=lambda *message: server.sent.append(message),
            routes=types.SimpleNamespace(get=lambda path: route(server, path), post=lambda path: route(server, path)),
        )
    )
    package = types.ModuleType("comfy_api")
    web = types.SimpleNamespace(
        Request=object,
        RequestPayloadError=type("RequestPayloadError", (Exception,), {}),
        Response=lambda body=None, content_type="", status=200: types.SimpleNamespace(status=status, data=body),
        json_response=lambda data, status=200: types.SimpleNamespace(status=status, data=data),
        FileResponse=lambda path, headers: types.SimpleNamespace(status=200, data=path.read_bytes(), headers=headers),
    )
    aiohttp = types.ModuleType("aiohttp")
    aiohttp.web = web
    found = {
        "aiohttp": aiohttp,
        "server": server,
        "comfy": comfy,
        "comfy_api": package,
        "comfy_api.latest": latest,
        "folder_paths": paths,
    }
    return {**found, **{module.__name__: module for module in (mm, utils, model_patcher, cli_args)}}


@pytest.fixture
def comfy(monkeypatch, tmp_path):
    """ComfyUI's modules, with models/ under tmp_path. Nodes are imported again with them and unloaded afterwards."""
    monkeypatch.setattr("higgs_tts.engine.checkpoint.discover.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    modules = comfy_modules(tmp_path)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield modules
    for name in [name for name in sys.modules if name.startswith("higgs_tts.nodes")]:
        del sys.modules[name]


@pytest.fixture
def load_module(comfy):
    """load_module("speak") -> nodes/speak.py"""
    return lambda name: importlib.import_module(f"higgs_tts.nodes.{name}")


@pytest.fixture
def schemas(comfy):
    """{node id: schema} of every node, as ComfyUI reads them."""
    nodes = asyncio.run(importlib.import_module("higgs_tts.nodes").make_extension().get_node_list())
    return {schema.node_id: schema for schema in (node.define_schema() for node in nodes)}


class Asked:
    """A request as the routes see it. body: bytes as they are, an error that reading them raises, or JSON."""

    def __init__(self, body=None, run="", **query):
        self.match_info, self.query = {"run": run}, {name: str(value) for name, value in query.items()}
        self._body = body if isinstance(body, (bytes, Exception)) else json.dumps(body).encode()
        self.content = self

    async def iter_chunked(self, size):
        if isinstance(self._body, Exception):
            raise self._body
        for at in range(0, len(self._body), size):
            yield self._body[at : at + size]


@pytest.fixture
def server_routes(comfy, load_module):
    """server_routes(path, body, **query) -> our route's answer."""
    load_module("page.routes").register()
    routes = comfy["server"].routes
    return lambda path, *given, **asked: asyncio.run(routes[f"/higgs_tts/{path}"](Asked(*given, **asked)))


@pytest.fixture
def make_engine():
    return FakeEngine


@pytest.fixture
def interrupted():
    return Interrupted


@pytest.fixture
def library(tmp_path):
    """models/voices with clips, transcripts, a saved voice and an unrelated file."""
    root = tmp_path / "models" / "voices"
    (root / "team").mkdir(parents=True)
    for name in ("b.wav", "a.mp3", "team/c.flac", "e.safetensors", "b.txt", "a.txt", "a.reference.txt", "notes.md"):
        (root / name).write_text(f"said in {name}")
    Voice(torch.zeros(5, 8, dtype=torch.int64)).save(root / "d.safetensors")
    return root
