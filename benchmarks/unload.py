"""Device memory left after closing: cycles of open, a line, a dialogue, close under every allocator.

Each row is a process of its own. On request also ComfyUI's Dynamic VRAM (needs comfy-aimdo), the rate of reloading
against its ceiling, and the faults of tests/gpu. Prints one JSON line last. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from common import ALLOCATORS, GB, ROOT, DynamicVram, card, free_bytes, in_process, write_shapes
from dynamic_vram import cases


def main():
    """Measure the whole table, each row in its own process, because an allocator is chosen once."""
    args = _arguments()
    if args.worker:
        print(json.dumps(WORKERS[args.worker](args)))
        return
    result = {**card(), "layers": args.layers, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for family in args.families.split(","):
            made = write_shapes(pathlib.Path(folder, family), family, args.layers)
            for dtype in args.dtypes.split(","):
                for allocator in ALLOCATORS if args.cycles else ():
                    result["rows"].append(_row(args.cycles, made, family, allocator, dtype, False))
            for allocator in ALLOCATORS if args.dynamic else ():
                result["rows"].append(_row(args.dynamic, made, family, allocator, "bf16", True))
        if args.dynamic:
            result["capture_under_dynamic_vram"] = cases()
        if args.reload:
            made = write_shapes(pathlib.Path(folder, "whole"), "v3", None)
            result["reload"] = in_process(__file__, ["--worker", "reload", "--folder", str(made)], "cudaMallocAsync")
    if args.faults:
        result["faults"] = {allocator: _faults(allocator) for allocator in ("native", "cudaMallocAsync")}
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100, help="0 leaves out all but --dynamic")
    parser.add_argument("--layers", type=int, default=4, help="layers of the published width")
    parser.add_argument("--families", default="v3,v2")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--dynamic", type=int, default=0, help="cycles with comfy-aimdo's Dynamic VRAM active")
    parser.add_argument("--reload", action="store_true", help="also the reload rate of the whole 36-layer file")
    parser.add_argument("--faults", action="store_true", help="also the faults of tests/gpu, by name")
    parser.add_argument("--out", help="file for the result")
    parser.add_argument("--worker", choices=WORKERS)
    parser.add_argument("--folder")
    parser.add_argument("--dtype", default="bf16")
    return parser.parse_args()


def _row(cycles, folder, family, allocator, dtype, dynamic) -> dict:
    worker = ["--worker", "cycles", "--folder", str(folder), "--dtype", dtype, "--cycles", str(cycles)]
    row = {"allocator": allocator, "family": family, "dtype": dtype, "dynamic_vram": dynamic}
    return row | in_process(__file__, worker + (["--dynamic", "1"] if dynamic else []), allocator)


def _faults(allocator: str) -> dict:
    """Run the fault tests of tests/gpu and return their outcomes by name."""
    command = [sys.executable, "-m", "pytest", "tests/gpu/test_engine.py", "-q", "-rA", "-p", "no:cacheprovider"]
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False).stdout
    return {name: verdict.lower() for verdict, name in re.findall(r"^(PASSED|FAILED) \S+::(\S+)", out, re.MULTILINE)}


def _cycles(args) -> dict:
    """Open, speak a line and a dialogue, and close, repeatedly. Counts bytes missing since before the first open."""
    room = DynamicVram() if args.dynamic else None
    import psutil
    import torch

    from engine import Engine, EngineConfig, SamplingParams, Turn

    torch.zeros(1, device="cuda")
    params = SamplingParams(max_frames=25, seed=1, retries=0)  # random weights never end
    scene = [Turn(("Ann", "Bob", "Cid")[number % 3], f"This is what turn {number} says.") for number in range(12)]
    if room is not None:
        room.fill(left=3 * GB)
    left, rss, used, codes = [], [], [], set()
    before = free_bytes()
    for _ in range(args.cycles):
        engine = Engine(EngineConfig(model=args.folder, dtype=args.dtype, context=1024, device="cuda:0"))
        engine.open()
        speech = engine.speak("Unload me again.", params=params)
        said = engine.speak_turns(scene, {}, params)
        codes.add(hash(speech.wav.numpy().tobytes() + said.wav.numpy().tobytes()))
        used.append(before - free_bytes())
        engine.close()
        left.append(before - free_bytes())
        rss.append(psutil.Process().memory_info().rss)
    tail = rss[len(rss) // 2 :]
    return {
        "cycles": args.cycles,
        "held_bytes": used[1],
        "planned_bytes": engine.planned_bytes,
        "bytes_left_first": left[0],
        "bytes_growth": left[-1] - left[1],
        "moved": {n: left[n] - left[n - 1] for n in range(2, len(left)) if left[n] != left[n - 1]},  # by cycle
        "host_mb_per_cycle": round((tail[-1] - tail[0]) / len(tail) / 2**20, 3),
        "same_audio": len(codes) == 1,
        "notes": list(speech.warnings),
    }


def _reload(args) -> dict:
    """Time reloading the weights from the page cache, and copying the same bytes through pinned buffers alone."""
    import torch

    from engine import Engine, EngineConfig
    from engine.checkpoint.load import load_talker, talker_sizes
    from engine.checkpoint.upload import Job, upload

    engine = Engine(EngineConfig(model=args.folder, dtype=args.dtype, context=1024, device="cuda:0"))
    path = pathlib.Path(args.folder, "model.safetensors")
    size = sum(talker_sizes(engine.checkpoint, torch.bfloat16))
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    job = Job(path, path.stat().st_size - size, torch.uint8, target)
    seconds = {"weights": [], "open": [], "ceiling": []}
    for _ in range(4):
        began = time.perf_counter()
        upload([job], engine.device)
        seconds["ceiling"].append(time.perf_counter() - began)
    del target, job
    for _ in range(4):
        began = time.perf_counter()
        tensors = load_talker(engine.checkpoint, engine.device, engine.dtype)
        torch.cuda.synchronize()
        seconds["weights"].append(time.perf_counter() - began)
        del tensors
        torch.cuda.empty_cache()
        began = time.perf_counter()
        engine.open()
        torch.cuda.synchronize()
        seconds["open"].append(time.perf_counter() - began)
        engine.close()
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "gigabytes": round(size / 1e9, 3),
        "open_seconds": round(best["open"], 3),
        "weights_seconds": round(best["weights"], 3),
        "weights_gb_s": round(size / best["weights"] / 1e9, 2),
        "ceiling_gb_s": round(size / best["ceiling"] / 1e9, 2),
        "share_of_ceiling": round(best["ceiling"] / best["weights"], 3),
        "memory_map_gb_s": round(_mapped_rate(engine), 2),
    }


def _mapped_rate(engine) -> float:
    """Return GB/s of the plain way: each tensor copied from its memory map."""
    import torch

    file, size = engine.checkpoint.talker, 0
    names = [name for name in file.shapes if "layers." in name][:60]
    began = time.perf_counter()
    for name in names:
        tensor = file.get(name, "cuda")
        size += tensor.nbytes
    torch.cuda.synchronize()
    return size / (time.perf_counter() - began) / 1e9


WORKERS = {"cycles": _cycles, "reload": _reload}

if __name__ == "__main__":
    main()
