"""Reference clips for voice_quality.py: held-out sentences, spoken by the voices that the checkpoint learned from.

    python -m training.voice_clips --model kokoro-v1.0.int8.onnx --voices DIR --out CLIPS

training/README.md names the sources of the model and the voices. Runs on the CPU, some twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Iterable

import soundfile
import torch

from . import corpus
from .natural_voices import DEFAULT, UNSEEN, Voices
from .read import spoken
from .shards import SAMPLE_RATE
from .speak import speak
from .speaker import Speaker

KNOWN = ("heart", "bella", "emma", "michael", "fenrir", "kore", "george", "sky", "kumo")
SENTENCES, PROFILES, REFERENCES = 200, 4, 3  # of the default voice; per speaker to know it, and to clone


def plain(text: str) -> str:
    """Return the sentence without control tags."""
    return " ".join(corpus.TAG.sub(" ", text).split())


def wanted() -> list[tuple[str, str, corpus.Line]]:
    """Return (use, speaker, line) of every clip. A sentence is reused only by different speakers."""
    found = [("sentence", DEFAULT, line) for line in corpus.lines("heldout", SENTENCES)]
    texts = [plain(text) for text in corpus.sentences("heldout", 200, seed=11)]
    pairs = [corpus.Line(f"{a} {b}", (f"{a} {b}",)) for a, b in zip(texts[::2], texts[1::2], strict=True)]
    for place, name in enumerate((*KNOWN, *UNSEEN)):
        found += [("profile", name, line) for line in pairs[:PROFILES]]
        first = PROFILES + place * REFERENCES
        found += [("reference", name, line) for line in pairs[first : first + REFERENCES]]
    return found


def prepared(description: str, names: Iterable[str]) -> tuple[pathlib.Path, Speaker]:
    """Read the command line. Returns the folder for the clips, made, and a speaker of the named voices."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="Kokoro's int8 ONNX file")
    parser.add_argument("--voices", type=pathlib.Path, required=True, help="folder of voices.npz and vocab.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    voices = Voices.of(tuple(names), given.voices)
    return given.out, Speaker(given.model, given.voices / "vocab.json", voices, "cpu")


def main() -> None:
    """Run the command."""
    (out, speaker), rows = prepared(__doc__, (*KNOWN, *UNSEEN)), []
    for number, (use, name, line) in enumerate(wanted()):
        for _, sound in speak(speaker, [(spoken(line), name)]):
            soundfile.write(out / f"{number:03d}.wav", sound.samples, SAMPLE_RATE, subtype="PCM_16")
            rows.append({"name": f"{number:03d}", "use": use, "speaker": name, "text": line.text})
    (out / "list.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} clips")


if __name__ == "__main__":
    main()
