"""Host costs: the first voice of a process, seconds until a command is ready, and speech on one core.

    python benchmarks/host.py [--figure NAME ...] [--before FOLDER] [--model FOLDER] [--device cuda:0]

Every measurement is a process of its own. With --before, a checkout in a folder named by its commit, both are measured
in turns, because machines differ from hour to hour. A figure is a function of `FIGURES`. Its row for this device is
replaced in the result. Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from common import ROOT
from serve import START, is_healthy, where

RESULT = ROOT / "benchmarks" / "results" / "host.json"
CLIP_SECONDS = 5
# Run in a checkout: writes a clip; or times the voices of one process, and lists what the first of them imports.
CLIP = """
import soundfile, sys, torch
wav = 0.1 * torch.randn(24000 * int(sys.argv[2]), generator=torch.Generator().manual_seed(0))
soundfile.write(sys.argv[1], wav.numpy(), 24000)
"""
VOICES = """
import json, sys, time, torch
from engine import Engine, EngineConfig, read_clip
model, device, clip = sys.argv[1:]
engine = Engine(EngineConfig(model, device=device))
torch.zeros(1, device=engine.device)  # the GPU's context is not the voice's
read = read_clip(clip)
took, loaded = [], []
for _ in range(5):
    before, began = len(sys.modules), time.perf_counter()
    engine.encode_voice(*read)
    took.append(time.perf_counter() - began)
    loaded.append(len(sys.modules) - before)
print(json.dumps({"seconds": took, "modules": loaded}))
"""
# Run in a checkout: processor seconds per second of speech, and until the first sound of a sentence, and peak memory.
SPEECH = """
import json, os, sys, time
os.sched_setaffinity(0, {0})
from engine import Engine, EngineConfig, Listener, SamplingParams
model, device, text, sentence = sys.argv[1:]
params, heard = SamplingParams(seed=1, retries=0), []
listener = Listener(on_audio=lambda *_: heard.append(time.process_time()))
with Engine(EngineConfig(model, device=device)) as engine:
    engine.speak("Hello.", params=params)
    began = time.process_time()
    seconds = engine.speak(text, params=params).seconds
    spent = (time.process_time() - began) / seconds
    began = time.process_time()
    engine.speak(sentence, params=params, listener=listener)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"rtf": spent, "first_sound_s": heard[0] - began, "speech_s": seconds, "peak_mb": peak / 1024}))
"""
TWENTY = "The harbour was quiet that morning, and only two small boats were still waiting for the wind to come back."


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", action="append", choices=FIGURES, help="this one alone, once or more")
    parser.add_argument("--before", type=pathlib.Path, metavar="FOLDER", help="another checkout, named by its commit")
    parser.add_argument("--model", default="engine/embedded", help="folder of a checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=7, help="of each checkout")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    machine = where(given.device) | {"cores": os.cpu_count(), "checkpoint": pathlib.Path(given.model).name}
    machine |= {"cpu": processor(), "device": machine.pop("gpu"), "threads": os.environ.get("OMP_NUM_THREADS", "")}
    machine["load"] = round(os.getloadavg()[0], 1)  # load from other work, at the start
    with tempfile.TemporaryDirectory() as folder:
        clip = pathlib.Path(folder, "clip.wav")
        python(ROOT, "-c", CLIP, clip, CLIP_SECONDS)
        for name in given.figure or FIGURES:
            row = machine | {"runs": given.runs} | in_turns(given, lambda at, f=FIGURES[name]: f(at, given, clip))
            others = [
                old for old in result.get(name, []) if any(old[key] != row[key] for key in ("device", "checkpoint"))
            ]
            result[name] = [*others, row]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def processor() -> str:
    """Return the CPU's model: its name, family, model and stepping, since virtual machines shorten the name."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return " ".join(told.get(key, "") for key in ("model name", "cpu family", "model", "stepping")).strip()


def in_turns(given: argparse.Namespace, measure: Callable[[pathlib.Path], dict[str, float]]) -> dict:
    """Return `spread` of `measure` for each checkout. They take turns at going first."""
    checkouts = {"after": ROOT} | ({"before": given.before.resolve()} if given.before else {})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for run in range(given.runs):
        for name in sorted(checkouts, reverse=run % 2 == 1):
            found[name].append(measure(checkouts[name]))
    row: dict = {name: spread(runs) for name, runs in sorted(found.items())}
    return row | ({"before_commit": given.before.name} if given.before else {})


def spread(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the median, minimum and maximum of each number."""
    numbers = {name: sorted(run[name] for run in runs) for name in runs[0]}
    return {name: [round(value, 3) for value in (statistics.median(of), of[0], of[-1])] for name, of in numbers.items()}


def first_voice(checkout: pathlib.Path, given: argparse.Namespace, clip: pathlib.Path) -> dict[str, float]:
    """Return seconds for a process's first voice from a clip, less the median of four later ones."""
    told = json.loads(python(checkout, "-c", VOICES, given.model, given.device, clip).splitlines()[-1])
    first, *later = told["seconds"]
    extra = first - statistics.median(later)
    return {"extra_s": extra, "later_s": statistics.median(later), "modules_imported": told["modules"][0]}


def ready(checkout: pathlib.Path, given: argparse.Namespace, clip: pathlib.Path) -> dict[str, float]:
    """Return seconds from the start of a command: speech in the clip's voice, its voice saved, the server healthy."""
    how = ("--model", given.model, "--device", given.device)
    engine = ("-m", "engine")
    say = (*engine, "say", "Hello.", "--voice", clip, "--max-frames", 25, "--greedy", "--retries", 0)
    voice = (*engine, "voice", clip)
    return {
        "say_with_clip_s": seconds(lambda: python(checkout, *say, *how, "--out", clip.with_name("said.wav"))),
        "voice_s": seconds(lambda: python(checkout, *voice, *how, "--out", clip.with_name("voice.safetensors"))),
        "serve_s": seconds_to_serve(checkout, how),
    }


def one_core(checkout: pathlib.Path, given: argparse.Namespace, clip: pathlib.Path) -> dict[str, float]:
    """Return processor seconds of speech on core 0 (Linux), per second of speech, and the process's peak memory."""
    text = (ROOT / "benchmarks" / "prose.txt").read_text(encoding="utf-8")[:300].rpartition(".")[0] + "."
    return json.loads(python(checkout, "-c", SPEECH, given.model, given.device, text, TWENTY).splitlines()[-1])


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def seconds_to_serve(checkout: pathlib.Path, how: tuple[str, ...]) -> float:
    """Return seconds from a server's start until it reports healthy."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", *how, "--port", str(port)]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not is_healthy(port):
                if process.poll() is not None or time.perf_counter() - began > START:
                    raise SystemExit(f"The server did not start: {' '.join(command)}")
                time.sleep(0.02)
            return time.perf_counter() - began
        finally:
            process.terminate()


def python(checkout: pathlib.Path, *arguments: object) -> str:
    """Return the output of Python in a checkout. Ends the benchmark on failure."""
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


FIGURES = {"first_voice_extra_s": first_voice, "ready_s": ready, "one_core": one_core}

if __name__ == "__main__":
    main()
