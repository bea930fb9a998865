"""Wall time of an hour of speech, on one GPU and on all, and where the time goes. Needs CUDA GPUs.

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
import functools
import importlib.util
import json
import pathlib
import sys
import tempfile
import time
from collections import Counter
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
REST = "the rest"


def main():
    """Run the benchmark; the last line of output is JSON."""
    args = _arguments()
    result = earlier(args.out, card(), {"rows": [], "causes": {}}) | {"cards": args.cards}
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
                args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(HOWS), help="kinds of speech, with semicolons")
    parser.add_argument("--minutes", default="60")
    parser.add_argument("--cards", type=int, default=1, help="GPUs to speak on together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", type=pathlib.Path, help="folder with the engine/ to compare with")
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial of the script itself")
    parser.add_argument("--folder", type=pathlib.Path, help="what real_shapes.py wrote before")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    return parser.parse_args()


def beside(folder: pathlib.Path) -> str:
    """Import the engine/ of another folder under its own name."""
    name, path = "engine_before", folder.resolve() / "engine"
    spec = importlib.util.spec_from_file_location(name, path / "__init__.py", submodule_search_locations=[str(path)])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return name


def part_of(pack: str, name: str):
    """Return a loaded module of that package by the end of its name, or None: versions have it in different folders."""
    ends = f".{name}"
    found = (part for full, part in sys.modules.items() if full.startswith(f"{pack}.") and full.endswith(ends))
    return next(found, None)


@contextlib.contextmanager
def opened(pack: str, folder: str, card: int = 0):
    """Yield a warmed-up engine of that package, whose chunks end."""
    module = import_module(pack)
    end_chunks(pack)
    with module.Engine(module.EngineConfig(folder, device=f"cuda:{card}")) as engine:
        speak(pack, engine, HOWS[0], 2.0)
        yield engine


@functools.cache
def end_chunks(pack: str):
    """Set each chunk's limit to a length around its estimate."""
    builder = import_module(f"{pack}.prompt.sequences").SequenceBuilder
    build = builder.build

    def ending(self, chunk):
        sequence = build(self, chunk)
        frames = round(sequence.expected * (1 - SPREAD / 2 + SPREAD * (0.618 * chunk.index % 1)))
        sequence.params = dataclasses.replace(sequence.params, max_frames=frames)
        return sequence

    builder.build = ending


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
    """Measure all in turn. Adds a row with each one's best round, and the causes of one GPU."""
    found, codes = {}, {}
    for _ in range(rounds):
        for (name, cards), (pack, engine) in speakers.items():
            causes = Causes(pack)
            with causes if cards == 1 else contextlib.nullcontext():
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
            print(row, causes.table(seconds) if cards == 1 else speech.warnings, flush=True)
            if (name, cards) not in found or seconds < found[name, cards][0]["seconds"]:
                found[name, cards] = row, causes.table(seconds)
    for (name, cards), (row, table) in found.items():
        row["same_codes"] = torch.equal(codes[name, cards], codes["after", 1])
        result["rows"] = put(result["rows"], row, KEYS)
        if cards == 1:
            result["causes"].setdefault(name, {})[f"{how}, {minutes:g} min"] = table


_GENERATORS = ("fills", "__iter__", "push")


class Causes:
    """Host seconds by cause, each counted once: a caller's time excludes its callees'."""

    def __init__(self, pack: str):
        self.seconds, self.calls = Counter(), Counter()
        self._stack: list[str] = []
        self._since = 0.0
        self._alone = 0  # inside the first chunk
        self._patches = contextlib.ExitStack()
        self._plan = [
            ("text and prompts' ids", "prompt.sequences", "SequenceBuilder", ("build", "chunk_seconds")),
            ("steps, launched", "decode.model_runner", "ModelRunner", ("step",)),
            ("a batch's memory and capture", "decode.model_runner", "ModelRunner", ("__init__", "close")),
            ("codec windows, launched", "codec.stream", "SideStreamWindows", ("begin",)),
            ("the last sound, waited for", "codec.stream", "SideStreamWindows", ("finish",)),
            ("sound, taken in", "codec.waveform", "Waveform", ("poll", "submit", "finish")),
            ("sound, joined", "audio.assembly", "Assembly", ("append", "stream", "finish")),
            ("attempts, judged", "speech.attempts", "Attempts", ("add",)),
            ("prompts, launched", "decode.prompts", "Prefill", ("fills",)),
            ("codes, read and sorted", "decode.scheduler", "Scheduler", ("__iter__",)),
            ("sound, cut into windows", "codec.waveform", "Sound", ("push",)),
        ]
        self._pack = pack

    def __enter__(self) -> Causes:
        for cause, module, owner, names in self._plan:
            for name in names:
                if part := part_of(self._pack, module):  # what an older version lacks counts as its caller's
                    self._patch(getattr(part, owner), name, cause, generator=name in _GENERATORS)
        self._patch(torch.cuda.Event, "synchronize", "steps, waited for")
        self._watch_first(part_of(self._pack, "loaded_model").LoadedModel)
        self._since = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._patches.close()

    def table(self, wall: float) -> dict:
        """Return seconds by cause, largest first, the unexplained rest, and the numbers of steps and prompts."""
        found = {cause: round(seconds, 3) for cause, seconds in self.seconds.most_common()}
        found[REST] = round(wall - sum(self.seconds.values()), 3)
        return found | {"wall": round(wall, 3), "calls": dict(self.calls)}

    def _patch(self, owner, name: str, cause: str, generator: bool = False):
        plain = getattr(owner, name)

        def timed(*args, **kwargs):
            with self._as(cause):
                return plain(*args, **kwargs)

        def timed_generator(*args, **kwargs):
            steps = plain(*args, **kwargs)
            while True:
                with self._as(cause):
                    try:
                        found = next(steps)
                    except StopIteration:
                        return
                yield found

        self._set(owner, name, timed_generator if generator else timed)

    def _set(self, owner, name: str, value):
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._patches.callback(setattr, owner, name, before)

    def _watch_first(self, loaded):
        """Count a sequence decoded alone, in the single-row runner, as one cause with all its calls."""
        plain = loaded.runner_for

        @contextlib.contextmanager
        def watched(model, count, max_seq_len, alone=True):
            first = alone and count == 1
            cause = "the first chunk, alone" if first else "a batch's memory and capture"
            runner = plain(model, count, max_seq_len, alone)
            with self._as(cause):
                entered = runner.__enter__()
            with self._as(cause) if first else contextlib.nullcontext():
                self._alone += first
                try:
                    yield entered
                finally:
                    self._alone -= first
            with self._as(cause):
                runner.__exit__(None, None, None)

        self._set(loaded, "runner_for", watched)

    @contextlib.contextmanager
    def _as(self, cause: str):
        cause = self._stack[-1] if self._alone and self._stack else cause
        if not self._alone:
            self.calls[cause] += 1
        self._charge()
        self._stack.append(cause)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def _charge(self):
        """Charge the elapsed time to the current cause."""
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


if __name__ == "__main__":
    main()
