"""Shared by the benchmarks: allocators, details of a GPU, prompts, free memory, and Dynamic VRAM as an opponent."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
ALLOCATORS = {
    "native": "backend:native",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
GB = 1 << 30
DEVICE = "cuda:0"


def card() -> dict:
    """Return GPU, driver, torch, date and commit, as named in every result."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver,
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
        "commit": commit(),
    }


def commit() -> str:
    """Return the measured commit, from HIGGS_COMMIT if the checkout has no git."""
    told = os.environ.get("HIGGS_COMMIT", "")
    if not told and shutil.which("git"):
        query = ["git", "describe", "--always", "--dirty"]
        told = subprocess.run(query, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return told or "unknown"


def earlier(path: pathlib.Path, now: dict, empty: dict) -> dict:
    """Return earlier results to continue from. `empty` if their GPU or versions differ from `now` (see `card`)."""
    if not path.is_file():
        return now | empty
    result = json.loads(path.read_text())
    same = all(result.get(key) == now[key] for key in ("gpu", "driver", "torch"))
    return now | empty | result | now if same else now | empty


def put(rows: list[dict], row: dict, keys: tuple[str, ...]) -> list[dict]:
    """Replace the row of the same measurement, or add it."""
    return [*(old for old in rows if any(old.get(key) != row.get(key) for key in keys)), row]


def in_process(script: str, arguments: list[str], allocator: str, timeout: float | None = None) -> dict:
    """Run a worker of a script in its own process, since an allocator is chosen once. Its last line is JSON.

    Past `timeout` seconds it is ended and counts as a crash.
    """
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    command = [sys.executable, script, *arguments]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"crashes": 1, "exit": None, "error": [f"did not finish in {timeout:.0f} s"]}
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "rror" in line]
        return {"crashes": 1, "exit": done.returncode, "error": errors[:3]}
    return json.loads(done.stdout.splitlines()[-1]) | {"crashes": 0}


def write_shapes(folder: pathlib.Path, family: str, layers: int | None, whole_codec: bool = False) -> pathlib.Path:
    """Write a checkpoint of published width in another process, so that its memory does not interfere."""
    command = [sys.executable, str(ROOT / "tests" / "real_shapes.py"), str(folder), family]
    command += [str(layers)] if layers else []
    command += ["--whole-codec"] if whole_codec else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


class Prompts:
    """A store of `speak_turns` with nothing to reuse. Keeps each sequence as it is before decoding, in `found`."""

    def __init__(self):
        self.found = []

    def fill(self, sequence) -> bool:
        self.found.append(dataclasses.replace(sequence))
        return False

    def keep(self, asked, spoken) -> None:
        """Do nothing."""


def free_bytes() -> int:
    """Return the device's free bytes by the driver."""
    import torch

    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


class DynamicVram:
    """comfy-aimdo, active as in ComfyUI. Create it before CUDA is touched."""

    def __init__(self):
        import comfy_aimdo.control as control

        control.init()
        self._control = control

    def fill(self, left: int):
        """Add 10 GB of evictable pages, and allocate the rest of the card except `left` bytes."""
        import comfy_aimdo.model_vbar as vbar
        import torch

        if not self._control.init_devices([0]):
            raise SystemExit("comfy-aimdo could not be started")
        self.pages = vbar.ModelVBAR(12 * GB, 0)
        block = self.pages.alloc(10 * GB)
        vbar.vbar_fault(block)
        vbar.vbar_unpin(block)
        self._rest = torch.empty(free_bytes() - left, dtype=torch.uint8, device="cuda")
