#!/usr/bin/env python
"""Measure the check of speech: what it finds, what mending leaves, and what it costs.

    python benchmarks/check.py speak before.npz --device cuda --seconds 30 --no-check   prose.txt by all voices and none
    python benchmarks/check.py hear before.npz before.json --whisper FOLDER --device cuda
    python benchmarks/check.py planted before.npz before.json --write [--spliced spliced.npz]
    python benchmarks/check.py natural before.npz before.json --write
    python benchmarks/check.py residual before.npz before.json after.npz after.json [heard.npz heard.json] --write
    python benchmarks/check.py verdicts before.npz --device cpu --out cpu.json          equal on every device?
    python benchmarks/check.py cost --device cuda [--shape v3] [--rows 64] --write

FOLDER holds a Whisper in transformers' format; whisper-base is the judge. Results go into results/check.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch
from common import ROOT, commit, put, write_shapes
from listening import Ear, faults

from engine import (
    BUILT_IN_CLIPS,
    EMBEDDED,
    Engine,
    EngineConfig,
    Listener,
    SamplingParams,
    SpeechResult,
    Turn,
    Voice,
    estimate_seconds,
    read_clip,
    transcript_of,
)

RESULT = ROOT / "benchmarks" / "results" / "check.json"
CARD = "higgs_tts.json"
PROSE = ROOT / "benchmarks" / "prose.txt"
HEADS = [[18, 3, 0], [20, 5, 0], [22, 1, 0]]  # of 36 layers
AWAY = 0.5  # seconds from the place
MOST_WORDS = 8  # of a planted phrase
EDGE = 3  # words before and after it


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (speak, hear, planted, natural, residual, verdicts, cost):
        command = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        command.add_argument("files", nargs="*", type=pathlib.Path)
        command.add_argument("--device", default="cpu")
        command.add_argument("--write", action="store_true")
        command.add_argument("--seconds", type=float, default=30.0, help="the longest chunk")
        command.add_argument("--no-check", action="store_true")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--whisper", type=pathlib.Path)
        command.add_argument("--count", type=int, default=500)
        command.add_argument("--spliced", type=pathlib.Path)
        command.add_argument("--model", type=pathlib.Path, default=EMBEDDED, help="another embedded model")
        command.add_argument("--shape", default="")
        command.add_argument("--rows", type=int, default=1)
        command.add_argument("--listen", action="store_true", help="as somebody who listens hears it")
        command.add_argument("--whole", action="store_true", help="cut each passage to one chunk")
    given = parser.parse_args()
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        given.folder = pathlib.Path(folder)
        given.run(given)


class Codes:
    """A store of `speak_turns` that has the codes of each turn, in order, so that nothing is decoded."""

    def __init__(self, codes: list[torch.Tensor]):
        self._left = iter(codes)

    def fill(self, sequence) -> bool:
        sequence.fill(next(self._left), ended=True)
        return True

    def keep(self, asked, spoken) -> None:
        """Do nothing."""


def opened(given: argparse.Namespace) -> Engine:
    """Open the model without the longest chunk of its card: `--seconds` decides alone."""
    model = pathlib.Path(shutil.copytree(given.model, given.folder / "embedded"))
    card = json.loads((model / CARD).read_text(encoding="utf-8"))
    (model / CARD).write_text(json.dumps({**card, "chunk_seconds": given.seconds}), encoding="utf-8")
    engine = Engine(EngineConfig(str(model), device=given.device))
    engine.open()
    return engine


def speak(given: argparse.Namespace):
    """Speak the prose by each built-in voice and by none, and keep texts, codes and what was said of them."""
    engine, texts, voices, codes, doubts = opened(given), [], [], [], []
    clips = sorted(BUILT_IN_CLIPS.glob("*.flac"))
    made = {clip.stem: engine.encode_voice(*read_clip(clip), transcript=transcript_of(clip)[0]) for clip in clips}
    retries = 0 if given.no_check else SamplingParams.retries
    params = SamplingParams(seed=given.seed, retries=retries, chunk_seconds=given.seconds, check=not given.no_check)
    passages, began, again = prose(given.whole and given.seconds), time.perf_counter(), 0
    for name in [*made, ""]:
        for speech in by_voice(engine, passages[: given.count], name, made.get(name), params, given.listen):
            again += len(speech.spoken_again)
            for chunk in speech.said:
                texts.append(chunk.text)
                voices.append(name or "none")
                codes.append(speech.codes[slice(*chunk.frames)].to(torch.int16).numpy())
                doubts.append([one.kind for one in chunk.verdict.doubts] if chunk.verdict else None)
    told = {"texts": texts, "voices": voices, "doubts": doubts, "spoken_again": again}
    told |= {"took": time.perf_counter() - began, "chunk_seconds": given.seconds, "about": about(engine)}
    np.savez_compressed(
        given.files[0], codes=np.concatenate(codes), lengths=list(map(len, codes)), told=json.dumps(told)
    )
    print(
        len(texts), "chunks", sum(map(len, codes)) / 25, "s of speech in", round(told["took"], 1), "s,", again, "again"
    )


def by_voice(
    engine: Engine, passages: list[str], name: str, voice: Voice | None, params: SamplingParams, listen: bool
) -> Iterator[SpeechResult]:
    """Speak passages together, or one by one while somebody listens."""
    if listen:
        for passage in passages:
            yield engine.speak(passage, voice, params, listener=Listener(on_audio=lambda wav: None))
    else:
        turns = [Turn(name or f"Nobody{number}", passage) for number, passage in enumerate(passages)]
        yield engine.speak_turns(turns, {name: voice} if voice else {}, params, reuse=False)


def prose(most: float) -> list[str]:
    """Return the passages. most: seconds to cut them to at a sentence, as estimated; 0 leaves them."""
    found = []
    for passage in filter(None, map(str.strip, PROSE.read_text(encoding="utf-8").split("\n\n"))):
        sentences = re.split(r"(?<=[.!?]) ", passage)
        while most and estimate_seconds(" ".join(sentences)) > most:
            sentences.pop()
        found.append(" ".join(sentences))
    return found


def read(path: pathlib.Path) -> tuple[dict, list[torch.Tensor]]:
    with np.load(path) as file:
        told, lengths = json.loads(str(file["told"])), file["lengths"].tolist()
        return told, list(torch.from_numpy(file["codes"].astype(np.int64)).split(lengths))


def about(engine: Engine) -> dict:
    return {"gpu": engine.kind, "torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}


def spoken(engine: Engine, texts: list[str], codes: list[torch.Tensor], check: bool = True) -> SpeechResult:
    """Return speech made of codes alone, a turn for each text."""
    turns = [Turn(f"A{number}", text) for number, text in enumerate(texts)]
    params = SamplingParams(chunk_seconds=0, retries=1, check=check)
    return engine.speak_turns(turns, {}, params, reuse=Codes(codes), even=False)


def hear(given: argparse.Namespace):
    """Let Whisper write down each chunk."""
    told, codes = read(given.files[0])
    engine, ear, heard = opened(given), Ear(given.whisper, given.device), []
    for first in range(0, len(codes), 200):
        speech = spoken(engine, told["texts"][first : first + 200], codes[first : first + 200], check=False)
        heard += ear([speech.wav[chunk.start : chunk.stop] for chunk in speech.said])
        print(len(heard), flush=True)
    given.files[1].write_text(json.dumps(heard), encoding="utf-8")


def planted(given: argparse.Namespace):
    """Double, drop and cut phrases of half a second or more in chunks that Whisper heard right."""
    told, codes = read(given.files[0])
    heard, engine, draw = (
        json.loads(given.files[1].read_text(encoding="utf-8")),
        opened(given),
        random.Random(given.seed),
    )
    known = [faults(text, one) for text, one in zip(told["texts"], heard, strict=True)]
    is_long = [len(text.split()) > 2 * EDGE + MOST_WORDS for text in told["texts"]]
    clean = [
        number
        for number, (again, lost, wrong) in enumerate(known)
        if is_long[number] and not again and not lost and len(wrong) < 5
    ]
    draw.shuffle(clean)
    kinds, cases, texts, spliced = ("doubled", "dropped", "cut"), [], [], []
    for number in range(given.count):
        base, kind = clean[number % len(clean)], kinds[number % 3]
        starts = word_frames(engine, told["texts"][base], codes[base])
        first, stop = phrase(draw, starts, kind)
        own, place = codes[base], starts[stop] if kind == "doubled" else starts[first]
        tail = {"doubled": own[starts[first] :], "dropped": own[starts[stop] :], "cut": own[:0]}[kind]
        cases.append((kind, base, place, first, stop))
        texts.append(told["texts"][base])
        spliced.append(torch.cat([own[:place], tail]))
    if given.spliced:
        lengths = list(map(len, spliced))
        more = {"texts": texts, "voices": ["planted"] * len(texts), "cases": cases}
        np.savez_compressed(
            given.spliced, codes=torch.cat(spliced).to(torch.int16), lengths=lengths, told=json.dumps(more)
        )
    rows = [judged_by(method, engine, texts, spliced, cases, known) for method in ("attention", "guard")]
    save(given, rows, engine)


def word_frames(engine: Engine, text: str, codes: torch.Tensor) -> list[int]:
    """Return the frame at which each word begins, and the end."""
    words = engine.words(spoken(engine, [text], [codes], check=False))
    return [*(round(word.start * 25) for word in words), len(codes)]


def phrase(draw: random.Random, starts: list[int], kind: str) -> tuple[int, int]:
    """Draw the words of a phrase: 2 to MOST_WORDS, half a second or more."""
    while True:
        size, count = draw.randint(2, MOST_WORDS), len(starts) - 1
        first = count - size if kind == "cut" else draw.randint(EDGE, count - size - EDGE)
        if starts[first + size] - starts[first] > AWAY * 25:
            return first, first + size


def judged_by(method: str, engine: Engine, texts: list, spliced: list, cases: list, known: list) -> dict:
    """Return the row of a method on planted chunks. The guard is what there was without a check."""
    counts = dict.fromkeys(("again_found", "again_missed", "missing_found", "missing_missed"), 0)
    near = found = false = words = 0
    speech = spoken(engine, texts, spliced, check=method == "attention")
    flawed = {chunk.chunk - 1: chunk.flaws[0] for chunk in speech.retried}
    for number, (chunk, (kind, base, place, first, stop)) in enumerate(zip(speech.said, cases, strict=True)):
        name = "again" if kind == "doubled" else "missing"
        words += len(chunk.text.split())
        if method == "guard":
            hits = [True] * (number in flawed)
        else:
            doubts = chunk.verdict.doubts if chunk.verdict else ()
            hits = [one for one in doubts if (one.words[0] < stop + 2 and one.words[1] > first - 2)
                    or abs(one.frames[0] - place) < 60]  # fmt: skip
            wrong = known[base][2]
            false += sum(
                one not in hits and not any(word in wrong for word in range(one.words[0] - 2, one.words[1] + 2))
                for one in doubts
            )
            near += any(abs(one.frames[0] - place) <= AWAY * 25 for one in hits)
        counts[f"{name}_{'found' if hits else 'missed'}"] += 1
        found += bool(hits)
    row = {"method": method, "voice": "planted", "chunks": len(texts), "words": words, **counts}
    kinds = {kind: sum(case[0] == kind for case in cases) for kind in ("doubled", "dropped", "cut")}
    return row | {
        "planted": kinds,
        "within_half_a_second_pct": round(100 * near / found, 1) if method == "attention" else None,
        "false_per_1000_words": round(1000 * false / words, 2),
        "not_checked": speech.checked.count(False),
    }


def natural(given: argparse.Namespace):
    """Judge chunks as they were spoken, with Whisper's text as the truth."""
    told, codes = read(given.files[0])
    heard, engine = json.loads(given.files[1].read_text(encoding="utf-8")), opened(given)
    speech, rows = spoken(engine, told["texts"], codes), {}
    for chunk, voice, other in zip(speech.said, told["voices"], heard, strict=True):
        again, lost, wrong = faults(chunk.text, other)
        doubts = chunk.verdict.doubts if chunk.verdict else ()
        for name in (voice, "all"):
            row = rows.setdefault(name, dict.fromkeys((*COUNTS, "words", "chunks", "false"), 0))
            row["words"] += len(chunk.text.split())
            row["chunks"] += 1
            for kind, spans in (("again", [(at - size - 3, at + size + 3) for at, size in again]), ("missing", lost)):
                for first, stop in spans:
                    hit = any(one.words[0] <= stop and one.words[1] >= first for one in doubts)
                    row[f"{kind}_{'found' if hit else 'missed'}"] += 1
            for one in doubts:
                near = [*((at - size - 3, at + size + 3) for at, size in again), *lost]
                heard_well = not any(word in wrong for word in range(one.words[0] - 2, one.words[1] + 2))
                row["false"] += heard_well and not any(one.words[0] <= b and one.words[1] >= a for a, b in near)
    for name, row in rows.items():
        row["false_per_1000_words"] = round(1000 * row.pop("false") / row["words"], 2)
        rows[name] = {"method": "attention", "voice": name, **row}
    save(given, list(rows.values()), engine)


