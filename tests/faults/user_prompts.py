"""Prompts of a random user: the templates with random valid settings, and inputs that must be refused."""

from __future__ import annotations

import copy
import io
import json
import pathlib
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import soundfile

from ...engine.tools.tiny import write_tiny
from ..comfyui.server import CHECKPOINT, TODAY, Outcome, add_checkpoints, add_clips, lay_out, read_workflow
from ..translations import LANGUAGES, MESSAGES, SERVER, translations, untranslated
from ..user_folders import add_user_files

HERE = pathlib.Path(__file__).parent
EMBEDDED, V2 = "embedded (small, English)", "higgs/v2"
SPEAKERS = ("HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook")
ADDRESS = "@server"  # stands for its address, which differs from run to run
# Rows [template, {node class: inputs}, parts of the error], and for some {node: what takes its place}.
REFUSED = json.loads((HERE / "refused_inputs.json").read_text(encoding="utf-8"))
REMEDY = re.compile(
    r"\b(Check|Choose|Connect|Create|Download|Enter|Export|Fix|Give|Move|Paste|Put|Remove|Save|Set|Start|Use|Write)\b"
)
NODE = re.compile(r"([\w.]+ - )?Higgs [\w ]+: ")
_MESSAGES = [keys[-1] for keys in translations(LANGUAGES[0]) if keys[:3] in (SERVER, MESSAGES)]
TRAINING = "training"  # takes minutes, so it is only refused
TEMPLATES = sorted(path.stem for path in (TODAY / "api").glob("*.json") if path.stem != TRAINING)
IN_FOLDERS = ("book", "lines")  # templates that write files instead of a clip
LONG = 3  # times the usual length, in words or in noise, for what is stopped on the way
SAID = (
    "Two fish.", "Is it late?", "The kettle is on.", "No. [pause 0.2] Yes!", "Wait <|emotion:elation|>here.",
    "It costs $12.50.", "Ça va, Zoë?", "“Well,” she said.", "Come in :-)", "One, two, three.",
    "你好, friend.", "A smile 😀 and a\ttab.", "<b>Bold</b> & (sighs) more.", "See http://a.b/c?d=e.", "Oh ... no?!",
)  # fmt: skip
VOICES = ("built-in/amber.flac", "built-in/oliver.flac", "built-in/sky.flac", "anna.wav", "bob.wav", "input/mine.flac")
# Inputs that keep what the template or this file gives: they cost time, or name files.
KEPT = {
    "max_frames", "retries", "chunk_seconds", "takes", "model", "device", "memory", "name", "voice", "book", "folder",
    "clip", "start", "length", "calls", "timeout", "whisper", "audio", "format", "script", "speaker",
}  # fmt: skip


@dataclass
class Drawn:
    """A prompt as it was drawn: its template, and its nodes without what only makes ComfyUI run it again."""

    template: str
    prompt: dict[str, Any]

    def inputs_of(self, *class_types: str) -> dict[str, Any]:
        """Return the inputs of the first node of these classes."""
        return next(entry["inputs"] for entry in self.prompt.values() if entry["class_type"] in class_types)

    @property
    def key(self) -> str:
        return json.dumps(self.prompt, sort_keys=True)

    def fresh(self, number: int, address: str) -> dict[str, Any]:
        """Return the prompt to queue. Equal prompts with another number are spoken again, with the same sound."""
        again = Drawn(self.template, copy.deepcopy(self.prompt))
        speaker = again.inputs_of(*SPEAKERS)
        speaker["pronunciations"] += f"\nunsaid{number} = unsaid"
        if self.template in IN_FOLDERS:
            speaker["folder"] += f"/{number}"
        return json.loads(json.dumps(again.prompt).replace(ADDRESS, address))


def dealt(rng: random.Random, items: Sequence[Any]) -> Iterator[Any]:
    """Yield the items in random order, all of them before any comes again."""
    while True:
        yield from rng.sample(items, len(items))


