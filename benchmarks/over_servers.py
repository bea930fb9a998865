"""An hour with a voice, and its first sound: one engine on all GPUs against servers of ours, one on each GPU.

    python benchmarks/over_servers.py [--cards 2] [--minutes 60] [--rounds 3] [--folder FOLDER]

Random weights in the published shape of v3, bf16, chunks of equal length. The two take turns. Writes "over_servers" in
results/scale.json, and prints it as JSON last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import tempfile
import time

import torch
from common import ROOT, card, write_shapes
from serve import served

from engine import (
    Engine,
    EngineConfig,
    Engines,
    Listener,
    RemoteEngine,
    SamplingParams,
    ServerConfig,
    Voice,
    estimate_seconds,
)

RESULT = ROOT / "benchmarks" / "results" / "scale.json"
SENTENCE = "The harbour was quiet, and the boats lay still under a wide sky without any wind at all. "
PARAMS = SamplingParams(retries=0, max_frames=500)  # random weights speak that long
CALLS = 64  # rows of a server's batch


class Heard(Exception):
    """The first sound has come, and the rest need not."""


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--device", default="cuda", help="cpu: for a trial of the script itself")
    parser.add_argument("--folder", type=pathlib.Path, help="a checkpoint written before")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    text = round(60 * given.minutes / estimate_seconds(SENTENCE)) * SENTENCE
    voice = Voice(torch.randint(0, 1024, (250, 8), generator=torch.Generator().manual_seed(0)), "What the clip says.")
    row: dict = {"cards": given.cards, "minutes_asked": given.minutes, "calls": CALLS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(given.folder or write_shapes(pathlib.Path(scratch), "v3", given.layers, whole_codec=True))
        devices = [given.device if given.device == "cpu" else f"cuda:{card}" for card in range(given.cards)]
        ways = {"all_gpus": on_all, "servers": on_servers}
        taken: dict = {name: {"seconds": [], "first_sound_ms": []} for name in ways}
        codes = {}
        for number in range(given.rounds):
            for name in sorted(ways, reverse=number % 2 == 1):
                with ways[name](folder, devices) as engine:
                    engine.speak(text[: len(text) // 10], voice, PARAMS)  # captures
                    taken[name]["first_sound_ms"] += [first_sound(engine, text, voice) for _ in range(3)]
                    began = time.perf_counter()
                    speech = engine.speak(text, voice, PARAMS)
                    taken[name]["seconds"].append(round(time.perf_counter() - began, 2))
                    codes[name] = speech.codes
                print(name, taken[name], speech.chunks, speech.warnings, flush=True)
        row |= taken | {"chunks": speech.chunks, "minutes": round(speech.seconds / 60, 2)}
    medians = {name: statistics.median(one["seconds"]) for name, one in taken.items()}
    firsts = {name: statistics.median(one["first_sound_ms"]) for name, one in taken.items()}
    row["servers_slower_pct"] = round(100 * (medians["servers"] / medians["all_gpus"] - 1), 1)
    row["first_sound_later_ms"] = round(firsts["servers"] - firsts["all_gpus"], 1)
    row["same_codes"] = torch.equal(codes["all_gpus"], codes["servers"])
    result = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    result["over_servers"] = row | (card() if given.device == "cuda" else {"gpu": "CPU"})
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["over_servers"]))


@contextlib.contextmanager
def on_all(folder: str, devices: list[str]):
    """Yield one engine on all devices."""
    with contextlib.ExitStack() as stack:
        yield Engines([stack.enter_context(Engine(EngineConfig(folder, device=device))) for device in devices])


@contextlib.contextmanager
def on_servers(folder: str, devices: list[str]):
    """Yield an engine over a server on each device."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(served("--model", folder, "--device", device)) for device in devices]
        yield RemoteEngine(ServerConfig("\n".join(f"127.0.0.1:{port}" for port in ports), calls=CALLS))


def first_sound(engine, text: str, voice: Voice) -> float:
    """Return the milliseconds to the first sound."""
    began, waited = time.perf_counter(), []

    def on_audio(wav):
        waited.append(time.perf_counter() - began)
        raise Heard

    with contextlib.suppress(Heard):
        engine.speak(text, voice, PARAMS, listener=Listener(on_audio=on_audio))
    return round(1000 * waited[0], 1)


if __name__ == "__main__":
    main()
