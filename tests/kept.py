"""What tests compile is kept here from run to run, by digests of what it was made from. `make clean` removes it."""

import pathlib

KEPT = pathlib.Path(__file__).resolve().parent.parent / ".matrix" / "kept"
