"""The results of the harnesses in this folder, in benchmarks/results/faults.json."""

from __future__ import annotations

import datetime
import json
import os
import platform

import torch

from ...benchmarks.common import ROOT, commit

RESULT = ROOT / "benchmarks" / "results" / "faults.json"


def read(part: str) -> list[dict]:
    """Return a part of the results. Empty if there is none yet."""
    return json.loads(RESULT.read_text(encoding="utf-8")).get(part, []) if RESULT.is_file() else []


def write(part: str, told: object) -> None:
    """Put a part of the results into the file, and print it."""
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    here = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    here |= {"date": str(datetime.date.today()), "commit": commit()}
    result |= {part: told, "made": result.get("made", {}) | {part: here}}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({part: told}))
