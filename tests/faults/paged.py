"""The pack's routes of ComfyUI's page, and its nodes as an API workflow calls them, as surfaces. ComfyUI is a fake."""

from __future__ import annotations

import asyncio
import importlib
import json
import pathlib
import random
import sys

import torch

from ...engine import HiggsError, Voice
from ...engine.voice.clip import BUILT_IN_CLIPS
from ..unit.nodes.conftest import Asked, FakeEngine, comfy_modules
from . import mutations
from .samples import CUES, LINES, NAMES, PAUSES, SCRIPT, SHEETS, SRT

_LINK = "link to"  # key of an input that another node gives
_MODEL, _VOICE, _AUDIO = ({_LINK: name} for name in ("model", "voice", "audio"))
_SPEAKING = {
    "model": _MODEL,
    "seed": 3,
    "temperature": 0.7,
    "retries": 1,
    "scene": "A room.",
    "pronunciations": "a = b",
}
_WORDS = '{"words": [{"word": "Hi", "start": 0.0, "end": 0.4, "speaker": "", "method": "attention"}]}'
_NODES = [
    ("speak.HiggsTTSSpeak", {**_SPEAKING, "text": "Hi [pause 1] there.", "voice": _VOICE, "srt_words": 2}),
    ("dialogue.HiggsTTSDialogue", {**_SPEAKING, "script": "Anna: Hi.\nTom: No.", "voices": {"voice_1": _VOICE}}),
    ("lines.HiggsTTSLines", {**_SPEAKING, "lines": SHEETS[0], "takes": 2, "folder": "lines", "format": "wav"}),
    ("subtitles.HiggsTTSSubtitles", {**_SPEAKING, "srt": SRT, "voices": {"voice_1": _VOICE}, "translated": False}),
    ("lip_sync.HiggsTTSLipSync", {"words": _WORDS, "audio": _AUDIO, "fps": 25.0, "speaker": ""}),
    ("voice.HiggsTTSVoice", {"model": _MODEL, "audio": _AUDIO, "transcript": "A.", "start": 0.0, "length": 0.0,
     "clip": "the audio input"}),
    ("voice_files.HiggsTTSSaveVoice", {"voice": _VOICE, "name": "my voice", "overwrite": False}),
    ("voice_files.HiggsTTSLoadVoice", {"voice": "d.safetensors", "model": _MODEL}),
    ("book.HiggsTTSBook", {**_SPEAKING, "book": "the text below", "text": "One.\n\nTwo.", "format": "wav"}),
]  # fmt: skip
_REFUSED = [  # as their files and servers are missing
    ("load.HiggsTTSLoadModel", {"model": "a model", "device": "cpu", "dtype": "auto", "context": 512}),
    ("lora.HiggsTTSLoadLoRA", {"model": _MODEL, "name": "a/b", "strength": 1.0, "partial": False}),
    ("remote.HiggsTTSServer", {"addresses": "127.0.0.1:9", "model": "m", "key_variable": "", "calls": 2}),
    ("transcribe.HiggsTTSTranscribe", {"audio": _AUDIO, "whisper": "none", "start": 0.0, "length": 0.0}),
]
_PAGES = [
    {"path": "voices", "query": {"model": "a model"}},
    {"path": "voice", "query": {"name": "built-in/amber.flac"}},
    {"path": "tags", "query": {"model": ""}},
    {"path": "runs", "query": {"client": "me", "workflow": "w"}},
    {"path": "runs/{run}", "query": {"version": "-1", "revision": "0", "outline": "0", "edition": "0", "words": "0"}},
    {"path": "runs/{run}/samples", "query": {"revision": "0", "start": "0", "stop": "900"}},
    {"path": "clip", "query": {"name": "me.wav"}},
    {"path": "clip/sound", "query": {"name": "me.wav", "start": "0", "length": "1.5"}},
    {"path": "clip/checks", "body": {"clip": "me.wav", "start": 0, "length": 1.5, "transcript": "Hi."}},
    {"path": "clip/save", "body": {"clip": "me.wav", "start": 0, "length": 1.5, "transcript": "Hi.", "name": "me"}},
    {"path": "listen", "body": {"client": "me", "on": True}},
    {"path": "lines", "body": {"lines": SHEETS[0], "id": "a", "seed": 4}},
    *({"path": "text", "body": {"kind": kind, "text": text, "model": "", "settings": {"chunk_seconds": 20, "seed": 3}}}
      for kind, text in (("script", SCRIPT), ("srt", SRT), ("lines", SHEETS[0]), ("text", "Hi. [pause 1]"))),
]  # fmt: skip


def pages() -> list[bytes]:
    """Return a request of each route."""
    return [json.dumps(asked).encode() for asked in _PAGES]


