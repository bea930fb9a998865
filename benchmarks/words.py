"""The cost of word times beside speaking, by attention and by Whisper, for random weights of a published shape.

    python benchmarks/words.py v3 --device cuda:0 --write [--whisper FOLDER]

Writes a row of "shapes" in results/words.json. FOLDER is in transformers' format. `training/word_times.py` measures how
exact the times are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from common import ROOT, commit, put, write_shapes

from engine import Engine, EngineConfig, SamplingParams

RESULT = ROOT / "benchmarks" / "results" / "words.json"
NARRATION = "It rained all night, and the river rose above the road. " * 4


class Head(NamedTuple):
    """An attention head, as `Engine.words_by` takes it."""

    layer: int
    head: int
    lag: int = 0


EXAMPLE = (Head(18, 3), Head(20, 5), Head(24, 7))  # as many, and as deep, as a trained talker may have


def clock(device: torch.device) -> float:
    """Return seconds of work: of the processor on a CPU, where other programs run too, else of the clock."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def judge_shape(family: str, device: str, whisper: pathlib.Path | None) -> dict:
    """Return the heads found in random weights of a published shape, and the cost of alignment there."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        model = write_shapes(pathlib.Path(folder), family, None)
        config = EngineConfig(str(model), device=device, whisper=str(whisper) if whisper else None)
        with Engine(config) as engine:
            engine.speak("Hello.", params=SamplingParams(max_frames=50))
            begin = clock(engine.device)
            heads = engine.heads()
            looked = clock(engine.device) - begin
            begin = clock(engine.device)
            speech = engine.speak(NARRATION, params=SamplingParams(max_frames=400, retries=0))
            spoken = clock(engine.device) - begin
            times["words"] = timed(lambda: engine.words_by(EXAMPLE, speech), engine.device)
            if whisper and not heads:  # whose attention would come first
                begin = clock(engine.device)
                engine.words(speech)
                times["whisper_load"] = [clock(engine.device) - begin]
                times["whisper"] = timed(lambda: engine.words(speech), engine.device)
    costs = {name: round(100 * float(np.median(taken)) / spoken, 2) for name, taken in times.items()}
    return {
        "shape": family,
        "heads": [list(head) for head in heads],
        "says": "aligning heads" if heads else "no aligning heads",
        "look_s": round(looked, 2),
        "frames": speech.frames,
        "speak_s": round(spoken, 3),
        **{f"{name}_s": [round(one, 4) for one in taken] for name, taken in times.items()},
        "cost_pct": costs["words"],
        **({"whisper_cost_pct": costs["whisper"], "whisper": whisper.name} if "whisper" in times else {}),
    }


def timed(work: Callable[[], object], device: torch.device) -> list[float]:
    """Return the seconds of each of five calls."""
    times = []
    for _ in range(5):
        begin = clock(device)
        work()
        times.append(clock(device) - begin)
    return times


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=("v2", "v3"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--whisper", type=pathlib.Path, help="folder of a Whisper to time too")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the engine does; more wait for each other beside other programs
    row = judge_shape(given.shape, given.device, given.whisper)
    row |= {
        "machine": torch.cuda.get_device_name(given.device) if given.device != "cpu" else f"CPU, {platform.machine()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": str(datetime.date.today()),
        "commit": commit(),
    }
    print(json.dumps(row, indent=1))
    if given.write:
        result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {"rows": [], "shapes": []}
        result["shapes"] = put(result["shapes"], row, ("shape", "machine"))
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
