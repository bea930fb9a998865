"""Pack Kokoro's voices into the one file that `speak` reads.

python -m training.pack_voices PACKS OUT    PACKS: the folder `voices` of the npm package kokoro-js 1.2.1
"""

import sys
from pathlib import Path

import numpy as np

from .natural_voices import SOURCES


def main(packs: Path, out: Path) -> None:
    """Write OUT/voices.npz: each voice [510, 256] under its name without the language."""
    held = {path.stem[3:]: path for path in packs.glob("[abj][fm]_*.bin")}
    tables = {name: np.fromfile(held[name], np.float32).reshape(510, 256).astype(np.float16) for name in SOURCES}
    np.savez_compressed(out / "voices.npz", **tables)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
