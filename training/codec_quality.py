"""Codec quality: words, sound and voice of clips after a round trip, beside the originals.

    python -m training.codec_quality CLIPS NAME=FOLDER ... --write

CLIPS is the folder of voice_clips.py, FOLDER a codec's or a checkpoint's. Needs training/requirements.txt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib

import numpy as np
import soundfile
import torch
from safetensors import safe_open

from benchmarks.common import ROOT, commit
from engine.checkpoint.find_codec import open_codec
from engine.codec.model import build_decoder, build_encoder

from .hearing import Dnsmos, Whisper, similarity, voice_print, word_errors

CLIPS = 24  # of the default voice
RESULT = ROOT / "benchmarks" / "results" / "codec.json"


def through(folder: pathlib.Path, wavs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the clips, encoded and decoded."""
    weights = open_codec(folder).weights
    encoder = build_encoder(weights.config, weights.read("encoder", "cpu"))
    decoder = build_decoder(weights.config, weights.read("decoder", "cpu"))
    with torch.inference_mode():
        return [decoder.decode(encoder.encode(wav).long().T[None]).reshape(-1)[: len(wav)].clamp(-1, 1) for wav in wavs]


def judged(texts: list[str], wavs: list[torch.Tensor], whisper: Whisper) -> dict:
    """Return the word error rate and means of DNSMOS."""
    dnsmos = Dnsmos()
    wrong = sum(word_errors(text, whisper(wav))[0] for text, wav in zip(texts, wavs, strict=True))
    found = [dnsmos(wav) for wav in wavs]
    means = [round(float(np.mean([one[name] for one in found])), 3) for name in Dnsmos.NAMES]
    return {"misheard": wrong, **dict(zip(("dnsmos", "dnsmos_signal", "dnsmos_p808"), means, strict=True))}


def trained(folder: pathlib.Path) -> dict:
    """Return training steps and minutes, if the codec's file states them."""
    path = folder / "model.safetensors"
    note = {}
    if path.is_file():
        with safe_open(path, framework="pt") as file:
            note = file.metadata() or {}
    return {name: float(note[name]) if name in note else None for name in ("steps", "minutes")}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=pathlib.Path)
    parser.add_argument("codecs", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    rows = json.loads((given.clips / "list.json").read_text(encoding="utf-8"))
    rows = [row for row in rows if row["use"] == "sentence" and "<|" not in row["text"]][:CLIPS]
    texts = [row["text"] for row in rows]
    wavs = [torch.from_numpy(soundfile.read(given.clips / f"{row['name']}.wav", dtype="float32")[0]) for row in rows]
    whisper, found = Whisper(), []
    source = judged(texts, wavs, whisper)
    for codec in given.codecs:
        name, folder = codec.split("=")
        made = through(pathlib.Path(folder), wavs)
        alike = [similarity(voice_print(a), voice_print(b)) for a, b in zip(wavs, made, strict=True)]
        row = {"codec": name, **judged(texts, made, whisper), "misheard_source": source["misheard"]}
        row |= {"similarity": round(float(np.mean(alike)), 3), **trained(pathlib.Path(folder)), "commit": commit()}
        found.append(row)
        print(json.dumps(row), flush=True)
    words = sum(word_errors(text, "")[1] for text in texts)
    result = {"date": str(datetime.date.today()), "clips": len(rows), "words": words, "source": source, "rows": found}
    if given.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
