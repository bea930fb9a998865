"""Prefill of a prompt of 340 positions, two versions of the engine in turn on one GPU, a process each.

    python benchmarks/prompts.py [--before FOLDER] [--pairs 1] [--layers N] [--out benchmarks/results/host.json]

Random weights in the published shapes. A row of "prompt" is a family and a format: milliseconds of the device (without
pauses), of the host, and from `speak` with such a voice to the first sound; launches and copies by the driver's names;
the GB that captured prompts hold; the GiB that all captures hold between calls, and the engine's count of its bytes by
those taken. "before" has the same of the older checkout. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from common import ROOT, Prompts, card, put, write_shapes
from speaking import SENTENCE

HERE = pathlib.Path(__file__).resolve()
CASES = (("v3", "bf16"), ("v3", "int8"), ("v3", "int4"), ("v2", "bf16"))
TEXT, CODES, TAIL = 30, 250, 60  # positions: text, a clip of ten seconds, text
REPEATS = 15


def main() -> None:
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="checkout of the older version")
    parser.add_argument("--before-commit", default="")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "host.json")
    parser.add_argument("--worker", type=pathlib.Path)
    parser.add_argument("--model")
    parser.add_argument("--weights")
    given = parser.parse_args()
    if given.worker:
        sys.path.insert(0, str(given.worker))
        print(json.dumps(work(given.model, given.weights, given.device)))
        return
    facts = card() if given.device.startswith("cuda") else {"gpu": "CPU"}
    versions = {"after": ROOT} | ({"before": given.before.resolve()} if given.before else {})
    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        models = {
            family: write_shapes(pathlib.Path(folder, family), family, given.layers)
            for family in dict.fromkeys(family for family, _ in CASES)
        }
        for family, weights in CASES:
            runs: dict[str, list[dict]] = {name: [] for name in versions}
            for number in range(given.pairs):
                for name in list(versions)[:: -1 if number % 2 else 1]:
                    runs[name].append(one(versions[name], models[family], weights, given.device))
                    print(family, weights, name, runs[name][-1], flush=True)
            row = (
                facts | {"family": family, "weights": weights} | {name: medians(found) for name, found in runs.items()}
            )
            row |= {"before_commit": given.before_commit} if given.before else {}
            result["prompt"] = put(result.get("prompt", []), row, ("gpu", "family", "weights"))
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"prompt": result["prompt"]}))


def one(root: pathlib.Path, model: pathlib.Path, weights: str, device: str) -> dict:
    """Run one version once."""
    command = [sys.executable, str(HERE), "--worker", str(root), "--model", str(model)]
    command += ["--weights", weights, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def medians(runs: list[dict]) -> dict:
    """Return the medians of the timings. Everything else is equal in all runs."""
    timed = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0] if name.endswith("_ms")}
    return runs[-1] | timed


def work(model: str, weights: str, device: str) -> dict:
    """Measure the engine on the path."""
    import torch

    import engine as pack

    is_gpu = device.startswith("cuda")
    config = pack.EngineConfig(model, device=device, dtype=weights, runner="eager")  # captures come below, measured
    with torch.inference_mode(), pack.Engine(config) as opened:
        runner, found = opened.loaded.runner(), {}
        sequence = prompt_of(opened)

        def fill():
            runner.prefill([(0, sequence)])

        def wait():
            if is_gpu:
                torch.cuda.synchronize()

        fill()
        if is_gpu:
            found = captured(opened.loaded, runner)
        for _ in range(3):
            fill()
        found = {"positions": len(sequence), "host_ms": host_ms(fill, wait)} | found
        found |= on_device(fill) if is_gpu else {}
    with pack.Engine(pack.EngineConfig(model, device=device, dtype=weights, context=2048)) as opened:
        found["first_sound_ms"] = first_sound_ms(pack, opened)
    return found | (memory(pack, model, weights, device) if is_gpu else {})


def first_sound_ms(pack, opened) -> float:
    """Return the median milliseconds to the first sound with a clip of ten seconds as the voice."""
    import torch

    codes = torch.randint(0, 1024, (CODES, 8), generator=torch.Generator().manual_seed(0))
    voice = pack.Voice(codes, "What the clip says, in about these words.")
    params, waited = pack.SamplingParams(seed=1, max_frames=60, retries=0), []
    for _ in range(REPEATS):
        heard: list[float] = []
        began = time.perf_counter()
        opened.speak(
            SENTENCE, voice, params, listener=pack.Listener(on_audio=lambda wav, h=heard: h.append(time.perf_counter()))
        )
        waited.append(1000 * (heard[0] - began))
    return round(statistics.median(waited[2:]), 2)


def free() -> int:
    """Return the device's free bytes."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def memory(pack, model: str, weights: str, device: str) -> dict:
    """Return the GiB that captures hold between calls, and the engine's own count of all its bytes by those taken."""
    params, listener = pack.SamplingParams(max_frames=200, retries=0), pack.Listener(on_audio=len)
    taken, planned = {}, 0
    for runner in ("eager", "auto"):
        before = free()
        config = pack.EngineConfig(model, device=device, dtype=weights, context=2048, runner=runner)
        with pack.Engine(config) as opened:
            opened.speak(SENTENCE, params=params, listener=listener)
            taken[runner], planned = before - free(), opened.planned_bytes
    held = (taken["auto"] - taken["eager"]) / (1 << 30)
    return {"held_gib": round(held, 3), "planned_ratio": round(planned / taken["auto"], 4)}


