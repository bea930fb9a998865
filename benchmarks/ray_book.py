"""A book by Ray workers, one of them killed half-way, compared byte for byte with the same book without Ray.

    python benchmarks/ray_book.py --actors 2 [--device cuda] [--model FOLDER]

Needs ray. Run it in the pack's folder, where the workers look for the engine. Writes a row of "ray_book" in
results/serve.json, and prints it as JSON last. `lost`: files of sequences missing at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import tempfile
import time

from book import digests, make_book
from common import ROOT, put
from serve import where

from engine import EMBEDDED, BookSettings, Engine, EngineConfig, SamplingParams, narrate, read_book

RESULT = ROOT / "benchmarks" / "results" / "serve.json"
KILL_AT = 0.3  # of the book
MOST_FRAMES = 250  # of a chunk; random weights speak that long


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=3.0, help="of the book, by estimate")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default=str(EMBEDDED))
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = compare(given, pathlib.Path(folder)) | where(given.device)
    result = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    result["ray_book"] = put(result.get("ray_book", []), row, ("actors", "gpu", "checkpoint"))
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row))


def compare(given: argparse.Namespace, folder: pathlib.Path) -> dict:
    """Speak both books and return the row."""
    from engine.tools.engine_choice import engine_on

    (folder / "book.md").write_text(make_book(given.minutes), encoding="utf-8")
    book, config = read_book(folder / "book.md"), EngineConfig(given.model, device=given.device)
    what = book, folder / "plain", {}, SamplingParams(seed=1, max_frames=MOST_FRAMES, retries=0)
    with Engine(config) as engine:
        plain = narrate(engine, *what)
    killed: list[int] = []
    began = time.perf_counter()
    with engine_on(argparse.Namespace(ray="", ray_actors=given.actors), config) as cluster:
        opened = time.perf_counter() - began

        def kill_one(progress):
            if not killed and progress.share > KILL_AT:
                running = [worker for worker in cluster.workers() if worker["state"] == "running"]
                killed.append(running[0]["process"])
                os.kill(killed[0], signal.SIGKILL)

        spread = narrate(
            cluster,
            book,
            folder / "ray",
            *what[2:],
            on_progress=kill_one,
            settings=BookSettings(devices=cluster.devices),
        )
    with_ray, without = digests(folder / "ray"), digests(folder / "plain")
    return {
        "actors": given.actors,
        "killed": len(killed),
        "lost": len(without.keys() - with_ray.keys()),
        "same_bytes": with_ray == without,
        "files": len(without),
        "minutes": round(plain.seconds / 60, 2),
        "seconds": round(spread.elapsed, 1),
        "seconds_without": round(plain.elapsed, 1),
        "seconds_to_open": round(opened, 1),
        "how": spread.how,
        "warnings": list(spread.warnings),
        "checkpoint": "embedded" if given.model == str(EMBEDDED) else pathlib.Path(given.model).name,
    }


if __name__ == "__main__":
    main()
