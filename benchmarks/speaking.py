"""Time to the first sound, and an hour of narration. Sections of decode.py."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import statistics
import tempfile
import time

from common import DEVICE, write_shapes

TWENTY_WORDS = (
    "The old lighthouse keeper climbed the winding stairs each evening, "
    "lit the great lamp, and watched the ships go by."
)
SENTENCE = "The harbour was quiet, and the boats lay still under a sky without any wind at all. "
CHUNK_SECONDS = 30


def first_sound(args, result: dict):
    """Time from `speak` to the first chunk of sound: without a voice, and with a voice encoded before."""
    with _engine(args.layers) as engine:
        voice = engine.encode_voice(clip(10), 24000, transcript="What the clip says, in about these words.")
        found = {name: first_chunk(engine, voice) for name, voice in (("zero_shot", None), ("clone", voice))}
        result["first_sound_ms"] = {name: ms for name, (ms, _) in found.items()}
        result["first_chunk_holds_ms"] = {name: held for name, (_, held) in found.items()}
        result["streaming"] = _streaming(engine)
    print({name: result[name] for name in ("first_sound_ms", "first_chunk_holds_ms", "streaming")}, flush=True)


def first_chunk(engine, voice) -> tuple[float, float]:
    """Return milliseconds until the first chunk, as the median of five calls after two, and its length."""
    from engine import Listener, SamplingParams

    waited, held = [], []
    for _ in range(7):
        heard = []
        began = time.perf_counter()
        engine.speak(
            TWENTY_WORDS,
            voice,
            SamplingParams(max_frames=50),
            listener=Listener(on_audio=lambda wav, heard=heard: heard.append((time.perf_counter(), len(wav)))),
        )
        waited.append(1000 * (heard[0][0] - began))
        held.append(heard[0][1] / 24)
    return round(statistics.median(waited[2:]), 1), round(statistics.median(held), 1)


def _streaming(engine) -> dict:
    """Return frames per second over 20 s of speech, with and without a listener."""
    from engine import Listener, SamplingParams

    rates = {"on": [], "off": []}
    for _ in range(5):
        for name, listener in (("on", lambda wav: None), ("off", None)):
            speech = engine.speak(
                TWENTY_WORDS, params=SamplingParams(max_frames=500, retries=0), listener=Listener(on_audio=listener)
            )
            rates[name].append(speech.frames_per_second)
    return {f"frames_per_s_{name}": round(statistics.median(values), 1) for name, values in rates.items()}


def clip(seconds: int):
    """Return a voiced sound: a gliding pitch with falling harmonics, in syllables."""
    import torch

    t = torch.arange(seconds * 24000) / 24000
    phase = 2 * torch.pi * (120 * t + 15 * torch.sin(2 * t) / 2)
    voiced = sum(torch.sin(n * phase) / n for n in range(1, 12))
    return (0.1 * voiced * torch.sin(torch.pi * 4 * t).abs()).float()


def _engine(layers: int | None):
    from engine import Engine, EngineConfig

    return Engine(EngineConfig(_checkpoint(layers).name, device=DEVICE))


@functools.cache
def _checkpoint(layers: int | None) -> tempfile.TemporaryDirectory:
    """Return a checkpoint of v3's shape with a codec of the published widths, deleted when the process ends."""
    folder = tempfile.TemporaryDirectory()
    write_shapes(pathlib.Path(folder.name), "v3", layers, whole_codec=True)
    return folder


def length(args, result: dict):
    """Time narration with a fixed frame limit per chunk, since random weights never end by themselves."""
    import torch

    from engine import SamplingParams

    params = SamplingParams(max_frames=25 * CHUNK_SECONDS, chunk_seconds=CHUNK_SECONDS, retries=0)
    with _engine(args.layers) as engine:
        engine.speak(narration(4), params=dataclasses.replace(params, max_frames=50))  # warm-up
        result["length"] = []
        for minutes in map(int, args.minutes.split(",")):
            text = narration(minutes * 60 // CHUNK_SECONDS)
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            speech = engine.speak(text, params=params)
            seconds = time.perf_counter() - began
            row = {
                "minutes": round(speech.seconds / 60, 2),
                "seconds": round(seconds, 2),
                "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
                "chunks": speech.chunks,
                "how": speech.how,
            }
            print(row, flush=True)
            result["length"].append(row)


def narration(chunks: int) -> str:
    """Return a text that the engine splits into exactly `chunks` chunks."""
    from engine import estimate_seconds

    return SENTENCE * int(CHUNK_SECONDS / estimate_seconds(SENTENCE)) * chunks