def captured(loaded, runner) -> dict:
    """Return the seconds that all captures take, and their device memory."""
    stream, before, began = loaded.pool.capture_stream(), free(), time.perf_counter()
    loaded.prompts().capture(runner.state, stream)
    assert not loaded.prompts().note, loaded.prompts().note
    taken = time.perf_counter() - began
    return {"capture_s": round(taken, 3), "graphs_gb": round((before - free()) / 1e9, 4)}


def prompt_of(opened):
    """Return 340 positions: text, codes, text; v2's last position holds codes as well."""
    import torch

    import engine as pack

    prompts, config = Prompts(), opened.checkpoint.config
    opened.speak_turns([pack.Turn("", SENTENCE)], params=pack.SamplingParams(max_frames=1), reuse=prompts)
    g = torch.Generator().manual_seed(0)
    columns = torch.randint(0, 1024, (CODES, config.codebooks), generator=g)
    length = TEXT + CODES + TAIL
    ids = torch.randint(0, config.text_vocab, (length,), generator=g).tolist()
    audio = ((TEXT, columns),)
    if config.family == "v2":
        audio = (*audio, (length - 1, torch.full((1, config.codebooks), 1024)))
    return dataclasses.replace(prompts.found[0], ids=ids, audio=audio, prefix=0)


def host_ms(fill, wait) -> float:
    """Return the median milliseconds until the host may go on, starting with an idle device."""
    taken = []
    for _ in range(REPEATS):
        wait()
        began = time.perf_counter()
        fill()
        taken.append(1000 * (time.perf_counter() - began))
    wait()
    return round(statistics.median(taken), 3)


def on_device(fill) -> dict:
    """Return the device's busy milliseconds, launches and copies, from torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    taken = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        fill()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        fill()
        torch.cuda.synchronize()
    events = seen.key_averages()
    calls = {
        event.key: event.count
        for event in events
        if event.key.startswith("cu") and any(kind in event.key for kind in ("Launch", "Memcpy", "Memset"))
    }
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if str(event.device_type).endswith("CUDA")  # kernels and copies themselves, some at the same time
    )
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy, until = busy + max(0.0, end - max(start, until)) / 1000, max(until, end)
    return {
        "elapsed_ms": round(statistics.median(taken), 3),
        "device_ms": round(busy, 3),
        "launches": sum(calls.values()),
        "calls": calls,
    }


if __name__ == "__main__":
    main()
