"""Cost of a listener to the talker on a GPU: frames/s of Higgs Speak in a real ComfyUI, with and without, in turns.

    python benchmarks/live_cost.py [--model FOLDER]

The page is a client that follows the sound as pages do. Without FOLDER: random weights in the published shapes of Higgs
TTS 3. COMFYUI_PATH and COMFYUI_PYTHON are as for the tests in tests/comfyui. Puts "h200" into --out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "comfyui"))

from common import card, write_shapes
from server import CHECKPOINT, ROOT, TODAY, Comfy, lay_out, read_workflow

TEXT = "The train leaves at half past seven. " * 4
FRAMES = 1000
WARM_UP = 2  # runs that compile and capture


def main():
    args = _arguments()
    if "COMFYUI_PATH" not in os.environ:
        raise SystemExit("Set COMFYUI_PATH to the folder of a ComfyUI.")
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base")
        lay_out(base)
        target = base / "models" / "higgs_tts" / CHECKPOINT
        if args.model:
            target.symlink_to(pathlib.Path(args.model).resolve(), target_is_directory=True)
        else:
            write_shapes(target, "v3", args.layers)
        row = _row(base, args)
    out = pathlib.Path(args.out)
    result = json.loads(out.read_text()) if out.is_file() else {"rows": []}
    out.write_text(json.dumps(result | {"h200": row}, indent=1) + "\n")
    print(json.dumps(row))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a checkpoint")
    parser.add_argument("--layers", type=int, default=36, help="layers of the published width, without --model")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each kind")
    parser.add_argument("--cpu", action="store_true", help="to try this script")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "live.json"))
    return parser.parse_args()


def _row(base: pathlib.Path, args) -> dict:
    comfy, rates = Comfy(base, ("--cpu",) if args.cpu else ()), {"without": [], "with": []}
    try:
        for number in range(2 * args.rounds + WARM_UP):
            kind = ("without", "with")[number % 2]
            rate = _speak(comfy, number, kind == "with")
            if number >= WARM_UP:
                rates[kind].append(rate)
    finally:
        comfy.stop()
    medians = {kind: round(statistics.median(values), 1) for kind, values in rates.items()}
    told = {} if args.cpu else card()
    return medians | {"runs": rates, "model": args.model or f"random weights, {args.layers} layers", **told}


def _speak(comfy: Comfy, seed: int, listens: bool) -> float:
    """Return the frames/s in the info output. A listener follows the sound like a page."""
    spoken = {"seed": seed, "retries": 0, "temperature": 1.0, "text": TEXT}
    prompt = read_workflow("speak", FRAMES, TODAY, HiggsTTSSpeak=spoken, HiggsTTSLoadModel={"model": CHECKPOINT})
    comfy.post("/higgs_tts/listen", {"client": comfy.client, "on": listens})
    with ThreadPoolExecutor() as pages:
        heard = []

        def on_event(message):
            if message["type"] == "higgs_tts.run":
                heard.append(pages.submit(_follow, comfy, message["data"]["id"]))

        outcome = comfy.run(prompt, on_event)
        assert [page.result() for page in heard] == ["complete"] * listens
    return float(re.search(r"([\d.]+) frames/s", outcome.text()).group(1))


def _follow(comfy: Comfy, run: str) -> str:
    """Fetch news and samples to the end, and return how the sound ended."""
    told, at = {"version": -1, "revision": 0, "state": "speaking"}, 0
    while told["state"] == "speaking":
        told = comfy.get(f"/higgs_tts/runs/{run}?version={told['version']}&revision={told['revision']}&outline=0")
        asked = f"revision={told['revision']}&start={at}&stop={told['samples']}"
        at += len(comfy.fetch(f"/higgs_tts/runs/{run}/samples?{asked}")) // 2
    return told["state"]


if __name__ == "__main__":
    main()
