"""What is left on the device after closing: cycles of open, speak, close under every allocator, one process each.

Also the rate of reloading against its ceiling, and the faults of benchmarks/faults.py. Writes results/unload.json and
prints it as one JSON line. Needs a CUDA GPU; rows with Dynamic VRAM need comfy-aimdo.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
ALLOCATORS = {
    "native": "backend:native",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
GB = 1 << 30


def main():
    """The whole table; each row in a process of its own, because an allocator is chosen once."""
    args = _arguments()
    if args.worker:
        print(json.dumps(WORKERS[args.worker](args)))
        return
    import torch

    result = {
        "gpu": torch.cuda.get_device_name(0),
        "driver": _driver(),
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
        "layers": args.layers,
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for family in ("v3", "v2"):
            made = pathlib.Path(folder, family)
            _write(made, family, args.layers)
            for allocator in ALLOCATORS:
                for dtype in args.dtypes.split(","):
                    result["rows"].append(_row(args, "cycles", made, family, allocator, dtype, False))
            if args.dynamic:
                for allocator in ("native", "cudaMallocAsync"):
                    result["rows"].append(_row(args, "cycles", made, family, allocator, "bf16", True))
        if args.reload:
            made = pathlib.Path(folder, "whole")
            _write(made, "v3", None)
            result["reload"] = _row(args, "reload", made, "v3", "cudaMallocAsync", "bf16", False)
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--layers", type=int, default=4, help="layers of the published width")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--dynamic", action="store_true", help="also with comfy-aimdo's Dynamic VRAM active")
    parser.add_argument("--reload", action="store_true", help="also the reload rate of the whole 36-layer file")
    parser.add_argument("--out", help="file for the result")
    parser.add_argument("--worker", choices=WORKERS)
    parser.add_argument("--folder")
    parser.add_argument("--dtype", default="bf16")
    return parser.parse_args()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]


def _write(folder: pathlib.Path, family: str, layers: int | None):
    """In a process of its own, so that none of its device memory is in the way."""
    command = [sys.executable, str(ROOT / "benchmarks" / "real_shapes.py"), str(folder), family]
    subprocess.run(command + ([str(layers)] if layers else []), check=True, stdout=subprocess.DEVNULL)


def _row(args, worker, folder, family, allocator, dtype, dynamic) -> dict:
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator], HIGGS_BENCH_DYNAMIC="1" if dynamic else "")
    command = [sys.executable, __file__, "--worker", worker, "--folder", str(folder), "--dtype", dtype]
    done = subprocess.run(
        [*command, "--cycles", str(args.cycles)], env=env, capture_output=True, text=True, check=False
    )
    row = {"allocator": allocator, "family": family, "dtype": dtype, "dynamic_vram": dynamic}
    if done.returncode:
        return row | {"crashes": 1, "error": done.stderr.strip().splitlines()[-3:]}
    return row | json.loads(done.stdout.splitlines()[-1]) | {"crashes": 0}


def _cycles(args) -> dict:
    """Open, speak and close again and again; bytes missing after each close against before the first."""
    room = _DynamicVram() if os.environ.get("HIGGS_BENCH_DYNAMIC") else None
    import psutil
    import torch

    from engine import Engine, EngineConfig, SamplingParams

    torch.zeros(1, device="cuda")
    if room is not None:
        room.fill()
    left, rss, used, codes = [], [], [], set()
    before = _free()
    for _ in range(args.cycles):
        engine = Engine(EngineConfig(model=args.folder, dtype=args.dtype, context=1024, device="cuda:0"))
        engine.open()
        speech = engine.speak("Unload me again.", params=SamplingParams(max_frames=25, seed=1))
        codes.add(hash(speech.wav.numpy().tobytes()))
        used.append(before - _free())
        engine.close()
        left.append(before - _free())
        rss.append(psutil.Process().memory_info().rss)
    tail = rss[len(rss) // 2 :]
    return {
        "cycles": args.cycles,
        "held_bytes": used[1],
        "planned_bytes": engine.planned_bytes,
        "bytes_left_first": left[0],
        "bytes_growth": left[-1] - left[1],
        "host_mb_per_cycle": round((tail[-1] - tail[0]) / len(tail) / 2**20, 3),
        "same_audio": len(codes) == 1,
        "notes": list(speech.warnings),
    }


class _DynamicVram:
    """comfy-aimdo active as in ComfyUI, its pages over most of the card, so that new allocations must evict some."""

    def __init__(self):
        import comfy_aimdo.control as control

        control.init()
        self._control = control

    def fill(self):
        """10 GB of pages, and all but 3 GB of the rest taken: opening an engine has to evict."""
        import comfy_aimdo.model_vbar as vbar
        import torch

        if not self._control.init_devices([0]):
            raise SystemExit("comfy-aimdo could not be started")
        self._pages = vbar.ModelVBAR(12 * GB, 0)
        block = self._pages.alloc(10 * GB)
        vbar.vbar_fault(block)
        vbar.vbar_unpin(block)
        self._rest = torch.empty(_free() - 3 * GB, dtype=torch.uint8, device="cuda")


def _reload(args) -> dict:
    """Seconds to bring the weights back from the page cache, and the same bytes through pinned buffers alone."""
    import torch

    from engine import Engine, EngineConfig
    from engine.checkpoint import talker_bytes
    from engine.upload import Job, upload

    engine = Engine(EngineConfig(model=args.folder, dtype=args.dtype, context=1024, device="cuda:0"))
    path = pathlib.Path(args.folder, "model.safetensors")
    size = talker_bytes(engine.checkpoint, torch.bfloat16)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    job = Job(path, path.stat().st_size - size, torch.uint8, target)
    seconds = {"open": [], "ceiling": []}
    for _ in range(4):
        began = time.perf_counter()
        upload([job], engine.device)
        seconds["ceiling"].append(time.perf_counter() - began)
    del target, job
    for _ in range(4):
        began = time.perf_counter()
        engine.open()
        torch.cuda.synchronize()
        seconds["open"].append(time.perf_counter() - began)
        engine.close()
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "gigabytes": round(size / 1e9, 3),
        "open_seconds": round(best["open"], 3),
        "open_gb_s": round(size / best["open"] / 1e9, 2),
        "ceiling_gb_s": round(size / best["ceiling"] / 1e9, 2),
        "share_of_ceiling": round(best["ceiling"] / best["open"], 3),
        "memory_map_gb_s": round(_mapped_rate(engine), 2),
    }


def _mapped_rate(engine) -> float:
    """GB/s of the plain way: each tensor copied from its memory map."""
    import torch

    file, size = engine.checkpoint.talker, 0
    names = [name for name in file.shapes if "layers." in name][:60]
    began = time.perf_counter()
    for name in names:
        tensor = file.get(name, "cuda")
        size += tensor.nbytes
    torch.cuda.synchronize()
    return size / (time.perf_counter() - began) / 1e9


def _free() -> int:
    import torch

    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


WORKERS = {"cycles": _cycles, "reload": _reload}

if __name__ == "__main__":
    main()
