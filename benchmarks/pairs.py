"""Two versions of the engine in turn on one GPU, a process each: steps, batches, first sound, an hour, and unloading.

    python benchmarks/pairs.py --before FOLDER [--pairs 5] [--out benchmarks/results/house.json]
    python benchmarks/pairs.py --before FOLDER --batches bf16 [--rows 2,4,8,32,64]    # steps alone: results/decode.json

Random weights in the published shape of v3, bf16. Writes "pairs": each figure's values in the order of the runs, the
medians, and whether the new median lies within the spread of the old runs. With --batches, milliseconds of a step by
format and rows, and of reading its bytes alone, the floor. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from common import DEVICE, ROOT, card, write_shapes
from decode import MEAN_CONTEXT

SENTENCE = "The harbour was quiet, and the boats lay still under a sky without any wind at all. "
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="checkout of the older version")
    parser.add_argument("--before-commit", default="")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--batches", help="formats of weights whose steps are timed, with commas")
    parser.add_argument("--rows", default="2,4,8,32,64")
    parser.add_argument("--out", type=pathlib.Path, help="results/house.json, or results/decode.json")
    parser.add_argument("--worker", type=pathlib.Path)
    parser.add_argument("--model")
    given = parser.parse_args()
    if given.worker:
        sys.path.insert(0, str(given.worker))
        print(json.dumps(steps(given) if given.batches else work(given.model, given.minutes)))
        return
    given.out = given.out or ROOT / "benchmarks" / "results" / ("decode.json" if given.batches else "house.json")
    runs: dict[str, list[dict]] = {"old": [], "new": []}
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder)
        if not given.batches:
            model = write_shapes(model, "v3", given.layers, whole_codec=True)
        for number in range(given.pairs):
            for name, root in (("old", given.before), ("new", ROOT)):
                runs[name].append(one(root, model, given))
                print(number, name, runs[name][-1], flush=True)
            found = card() | {"before": given.before_commit, "weights": "v3, random, bf16", "figures": figures(runs)}
            result = json.loads(given.out.read_text()) if given.out.is_file() else {}
            if given.batches:
                others = result.get("pairs", {}).get("figures", {})  # of other formats
                found |= {"weights": "v3, random", "figures": others | found["figures"]}
            given.out.write_text(json.dumps(result | {"pairs": found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: row["medians"] for name, row in found["figures"].items()}))


def one(root: pathlib.Path, model: pathlib.Path, given: argparse.Namespace) -> dict:
    """Run one version once."""
    command = [sys.executable, str(HERE), "--worker", str(root), "--model", str(model)]
    command += ["--minutes", str(given.minutes), "--rows", given.rows]
    command += ["--batches", given.batches] if given.batches else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def figures(runs: dict[str, list[dict]]) -> dict:
    """Return each figure's values and medians, and whether the new median is no worse than the old runs' spread."""
    found = {}
    for name in runs["old"][0]:
        old, new = ([run[name] for run in runs[which]] for which in ("old", "new"))
        medians = [statistics.median(old), statistics.median(new)]
        found[name] = {"old": old, "new": new, "medians": medians, "within": medians[1] <= max(old)}
    return found


def steps(given: argparse.Namespace) -> dict:
    """Return the milliseconds of a step by format and rows, and the floor: its bytes at the measured read rate."""
    import torch

    import engine as pack
    from engine.tools.bench import opened, read_rate, step_bytes, time_step
    from engine.tools.published import write_hollow

    write_hollow(pathlib.Path(given.model), "v3", given.layers)
    rate, found = read_rate(torch.device(DEVICE)), {}
    for weights in given.batches.split(","):
        config = pack.EngineConfig(given.model, device=DEVICE, dtype=weights, context=1024)
        with torch.inference_mode(), opened(pack.Engine(config), hollow=True) as loaded:
            for rows in map(int, given.rows.split(",")):
                with loaded.runner_for(rows, 1024) as runner:
                    found[f"{weights} {rows} ms"] = round(time_step(runner, MEAN_CONTEXT), 4)
                floor = 1000 * step_bytes(loaded.talker, MEAN_CONTEXT, rows) / rate
                found[f"{weights} {rows} floor_ms"] = round(floor, 4)
    return found


def work(model: str, minutes: float) -> dict:
    """Measure the engine on the path. For all figures, lower is better."""
    import torch

    import engine as pack

    def opened(**settings):
        return pack.Engine(pack.EngineConfig(model, device=DEVICE, dtype="bf16", **settings))

    def listens(hear) -> dict:
        """Return a listener's keyword argument, whose name older versions spell differently."""
        return {"listener": pack.Listener(on_audio=hear)} if hasattr(pack, "Listener") else {"on_audio": hear}

    def step_ms(engine, rows: int, frames: int) -> float:
        params = pack.SamplingParams(seed=1, max_frames=frames, retries=0, chunk_seconds=8.0)
        engine.speak(SENTENCE * rows, voice, params)
        speech = engine.speak(SENTENCE * rows, voice, params)
        assert speech.chunks == rows, speech.chunks
        return round(1000 * speech.elapsed * rows / speech.frames, 4)

    codes = torch.randint(0, 1024, (250, 8), generator=torch.Generator().manual_seed(0))
    voice, found = pack.Voice(codes, "What the clip says, in about these words."), {}
    with opened(context=2048) as engine:  # allocates what the process keeps for good
        found["step_ms"] = step_ms(engine, 1, 1000)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    with opened(context=2048) as engine:
        waited, params = [], pack.SamplingParams(seed=1, max_frames=60, retries=0)
        for _ in range(9):
            heard, began = [], time.perf_counter()
            engine.speak(SENTENCE, voice, params, **listens(lambda wav, heard=heard: heard.append(time.perf_counter())))
            waited.append(1000 * (heard[0] - began))
        found["first_sound_ms"] = round(statistics.median(waited), 2)
        found["batch_8_ms"] = step_ms(engine, 8, 400)
        found["batch_64_ms"] = step_ms(engine, 64, 400)
        count = round(60 * minutes / 24)
        params = pack.SamplingParams(seed=1, max_frames=600, retries=0, chunk_seconds=8.0)
        began = time.perf_counter()
        speech = engine.speak(SENTENCE * count, voice, params)
        found["narration_s_an_hour"] = round((time.perf_counter() - began) * 3600 / speech.seconds, 3)
    torch.cuda.empty_cache()
    found["left_bytes"] = free - torch.cuda.mem_get_info()[0]
    return found


if __name__ == "__main__":
    main()
