"""Errors of word times against a synthesiser's own, and what they cost beside speaking.

    python -m training.word_clips --model kokoro-v1.0.int8.onnx --voices DIR --out CLIPS
    python -m training.word_times CLIPS --write [--whisper FOLDER]

A clip is encoded by the checkpoint's codec, and its talker reads text and codes. A word's true start is Kokoro's. Its
true end is Kokoro's too, or the last sound before it: Kokoro's last phoneme of a sentence lasts 0.25 s longer than its
sound. Rows of free speech compare with Whisper, which errs itself. FOLDER is in transformers' format.
benchmarks/words.py times both for the published shapes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import time

import numpy as np
import soundfile
import torch
import torch.nn.functional as F

from benchmarks.common import ROOT, commit
from engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, SpeechResult, SpokenTurn, Word, estimate_words
from engine.codec.model import build_encoder
from engine.core.config import FRAME_SAMPLES
from engine.words.whisper import WhisperAligner

from .hearing import loudness

RESULT = ROOT / "benchmarks" / "results" / "words.json"
SPOKEN = 20  # sentences of free speech
AUDIBLE = 10 ** (-50 / 20)  # relative to full scale


class Clips:
    """Clips as speech of an engine: its codec's codes and their sound."""

    def __init__(self, folder: pathlib.Path, engine: Engine):
        listed = sorted(json.loads((folder / "list.json").read_text(encoding="utf-8")), key=lambda row: row["name"])
        self._folder, self._engine = folder, engine
        self.rows = [row for row in listed if row["use"] == "words"]
        codec = engine.checkpoint.codec
        self._encoder = build_encoder(codec.config, codec.read("encoder", engine.device))

    def sound(self, row: dict) -> torch.Tensor:
        return torch.from_numpy(soundfile.read(self._folder / f"{row['name']}.wav", dtype="float32")[0])

    @torch.inference_mode()
    def speech(self, row: dict) -> SpeechResult:
        """Return the clip as if the engine had spoken it."""
        wav = self.sound(row)
        codes = self._encoder.encode(F.pad(wav, (0, -len(wav) % FRAME_SAMPLES)).to(self._engine.device)).long()
        heard = self._engine.loaded.decoder.decode(codes.T[None]).reshape(-1).cpu()
        said = SpokenTurn(row["speaker"], row["text"], 0, len(heard), (0, len(codes)))
        return SpeechResult(heard, codes.cpu(), 0.0, 1, "", said=(said,))

    def truth(self, row: dict) -> list[tuple[str, float, float, float]]:
        """Return (word, start, end, Kokoro's own end) of each word."""
        level = loudness(self.sound(row))
        found = []
        for word, start, end in row["words"]:
            loud = np.flatnonzero(level[round(100 * start) : round(100 * end)] >= AUDIBLE)
            found.append((word, start, min(end, start + (loud[-1] + 1) / 100) if len(loud) else end, end))
        return found


def errors(words: tuple[Word, ...], truth: list[tuple[str, float, float, float]]) -> list[tuple[float, float, float]]:
    """Return each word's errors in ms: start, end, and end against Kokoro's own. Empty if the words are others."""
    if [word.text for word in words] != [one[0] for one in truth]:
        return []
    return [
        tuple(1000 * error for error in (word.start - start, word.end - end, word.end - told))
        for word, (_, start, end, told) in zip(words, truth, strict=True)
    ]


def row_of(method: str, found: list[tuple[float, float, float]], **more: object) -> dict:
    """Return a row of the result."""
    start, end, told = np.abs(np.array(found)).T
    names = {"start_ms": start, "end_ms": end, "end_told_ms": told}
    figures = {f"{name}_p{p}": round(float(np.percentile(e, p)), 1) for name, e in names.items() for p in (50, 95)}
    return {"method": method, "language": "en", **figures, "n": len(found), **more}


def clock(device: torch.device) -> float:
    """Return seconds of work: of the processor on a CPU, where other programs run too, else of the clock."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def methods(engine: Engine, whisper: pathlib.Path | None) -> dict:
    """Return method -> function from a speech of one chunk to its words."""
    found = {
        "attention": lambda speech: engine.words_by(engine.heads(), speech),
        "estimated": lambda speech: tuple(word for turn in speech.said for word in estimate_words(speech.wav, turn)),
    }
    return found | ({"whisper": WhisperAligner(whisper, engine.device).align} if whisper else {})


def judge(folder: pathlib.Path, device: str, whisper: pathlib.Path | None) -> list[dict]:
    """Return the rows of all methods, for the clips and for the talker's own speech."""
    rows = []
    with Engine(EngineConfig(str(EMBEDDED), device=device)) as engine:
        clips = Clips(folder, engine)
        free, spent = speak_freely(engine, [row["text"] for row in clips.rows[:SPOKEN]])
        by = methods(engine, whisper)
        heard = {name: [] for name in by}
        costs = {}
        for name, words in by.items():
            begin = clock(engine.device)
            heard[name] = [words(speech) for speech in free]
            costs[name] = round(100 * (clock(engine.device) - begin) / spent, 2)
        kinds = {"known speaker": [], "unknown speakers": []}
        for row in clips.rows:
            kinds["known speaker" if row["speaker"] == "heart" else "unknown speakers"].append(row)
        speeches = {row["name"]: (clips.speech(row), clips.truth(row)) for row in clips.rows}
        for name, words in by.items():
            each = {key: errors(words(speech), truth) for key, (speech, truth) in speeches.items()}
            other = sum(not found for found in each.values())
            everything = [error for found in each.values() for error in found]
            rows.append(row_of(name, everything, cost_pct=costs[name], clips=len(each) - other, other_words=other))
            for kind, members in kinds.items():
                rows.append(row_of(name, [e for row in members for e in each.get(row["name"], [])], clips_of=kind))
        if whisper:
            judged = [[(w.text, w.start, w.end, w.end) for w in words] for words in heard["whisper"]]
            for name in ("attention", "estimated"):
                found = [e for words, truth in zip(heard[name], judged, strict=True) for e in errors(words, truth)]
                rows.append(row_of(name, found, clips_of="free speech, judged by Whisper"))
    return rows


def speak_freely(engine: Engine, texts: list[str]) -> tuple[list[SpeechResult], float]:
    """Speak the texts and return the speech and the seconds of work."""
    engine.speak("A first sentence, for the libraries.")
    begin = clock(engine.device)
    found = [engine.speak(text) for text in texts]
    return found, clock(engine.device) - begin


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=pathlib.Path, help="folder of word_clips.py")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--whisper", type=pathlib.Path, help="folder of a Whisper to judge too")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the engine does; more wait for each other beside other programs
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    rows = judge(given.clips, given.device, given.whisper)
    result |= {
        "truth": "Kokoro-82M, its phonemes' durations",
        "sample_rate": SAMPLE_RATE,
        "rows": rows,
        "machine": torch.cuda.get_device_name(given.device) if given.device != "cpu" else f"CPU, {platform.machine()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": str(datetime.date.today()),
        "commit": commit(),
    }
    print(json.dumps(rows, indent=1))
    if given.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