def nodes() -> list[bytes]:
    """Return the inputs of each node."""
    return [json.dumps({"node": node, "inputs": inputs}).encode() for node, inputs in _NODES]


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Change a request's or a node's values, and texts also by their grammar."""
    held = json.loads(data)
    if "node" in held and rng.random() < 0.25:
        node, inputs = rng.choice(_REFUSED)
        held = {"node": node, "inputs": dict(inputs)}
    part = held.get("inputs", held.get("body", held.get("query")))
    texts = [name for name, value in part.items() if isinstance(value, str) and len(value) > 2]
    if texts and rng.random() < 0.4:
        name = rng.choice(texts)
        part[name] = mutations.text_of(rng, part[name], (*NAMES, *PAUSES, *CUES, *LINES))[:300_000]
        return json.dumps(held).encode()
    kept = json.dumps(part).encode()
    if rng.random() < 0.1 and "body" in held:
        return json.dumps({**held, "raw": mutations.bytes_of(rng, kept).hex()}).encode()
    try:
        changed = json.loads(mutations.json_of(rng, kept))
    except (ValueError, RecursionError):
        changed = [kept.decode()]
    return json.dumps({name: changed if value is part else value for name, value in held.items()}).encode()


class Paged:
    """run(data, folder) and warm(folder) of both surfaces."""

    shown = ""  # the run that the page shows

    def warm(self, folder: pathlib.Path) -> None:
        """Import the nodes beside a fake ComfyUI, and speak once."""
        sys.modules.update(modules := comfy_modules(folder))
        self._server = modules["server"]
        for name in ("models/voices", "models/loras", "input", "output", "temp", "user"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        voice = Voice(torch.zeros(50, 8, dtype=torch.int64), "One.")
        voice.save(folder / "models" / "voices" / "d.safetensors")
        instance = self._server.PromptServer.instance
        instance.client_id, instance.last_node_id, instance.sockets = "me", "7", {"me": object()}
        self._load("page.routes").register()
        self._given = {"model": self._load("comfy.patcher").make_patcher(FakeEngine()), "voice": voice}
        self._given["model"].model.label, self._given["model"].model.warnings = "higgs", ()
        self._given["audio"] = {"waveform": torch.rand(1, 1, 48_000) - 0.5, "sample_rate": 24_000}
        self._ask({"path": "listen", "body": {"client": "me", "on": True}})
        self._load("speak").HiggsTTSSpeak.execute(self._given["model"], "Hi")
        assert self._load("page.live_sound").settle(60)
        self.shown = self._server.sent[0][1]["id"]
        assert (BUILT_IN_CLIPS / "amber.flac").is_file()

    def run(self, data: bytes, folder: pathlib.Path) -> object:
        """Answer a request, or run a node. Raises HiggsError if it is refused."""
        asked = json.loads(data)
        return self._execute(asked["node"], asked["inputs"]) if "node" in asked else self._ask(asked)

    def _load(self, name: str):
        return importlib.import_module(f"higgs_tts.nodes.{name}")

    def _ask(self, asked: dict) -> object:
        body = bytes.fromhex(asked["raw"]) if "raw" in asked else asked.get("body")
        query = asked.get("query", {})
        if not isinstance(query, dict):
            raise HiggsError("the query is not an object.")
        request = Asked(body, str(query.pop("run", self.shown)))
        request.query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in query.items()}
        answer = asyncio.run(self._server.routes[f"/higgs_tts/{asked['path']}"](request))
        told = answer.data if isinstance(answer.data, bytes) else json.dumps(answer.data)
        if answer.status >= 400:
            raise HiggsError(answer.data["error"])
        return answer.status, len(told or "")

    def _execute(self, name: str, inputs: object) -> object:
        module, _, kind = name.partition(".")
        node = getattr(self._load(module), kind)
        if not isinstance(inputs, dict):
            raise HiggsError("ComfyUI refuses inputs that are not an object.")
        given = self._as_comfyui(node, inputs)
        checked = node.__dict__.get("validate_inputs")
        if checked:
            names = checked.__func__.__code__.co_varnames[1 : checked.__func__.__code__.co_argcount]
            told = node.validate_inputs(**{one: given.get(one) for one in names if one in given})
            if told is not True:
                raise HiggsError(str(told))
        if kind == "HiggsTTSLines":
            given = {one: [value] for one, value in given.items()}
        if "fingerprint_inputs" in node.__dict__:
            node.fingerprint_inputs(**{one: value for one, value in given.items() if one != "model"})
        return node.execute(**given)

    def _as_comfyui(self, node, inputs: dict) -> dict:
        """Return the values that ComfyUI gives a node. Raises HiggsError for those that it refuses itself."""
        given = {}
        for socket in node.define_schema().inputs:
            name, value = socket.args[0], inputs.get(socket.args[0])
            if name not in inputs:
                if not getattr(socket, "optional", False):
                    raise HiggsError(f"ComfyUI refuses a workflow without the required input {name}.")
                continue
            given[name] = self._linked(value) if self._is_link(value) else _literal(socket, value, node)
        return given

    def _is_link(self, value: object) -> bool:
        return isinstance(value, dict) and isinstance(value.get(_LINK), str) and value[_LINK] in self._given

    def _linked(self, value: dict) -> object:
        return self._given[value[_LINK]]


def _literal(socket, value: object, node) -> object:
    """Convert and check a literal as execution.py of ComfyUI 0.33 does."""
    kinds = {"Int": int, "Float": float, "String": str, "Boolean": bool}
    kind = getattr(type(socket), "kind", "")
    if kind == "Autogrow":  # its values come one by one, each linked
        return {name: one for name, one in value.items() if one is None} if isinstance(value, dict) else None
    try:
        value = kinds.get(kind, lambda same: same)(value)
    except (ValueError, TypeError, OverflowError):
        raise HiggsError("ComfyUI refuses a literal of another type.") from None
    if kind in ("Int", "Float") and not getattr(socket, "min", value) <= value <= getattr(socket, "max", value):
        raise HiggsError("ComfyUI refuses a number out of its range.")
    is_checked = "validate_inputs" in node.__dict__ and socket.args[0] in node.validate_inputs.__code__.co_varnames
    if kind == "Combo" and not is_checked and value not in socket.options:
        raise HiggsError("ComfyUI refuses a choice that is not in the list.")
    return value
