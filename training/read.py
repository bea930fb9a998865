"""Write lines of the corpus with their phonemes to one file, so that speaking them needs no espeak-ng.

python -m training.read --split train --count 100000 --seed 1 --out lines.json.xz
"""

from __future__ import annotations

import argparse
import json
import lzma
from dataclasses import dataclass
from pathlib import Path

from . import corpus
from .phonemes import Reading, read


@dataclass(frozen=True)
class Spoken:
    """A line with phonemes.

    text: with tags; parts: spoken in turn; pauses: seconds of silence between them; stretch: of the durations.
    """

    text: str
    parts: tuple[Reading, ...]
    pauses: tuple[float, ...] = ()
    stretch: float = 1.0


def spoken(line: corpus.Line) -> Spoken:
    """Return a line with its phonemes."""
    return Spoken(line.text, tuple(read(part) for part in line.parts), line.pauses, line.stretch)


def save(lines: list[Spoken], path: Path) -> None:
    rows = [[one.text, [[p.phonemes, p.words] for p in one.parts], one.pauses, one.stretch] for one in lines]
    path.write_bytes(lzma.compress(json.dumps(rows, ensure_ascii=False).encode(), preset=6))


def load(path: Path) -> list[Spoken]:
    rows = json.loads(lzma.decompress(path.read_bytes()))
    return [
        Spoken(text, tuple(Reading(said, tuple(words)) for said, words in parts), tuple(pauses), stretch)
        for text, parts, pauses, stretch in rows
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=corpus.SPLITS, default="train")
    parser.add_argument("--count", type=int, required=True, help="lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    lines = [spoken(line) for line in corpus.lines(given.split, given.count, given.seed)]
    save([line for line in lines if all(part.phonemes for part in line.parts)], given.out)
    print(f"read: {len(lines)} lines, {given.out.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