COUNTS = "again_found", "again_missed", "missing_found", "missing_missed"


def save(given: argparse.Namespace, rows: list[dict], engine: Engine):
    """Print rows, and put them into the results."""
    made = {"weights": "embedded", "judge": "whisper-base", **about(engine)}
    for row in rows:
        print(json.dumps(row | made))
    if given.write:
        result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {"rows": []}
        for row in rows:
            result["rows"] = put(result["rows"], row | made, ("method", "voice"))
        write(result)


def write(result: dict):
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def residual(given: argparse.Namespace):
    """Compare what Whisper hears again and does not hear, per 1,000 words, before and after mending."""
    found = {}
    names = "before", "after", "heard_first"
    for name, codes, heard in zip(names, given.files[::2], given.files[1::2], strict=False):
        told, _ = read(codes)
        pairs = list(zip(told["texts"], json.loads(heard.read_text(encoding="utf-8")), strict=True))
        known, words = [faults(*pair) for pair in pairs], sum(len(text.split()) for text, _ in pairs)
        found[name] = {
            "again_per_1000_words": round(1000 * sum(size for again, _, _ in known for _, size in again) / words, 2),
            "lost_per_1000_words": round(1000 * sum(b - a for _, lost, _ in known for a, b in lost) / words, 2),
            "words": words,
            "chunks": len(pairs),
            **{key: told[key] for key in ("chunk_seconds", "spoken_again", "took", "about")},
            "places_in_doubt": sum(len(doubts or ()) for doubts in told["doubts"]),
            "not_checked": sum(doubts is None for doubts in told["doubts"]),
        }
    print(json.dumps(found, indent=1))
    if given.write:
        result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {"rows": []}
        write(result | {"residual": result.get("residual", {}) | found})


