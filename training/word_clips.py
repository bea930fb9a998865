"""Clips with the times of their words, for word_times.py: held-out sentences, spoken and timed by Kokoro.

    python -m training.word_clips --model kokoro-v1.0.int8.onnx --voices DIR --out CLIPS

training/README.md names the sources of the model and the voices. Needs espeak-ng. Runs on the CPU.
"""

from __future__ import annotations

import json

import numpy as np
import soundfile

from . import corpus
from .natural_voices import DEFAULT, UNSEEN
from .read import spoken
from .shards import SAMPLE_RATE, STEP
from .speak import speak
from .speaker import Sound
from .voice_clips import plain, prepared

SEED = 77  # of the sentences; other benchmarks use others
OWN, EACH = 104, 12  # clips of the default voice, and of each that the checkpoint has never heard
_EXACT = 1e-4  # seconds
_SILENT = ' ;:,.!?—…"()“”'  # symbols between words


def wanted() -> list[tuple[str, str, corpus.Line]]:
    """Return (use, speaker, line) of every clip. A speaker's references have no sentence of its clips."""
    lines = iter(corpus.lines("heldout", OWN + len(UNSEEN) * (EACH + 2), SEED))
    found = [("words", DEFAULT, next(lines)) for _ in range(OWN)]
    for name in UNSEEN:
        text = " ".join(plain(next(lines).text) for _ in range(2))
        found.append(("reference", name, corpus.Line(text, (text,))))
        found += [("words", name, next(lines)) for _ in range(EACH)]
    return found


def timed(sound: Sound, silent: set[int]) -> list[tuple[float, float]]:
    """Return the start and end of each word in seconds. A word ends with its last symbol that is not silent."""
    heard, ends = ~np.isin(sound.symbols, list(silent)), []
    middles = (np.arange(len(heard)) + 0.5) * STEP / SAMPLE_RATE
    for start, after in zip(sound.words, (*sound.words[1:], middles[-1]), strict=True):
        own = middles[heard & (middles > start - _EXACT) & (middles < after - _EXACT)]
        ends.append(min(float(own[-1]) + STEP / 2 / SAMPLE_RATE, after) if len(own) else after)
    return list(zip(sound.words, ends, strict=True))


def main() -> None:
    """Run the command."""
    (out, speaker), rows = prepared(__doc__, (DEFAULT, *UNSEEN)), []
    silent = {0, *(speaker.vocab[symbol] for symbol in _SILENT if symbol in speaker.vocab)}
    for number, (use, name, line) in enumerate(wanted()):
        for _, sound in speak(speaker, [(spoken(line), name)]):
            words = [word for part in line.parts for word in part.split()]
            times = timed(sound, silent)
            assert len(words) == len(times), line.text
            soundfile.write(out / f"{number:03d}.wav", sound.samples, SAMPLE_RATE, subtype="PCM_16")
            row = {"name": f"{number:03d}", "use": use, "speaker": name, "text": line.text}
            row["words"] = [
                [word, round(start, 4), round(end, 4)] for word, (start, end) in zip(words, times, strict=True)
            ]
            rows.append(row)
    (out / "list.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} clips")


if __name__ == "__main__":
    main()
