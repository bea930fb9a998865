"""Encode shards while they are made, for a talker already in training.

python -m training.code_lots --data DIR --codec CODEC --out DIR --done FILE

Takes every shard below --data once it is complete, some at a time, and writes part000.safetensors onwards. Ends when
the file --done exists and no shard is left.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from . import encode
from .clips import Clips
from .shards import Utterance


def clips_of(path: Path, codec: Path, device: str) -> Clips:
    """Encode one shard."""
    utterances = [Utterance(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    samples = torch.from_numpy(np.fromfile(path.with_suffix(".i16"), np.int16))
    codes = encode.codes_of(samples.to(device), utterances, codec)
    texts, names = [one.text for one in utterances], [one.speaker for one in utterances]
    return Clips.join(codes, texts, names, [one.words for one in utterances])


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of folders of shards")
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the files of clips")
    parser.add_argument("--done", type=Path, required=True, help="there once no shard comes any more")
    parser.add_argument("--each", type=int, default=3, help="shards of a file, at least, while more come")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = False
    given.out.mkdir(parents=True, exist_ok=True)
    taken: set[Path] = set()
    begin, number, frames, spent = time.time(), 0, 0, 0.0
    while True:
        last = given.done.exists()
        new = [path for path in sorted(given.data.rglob("*.json")) if path not in taken]
        if not new and last:
            break
        if len(new) < given.each and not last:
            time.sleep(0.5)
            continue
        started = time.time()
        clips = Clips.all([clips_of(path, given.codec, given.device) for path in new])
        clips.save(given.out / f"part{number:03d}.safetensors")
        taken |= set(new)
        number, frames, spent = number + 1, frames + len(clips.codes), spent + time.time() - started
        print(f"codes: {frames / 90_000:.2f} h at {time.time() - begin:.0f} s, {spent:.0f} s of work", flush=True)


if __name__ == "__main__":
    main()