class Prompts:
    """Draws prompts. described: `/object_info`, whose ranges hold."""

    def __init__(self, rng: random.Random, described: dict[str, Any], on_cpu: bool):
        self._rng, self._described = rng, described
        self._never = {"int8", "int4", *(["on"] if on_cpu else [])}  # for wide layers, and for CUDA graphs
        self._templates, self._models = dealt(rng, TEMPLATES), dealt(rng, (EMBEDDED, CHECKPOINT, V2, "auto"))
        self._refused = dealt(rng, REFUSED)
        self._drawn: list[Drawn] = []

    def earlier(self) -> Drawn:
        """Return a prompt that was drawn before, if there is one."""
        return self._rng.choice(self._drawn) if self._drawn else self.draw()

    def draw_long(self) -> Drawn:
        """Return a prompt to be stopped on the way. Half of them write files."""
        return self.draw(self._rng.choice((*IN_FOLDERS, "", "")), long=True)

    def draw(self, template: str = "", long: bool = False) -> Drawn:
        """Return a template with random settings. long: spoken for some seconds."""
        rng, template = self._rng, template or next(self._templates)
        drawn = Drawn(template, read_workflow(template, 0, TODAY))  # its frames are set below
        model = CHECKPOINT if template == "lora" else ADDRESS if template == "server" else next(self._models)
        for entry in drawn.prompt.values():
            self._vary(entry)
            _FILES.get(entry["class_type"], lambda inputs, rng: None)(entry["inputs"], rng)
            if entry["class_type"] == "HiggsTTSLoadModel":
                entry["inputs"]["model"] = model
                if model == EMBEDDED and rng.random() < 0.1:
                    entry["inputs"]["dtype"] = rng.choice(("int8", "int4"))
        speaker = drawn.inputs_of(*SPEAKERS)
        has_more = LONG if long and (model == EMBEDDED or template in IN_FOLDERS) else 1
        frames = 250 if model == EMBEDDED else rng.randint(8, 32) * (LONG if long > has_more else 1)  # noise has no end
        speaker |= {"max_frames": frames, "retries": rng.randint(0, 1), **_TEXTS[template](rng, has_more)}
        if template == "clone_voice" and rng.random() < 0.5:
            listen = node("HiggsTTSTranscribe", audio=["9", 0], whisper="small", start=0.0, length=0.0)
            drawn.prompt |= {"4": listen, "9": node("LoadAudio", audio="reference.wav")}
            drawn.prompt["8"] = node("PreviewAny", source=["4", 0])
        if not long:
            self._drawn.append(copy.deepcopy(drawn))
        return drawn

    def _vary(self, entry: dict[str, Any]) -> None:
        """Give some settings of a node other valid values."""
        described = self._described[entry["class_type"]]["input"]
        share = 0.1 if entry["class_type"] == "HiggsTTSLoadModel" else 0.3  # another model takes time to load
        for name, (kind, limits, *_) in sorted({**described["required"], **described.get("optional", {})}.items()):
            if name in KEPT or name not in entry["inputs"] or self._rng.random() > share:
                continue
            if kind in ("INT", "FLOAT"):
                step = limits.get("step", 1)
                steps = self._rng.randint(0, int((limits["max"] - limits["min"]) // step))
                value = limits["min"] + steps * step
                entry["inputs"][name] = value if kind == "INT" else round(value, 6)
            elif kind == "BOOLEAN":
                entry["inputs"][name] = self._rng.random() < 0.5
            elif kind == "COMBO":
                entry["inputs"][name] = self._rng.choice([one for one in limits["options"] if one not in self._never])

    def refused(self, address: str) -> tuple[str, dict[str, Any], Sequence[str]]:
        """Return (name, prompt, parts of the error that it must end with)."""
        template, changes, parts, *extra = next(self._refused)
        drawn = self.draw(template)
        self._drawn.pop()  # it is not spoken
        if template not in ("lora", "server"):
            drawn.inputs_of("HiggsTTSLoadModel")["model"] = EMBEDDED
        for class_type, inputs in changes.items():
            drawn.inputs_of(class_type).update(inputs)
        for nodes in extra:
            drawn.prompt |= nodes
        prompt = json.loads(json.dumps(drawn.prompt).replace(ADDRESS, address))
        return f"{template} {[*changes.values(), *extra]}", prompt, parts


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """Return a node of a prompt in API format."""
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": class_type}}


def _text(rng: random.Random, times: int) -> dict[str, Any]:
    return {"text": " ".join(rng.choices(SAID, k=rng.randint(1, 2) * times))}


def _paragraphs(rng: random.Random, times: int) -> dict[str, Any]:
    text = "\n\n".join(" ".join(rng.choices(SAID, k=2)) for _ in range(2 * times))
    return {"text": text, "chunk_seconds": rng.choice((0.5, 1.0, 2.0))}


def _script(rng: random.Random, times: int) -> dict[str, Any]:
    turns = (f"{rng.choice(('Eve', 'Tom', 'Cleo'))}: {rng.choice(SAID)}" for _ in range(rng.randint(2, 4) * times))
    return {"script": "\n".join(turns)}


def _sheet(rng: random.Random, times: int) -> dict[str, Any]:
    rows = [
        {"id": f"shop/{number}", "speaker": rng.choice(("Eve", "Tom")), "text": rng.choice(SAID)}
        for number in range(rng.randint(2, 4) * times)
    ]
    return {"lines": json.dumps(rows), "takes": rng.randint(1, 2), "folder": "lines"}


def _cues(rng: random.Random, times: int) -> dict[str, Any]:
    cues = (
        f"{at + 1}\n00:00:{at:02},200 --> 00:00:{at:02},900\n{rng.choice(('Eve', 'Tom'))}: {rng.choice(SAID)}\n"
        for at in range(rng.randint(2, 3) * times)
    )
    return {"srt": "\n".join(cues)}


def _book(rng: random.Random, times: int) -> dict[str, Any]:
    chapters = (
        f"# {title}\n\n" + "\n\n".join(rng.choices(SAID, k=rng.randint(1, 2) * times)) for title in ("One", "Two")
    )
    kind = rng.choice(("flac", "wav", "mp3", "m4b"))
    return {"text": "\n\n".join(chapters), "format": kind, "chunk_seconds": 2.0, "folder": "book"}


_TEXTS = {
    **dict.fromkeys(("speak", "clone_voice", "lora", "server", "lip_sync", TRAINING), _text),
    "long_narration": _paragraphs,
    "dialogue": _script,
    "lines": _sheet,
    "subtitles": _cues,
    "dub": lambda rng, times: {"srt": "film.srt"},
    "book": _book,
}
_FILES = {
    "HiggsTTSLoadVoice": lambda inputs, rng: inputs.update(voice=rng.choice(VOICES)),
    "HiggsTTSLoadLoRA": lambda inputs, rng: inputs.update(name=rng.choice(("anna", "team/slow"))),
    "HiggsTTSServer": lambda inputs, rng: inputs.update(addresses=ADDRESS),
    "LoadAudio": lambda inputs, rng: inputs.update(
        audio="film.wav" if inputs["audio"] else rng.choice(("reference.wav", "mine.flac"))
    ),
    "HiggsTTSVoice": lambda inputs, rng: inputs.update(
        transcript=rng.choice(("", "Hello, I am Anna.")), clip=rng.choice(("reference.wav", "mine.flac"))
    ),
    "HiggsTTSBook": lambda inputs, rng: inputs.update(
        details="author = Ben\nnarrator = Anna" if inputs["credits"] else rng.choice(("", "year = 1815"))
    ),
}


def files_of(base: pathlib.Path, drawn: Drawn, number: int) -> list[pathlib.Path]:
    """Return the files that Higgs Lines or Higgs Book made for users."""
    folder = base / "output" / drawn.inputs_of(*SPEAKERS)["folder"] / str(number)
    files = (path for path in folder.rglob("*") if path.is_file() and "spoken" not in path.parts)
    return sorted(path for path in files if path.suffix != ".json")  # which tell when files were made


def sounds_of(base: pathlib.Path, drawn: Drawn, outcome: Outcome, number: int, heard_on: str) -> dict[str, Any]:
    """Return each sound [S, C] that a prompt made, and the bytes of other files. heard_on: class that hears it.

    Raises AssertionError if a sound is implausible.
    """
    speaker, made = drawn.inputs_of(*SPEAKERS), {}
    if drawn.template not in IN_FOLDERS:
        made = {str(place): sound for place, sound in enumerate(outcome.audios(heard_on))}
    for path in files_of(base, drawn, number) if drawn.template in IN_FOLDERS else ():
        is_wave = path.suffix in (".wav", ".flac")
        made[path.name] = soundfile.read(path, dtype="float32", always_2d=True) if is_wave else path.read_bytes()
    assert any(not name.endswith(".srt") for name in made), "it made no sound"
    for sound in made.values():
        if isinstance(sound, tuple):
            check_sound(*sound, speaker)
    return {name: sound[0] if isinstance(sound, tuple) else sound for name, sound in made.items()}


def check_refused(outcome: Outcome, parts: Sequence[str]) -> None:
    """Raise AssertionError unless a prompt ended with an error that has these parts, and says what to do if ours."""
    assert all(part in outcome.error for part in parts), f"{outcome.end}: {outcome.error[:600]}"
    if not parts[0].isidentifier():  # as ComfyUI's own are: value_bigger_than_max
        assert "Higgs " in outcome.error and REMEDY.search(outcome.error), f"no remedy: {outcome.error[:600]}"
        english = [
            part for error in _errors_of(outcome) for part in untranslated(NODE.sub("", error.strip()), _MESSAGES)
        ]
        assert not english, f"not in locales/: {english}"


def _errors_of(outcome: Outcome) -> list[str]:
    if not outcome.refusal:
        return [outcome.error]
    return [one["details"] for node in outcome.refusal["node_errors"].values() for one in node["errors"]]


def differing(before: dict[str, Any], now: dict[str, Any], on_gpu: bool) -> list[str]:
    """Return how sounds and other files differ, none if they are alike.

    Short windows are summed in another order, which a CPU shows in the last of 16 bits, twice if the sound came from a
    server. On a GPU windows that are decoded with others differ by some 1e-3 of a sound's norm; a single other code
    makes a difference many times larger. MP3s of two such sounds differ by up to 6 % of their norm.
    """
    if before.keys() != now.keys():
        return [f"{sorted(before)} before, {sorted(now)} now"]
    return [told for name in now if (told := _difference(name, before[name], now[name], on_gpu))]


def _difference(name: str, before: Any, now: Any, on_gpu: bool) -> str:
    if not isinstance(now, np.ndarray):
        is_lossy = name.endswith((".mp3", ".m4b", ".ogg"))  # those of Lines also hold the workflow, with its folder
        is_alike = before == now or (is_lossy and _share(_decoded(before), _decoded(now)) < 0.1)
        return "" if is_alike else f"{name} has other bytes"
    if before.shape != now.shape:
        return f"{name} had {before.shape} samples, now {now.shape}"
    most = np.abs(before - now).max()
    share = _share(before, now)
    if most <= 2.01 / 32768 or (on_gpu and most < 5e-3 and share < 2e-3):
        return ""
    return f"{name} differs by {share:.4f} of its norm, and by {most:.5f} at most"


def _share(before: np.ndarray, now: np.ndarray) -> float:
    """Return the difference's share of the norm, infinite for other lengths."""
    return float(np.linalg.norm(before - now) / np.linalg.norm(before)) if before.shape == now.shape else np.inf


def _decoded(file: bytes) -> np.ndarray:
    """Return the samples [C, S] of an encoded file."""
    with av.open(io.BytesIO(file)) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


def check_sound(wave: np.ndarray, rate: int, speaker: dict[str, Any]) -> None:
    """Raise AssertionError unless a clip [S, C] is finite, audible and no longer than its prompt allows."""
    text = str([value for name, value in speaker.items() if name in ("text", "script", "lines", "srt")])
    most = 30 + (speaker["max_frames"] / 25 + 11) * (1 + text.count(".") + text.count("?") + text.count("!"))
    assert 0.1 < len(wave) / rate < most, f"{len(wave) / rate:.1f} s, at most {most:.0f} s were expected"
    assert np.isfinite(wave).all() and np.abs(wave).max() > 0.003, f"peak {np.abs(wave).max():.5f}"


def furnish(base: pathlib.Path) -> None:
    """Create a ComfyUI's folders with all that prompts name. The tiny checkpoints also lie in `tiny`."""
    lay_out(base)
    shutil.copy(HERE / "comfyui_probe.py", base / "custom_nodes")
    for family in ("v3", "v2"):
        write_tiny(base / "tiny" / family, family)
    add_checkpoints(base, base / "tiny")
    add_clips(base)
    add_user_files(base, base / "tiny" / "v3")
