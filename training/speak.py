"""Speak lines with Kokoro's voices into shards on disk, on one GPU.

python -m training.speak --model kokoro-v1.0.int8.onnx --kokoro DIR --lines lines.json.xz --out DIR --shards 8
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from .encode import encode
from .natural_voices import HOME_SHARE, TRAINED, Voices, shares
from .read import Spoken, load
from .shards import MAX_SECONDS, SAMPLE_RATE, STEP, Utterance
from .speaker import EDGES, Job, Sound, Speaker

LINES = 4096  # of a shard, at most


def speak(speaker: Speaker, lines: Sequence[tuple[Spoken, str]]) -> Iterator[tuple[int, Sound]]:
    """Speak (line, speaker) pairs, yielding (number of the line, its sound) in order.

    Unspeakable lines and those longer than MAX_SECONDS are left out.
    """
    jobs, owner = [], []
    for number, (line, name) in enumerate(lines):
        jobs += [Job(part, name, 1 / line.stretch) for part in line.parts]
        owner += [(number, i) for i in range(len(line.parts))]
    parts: dict[tuple[int, int], Sound] = {owner[number]: sound for number, sound in speaker.say(jobs)}
    for number, (line, _) in enumerate(lines):
        held = [parts.get((number, i)) for i in range(len(line.parts))]
        said = [part for part in held if part]
        if len(said) < len(held):
            continue
        sound = joined(said, line.pauses)
        if len(sound.samples) <= MAX_SECONDS * SAMPLE_RATE:
            yield number, sound


def joined(parts: list[Sound], pauses: Sequence[float]) -> Sound:
    """Join the parts with `pauses` seconds of silence, including their edges. Each is a whole number of STEP."""
    samples, words, symbols, begin = [], [], [], 0
    for part, pause in zip(parts, (*pauses, 0.0), strict=True):
        words += [begin / SAMPLE_RATE + at for at in part.words]
        steps = len(part.symbols) + round(max(0.0, pause - sum(EDGES)) * SAMPLE_RATE / STEP)
        samples.append(np.pad(part.samples, (0, steps * STEP - len(part.samples))))
        symbols.append(np.pad(part.symbols, (0, steps - len(part.symbols))))
        begin += steps * STEP
    return Sound(np.concatenate(samples), tuple(words), np.concatenate(symbols))


def make(speaker: Speaker, lines: Sequence[tuple[Spoken, str]], path: Path) -> float:
    """Write one shard, PATH.i16 and then PATH.json, and return its seconds of speech."""
    made, total = [], 0
    with open(path.with_suffix(".i16"), "wb") as file, open(path.with_suffix(".sym"), "wb") as heard:
        for number, sound in speak(speaker, lines):
            line, name = lines[number]
            words = tuple(round(1000 * at) for at in sound.words)
            made.append(Utterance(line.text, name, total, len(sound.samples), words))
            file.write(sound.samples.tobytes())
            heard.write(sound.symbols.tobytes())
            total += len(sound.samples)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps([asdict(one) for one in made]), encoding="utf-8")
    partial.replace(path.with_suffix(".json"))
    return total / SAMPLE_RATE


def code(path: Path, codec: Path, device: str, out: Path) -> None:
    """Write the codes of a shard, and remove it. In one process with the speaker, since processes wait for a GPU."""
    torch.backends.cudnn.allow_tf32 = False
    encode([path.parent], codec, device).save(out)
    torch.backends.cudnn.allow_tf32 = True
    if device == "cuda":
        torch.cuda.empty_cache()
    for suffix in (".i16", ".sym", ".json"):
        path.with_suffix(suffix).unlink()


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Kokoro's int8 ONNX file")
    parser.add_argument("--kokoro", type=Path, required=True, help="folder of voices.npz and vocab.json")
    parser.add_argument("--lines", type=Path, nargs="+", required=True, help="files that read wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    parser.add_argument(
        "--codec", type=Path, help="write the codes of each shard, part000.safetensors onwards, instead"
    )
    parser.add_argument("--shards", type=int, required=True, help="at most")
    parser.add_argument("--size", type=int, default=LINES, help="lines of a shard")
    parser.add_argument(
        "--lot", type=int, default=0, help="so many shards go into a folder of their own, lot00 onwards"
    )
    parser.add_argument("--part", default="0/1", help="I/N: every N-th of the lines, from the I-th")
    parser.add_argument("--speakers", default="all", help="names with commas between them, or all")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no shard after so long")
    parser.add_argument("--home-share", type=float, default=HOME_SHARE, help="of the data: the default voice")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    begin = time.time()
    names = TRAINED if given.speakers == "all" else tuple(given.speakers.split(","))
    voices = Voices.of(names, given.kokoro)
    speaker = Speaker(given.model, given.kokoro / "vocab.json", voices, given.device)
    first, step = map(int, given.part.split("/"))
    lines = [line for path in given.lines for line in load(path)][first::step]
    dice, chances = random.Random(given.seed), shares(names, given.home_share)
    total, ready = 0.0, time.time()
    for shard in range(given.shards):
        if time.time() - begin > 60 * given.minutes:
            break
        chosen = [lines[(shard * given.size + i) % len(lines)] for i in range(min(given.size, len(lines)))]
        told = list(zip(chosen, dice.choices(names, chances, k=len(chosen)), strict=True))
        folder = given.out / f"lot{shard // given.lot:02d}" if given.lot else given.out
        folder = given.out / "shard" if given.codec else folder
        folder.mkdir(parents=True, exist_ok=True)
        total += make(speaker, told, folder / f"{shard:03d}")
        if given.codec:
            code(folder / f"{shard:03d}", given.codec, given.device, given.out / f"part{shard:03d}.safetensors")
        took = time.time() - ready
        print(f"speak: {total / 3600:.2f} h in {took:.0f} s, {total / took:.0f} times real time", flush=True)


if __name__ == "__main__":
    main()
