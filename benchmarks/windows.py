"""The codec's windows by shape: what they take of the host and the device, launched op by op and as captured graphs.

    python benchmarks/windows.py [--lengths 45,95,220] [--rows 1,2,4,8] [--out benchmarks/results/host.json]

Random weights in the codec's published shape. A row of "window" is a shape under the allocator of the process: medians
in milliseconds of the host (`host_ms`, and `eager_host_ms` op by op) and of the device, how long a capture takes, how
much memory the driver counts for it, and what is left of that afterwards. `off`: the last row's distance from the same
window alone, of its norm. The last line of output is JSON. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import tempfile
import time

from common import ROOT, card, put, write_shapes

REPEATS = 20


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="45,95,220", help="frames that windows are padded to")
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "host.json")
    given = parser.parse_args()
    import torch

    from engine import Engine, EngineConfig

    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    facts = card() | {"allocator": torch.cuda.get_allocator_backend()}
    with tempfile.TemporaryDirectory() as folder:
        model = write_shapes(pathlib.Path(folder), "v3", 2, whole_codec=True)
        config = EngineConfig(str(model), device="cuda:0", context=1024)
        eager = dataclasses.replace(config, runner="eager")
        with torch.inference_mode(), Engine(config) as engine, Engine(eager) as plain:
            for length in map(int, given.lengths.split(",")):
                for rows in map(int, given.rows.split(",")):
                    row = facts | {"rows": rows, "length": length}
                    row |= measure(engine.loaded.windows(), plain.loaded.windows(), rows, length)
                    result["window"] = put(result.get("window", []), row, ("gpu", "allocator", "rows", "length"))
                    print(row, flush=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"window": result["window"]}))


def measure(graphs, plain, rows: int, length: int) -> dict:
    """Return the figures of one shape. plain: windows without captures."""
    import torch

    clips = [torch.randint(0, 1024, (length, 8)) for _ in range(rows)]
    graphs.close()
    before = used_mb()
    began = time.perf_counter()
    graphs.capture(rows, length)
    took = time.perf_counter() - began
    if graphs.note:
        return {"note": graphs.note}
    held = used_mb() - before
    captured = graphs.decode(clips, rows, length).clone()
    alone = plain.decode(clips[-1:], 1, length)[0]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        graphs.decode(clips, rows, length)
    end.record()
    torch.cuda.synchronize()
    figures = {
        "host_ms": host_ms(lambda: graphs.decode(clips, rows, length)),
        "eager_host_ms": host_ms(lambda: plain.decode(clips, rows, length)),
        "device_ms": round(begin.elapsed_time(end) / REPEATS, 3),
        "capture_ms": round(1000 * took, 1),
        "held_mb": round(held, 1),
        "off": round(float((captured[-1] - alone).norm() / alone.norm()), 6),
    }
    graphs.close()
    return figures | {"left_mb": round(used_mb() - before, 1)}


def host_ms(run) -> float:
    """Return the median milliseconds until a call returns."""
    import torch

    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        took.append(1000 * (time.perf_counter() - began))
        torch.cuda.synchronize()
    return round(statistics.median(took), 3)


def used_mb() -> float:
    """Return the megabytes of the device that are taken, after emptying torch's cache."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / (1 << 20)


if __name__ == "__main__":
    main()
