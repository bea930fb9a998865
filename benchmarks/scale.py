"""Wall time of an hour of speech, on one GPU and on all. Needs CUDA GPUs.

    python benchmarks/scale.py --cards 2                    an hour of each kind, on one GPU and on two
    python benchmarks/scale.py --before ../earlier          narration against the engine in another folder, in turn
    python benchmarks/scale.py --only narration --minutes 10

Random weights in the published shape never end by themselves, so each chunk ends at a length drawn around its estimate.
Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import sys
import tempfile
import time
from importlib import import_module

import torch
from common import ROOT, card, earlier, put, write_shapes

RESULT = ROOT / "benchmarks" / "results" / "scale.json"
HOWS = ("narration, voice given", "narration", "dialogue")
# Five of it are a chunk of nearly 30 s.
SENTENCE = "The harbour was quiet, and the boats lay still under a wide sky without any wind at all. "
SPEAKERS, TURN_SENTENCES = 4, 2
SPREAD = 0.3  # of lengths, around their estimates
KEYS = ("how", "engine", "cards", "asked")


def main():
    """Run the benchmark; the last line of output is JSON."""
    args = _arguments()
    result = earlier(args.out, card(), {"rows": []}) | {"cards": args.cards}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = args.folder or write_shapes(pathlib.Path(folder), "v3", args.layers, whole_codec=True)
        ours = [stack.enter_context(opened("engine", str(folder), card)) for card in range(args.cards)]
        speakers = {("after", 1): ("engine", ours[0])}
        if args.before:
            pack = beside(args.before)
            speakers["before", 1] = pack, stack.enter_context(opened(pack, str(folder)))
        if args.cards > 1:
            speakers["after", args.cards] = "engine", import_module("engine").Engines(ours)
            speak(*speakers["after", args.cards], HOWS[0], 2.0)
        for how in args.only.split(";"):
            for minutes in map(float, args.minutes.split(",")):
                asked = {key: one for key, one in speakers.items() if how == "narration" or key[0] == "after"}
                measure(asked, how, minutes, args.rounds, result)
                args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(HOWS), help="kinds of speech, with semicolons")
    parser.add_argument("--minutes", default="60")
    parser.add_argument("--cards", type=int, default=1, help="GPUs to speak on together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", type=pathlib.Path, help="folder with the engine/ to compare with")
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--folder", type=pathlib.Path, help="what tests/real_shapes.py wrote before")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    return parser.parse_args()


def beside(folder: pathlib.Path) -> str:
    """Import the engine/ of another folder under its own name."""
    name, path = "engine_before", folder.resolve() / "engine"
    spec = importlib.util.spec_from_file_location(name, path / "__init__.py", submodule_search_locations=[str(path)])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return name


@contextlib.contextmanager
def opened(pack: str, folder: str, card: int = 0):
    """Yield a warmed-up engine of that package, whose chunks end."""
    module = import_module(pack)
    with module.Engine(module.EngineConfig(folder, device=f"cuda:{card}")) as engine:
        end_chunks(engine)
        speak(pack, engine, HOWS[0], 2.0)
        yield engine


def end_chunks(engine):
    """Set each chunk's limit to a length around its estimate, before its prompt is decoded."""
    prompts = engine.loaded.prompts()
    name = "begin" if hasattr(prompts, "begin") else "fills"  # in older versions
    begin = getattr(prompts, name)

    def ending(state, admitted, *rest):
        for _, sequence in admitted:
            frames = round(sequence.expected * (1 - SPREAD / 2 + SPREAD * (0.618 * sequence.index % 1)))
            sequence.params = dataclasses.replace(sequence.params, max_frames=frames)
        return begin(state, admitted, *rest)

    setattr(prompts, name, ending)


def speak(pack: str, engine, how: str, minutes: float):
    """Speak an estimated number of minutes of that kind."""
    module = import_module(pack)
    params = module.SamplingParams(retries=0)
    sentences = round(60 * minutes / module.estimate_seconds(SENTENCE))
    codes = torch.randint(0, 1024, (SPEAKERS, 250, 8), generator=torch.Generator().manual_seed(0))
    voices = {str(number): module.Voice(one, "What the clip says, about so.") for number, one in enumerate(codes)}
    if how == "dialogue":
        count = sentences // TURN_SENTENCES
        turns = [module.Turn(str(number % SPEAKERS), TURN_SENTENCES * SENTENCE) for number in range(count)]
        return engine.speak_turns(turns, voices, params, reuse=False)
    return engine.speak(sentences * SENTENCE, voices["0"] if "given" in how else None, params)


def measure(speakers: dict, how: str, minutes: float, rounds: int, result: dict):
    """Measure all in turn. Adds a row with each one's best round."""
    found, codes = {}, {}
    for _ in range(rounds):
        for (name, cards), (pack, engine) in speakers.items():
            began = time.perf_counter()
            speech = speak(pack, engine, how, minutes)
            seconds = time.perf_counter() - began
            codes[name, cards] = speech.codes
            row = {
                "how": how,
                "engine": name,
                "cards": cards,
                "asked": minutes,
                "minutes": round(speech.seconds / 60, 2),
                "seconds": round(seconds, 2),
                "audio_s_per_s": round(speech.seconds / seconds, 1),
                "chunks": speech.chunks,
                "peak_gb": round(getattr(speech, "peak_bytes", 0) / 1e9, 2),
                "backend": speech.how,
            }
            print(row, speech.warnings, flush=True)
            if (name, cards) not in found or seconds < found[name, cards]["seconds"]:
                found[name, cards] = row
    for (name, cards), row in found.items():
        row["same_codes"] = torch.equal(codes[name, cards], codes["after", 1])
        result["rows"] = put(result["rows"], row, KEYS)


if __name__ == "__main__":
    main()
