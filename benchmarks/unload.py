"""Device memory left after closing: cycles of open, a line, a dialogue, close under every allocator.

Each row is a process of its own. On request also ComfyUI's Dynamic VRAM (needs comfy-aimdo), the time of reloading
beside that of a plain copy, and the faults of tests/gpu. Prints one JSON line last. Needs a CUDA GPU.
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
    parser.add_argument("--reload", action="store_true", help="also the time of reloading the whole 36-layer file")
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
    """Time opening from the page cache, without captures, and copying as many bytes from pinned memory."""
    import torch

    from engine import Engine, EngineConfig

    config = EngineConfig(model=args.folder, dtype=args.dtype, context=1024, device="cuda:0", runner="eager")
    engine = Engine(config)
    seconds = {"open": [], "copy": []}
    for _ in range(4):
        began = time.perf_counter()
        engine.open()
        torch.cuda.synchronize()
        seconds["open"].append(time.perf_counter() - began)
        size = sum(tensor.nbytes for tensor in engine.loaded.talker.tensors())
        engine.close()
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(pinned, device="cuda")
    for _ in range(4):
        began = time.perf_counter()
        target.copy_(pinned)
        torch.cuda.synchronize()
        seconds["copy"].append((time.perf_counter() - began) * size / pinned.nbytes)
    best = {name: round(min(values), 3) for name, values in seconds.items()}
    return {"gigabytes": round(size / 1e9, 3), "open_seconds": best["open"], "copy_seconds": best["copy"]}


WORKERS = {"cycles": _cycles, "reload": _reload}

if __name__ == "__main__":
    main()