def verdicts(given: argparse.Namespace):
    """Write the verdicts on the first chunks of a file, to be compared between devices."""
    told, codes = read(given.files[0])
    engine = opened(given)
    speech = spoken(engine, told["texts"][: given.count], codes[: given.count])
    found = [
        None if chunk.verdict is None else [(one.kind, one.words, one.frames) for one in chunk.verdict.doubts]
        for chunk in speech.said
    ]
    given.files[1].write_text(json.dumps(found), encoding="utf-8")
    print(len(found), "verdicts,", sum(bool(one) for one in found), "with doubts,", engine.kind)


def cost(given: argparse.Namespace):
    """Time speaking with and without the check, in turn, on the same codes."""
    model = EMBEDDED
    if given.shape:
        model = write_shapes(given.folder / given.shape, given.shape, None)
        (model / CARD).write_text(json.dumps({"word_heads": HEADS}), encoding="utf-8")
    with Engine(EngineConfig(str(model), device=given.device, batch=given.rows)) as engine:
        passages = (prose(given.seconds) * 2)[: given.rows]
        turns, taken = [Turn(f"A{number}", text) for number, text in enumerate(passages)], {True: [], False: []}
        frames = round(given.seconds * 25)
        for number in range(8 if given.shape else 80):  # the embedded model's rows take 0.2 s
            check = number % 2 == 1
            params = SamplingParams(seed=1, retries=0, chunk_seconds=0, check=check, max_frames=frames)
            begin = time.perf_counter()
            speech = engine.speak_turns(turns, {}, params, reuse=False)
            taken[check].append(time.perf_counter() - begin)
        on, off = (float(np.median(taken[check][1:])) for check in (True, False))
        row = {
            "method": "attention",
            "voice": f"cost of {given.shape or 'embedded'}, {given.rows} rows, {given.device}",
            "chunks": len(turns), "words": sum(len(one.split()) for one in passages), "frames": speech.frames,
            "on_s": [round(one, 3) for one in taken[True]], "off_s": [round(one, 3) for one in taken[False]],
            "cost_pct": round(100 * (on - off) / off, 2), "checked": speech.checked.count(True),
        }  # fmt: skip
        save(given, [row], engine)


if __name__ == "__main__":
    main()
