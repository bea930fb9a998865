"""Sixty actions of a random user. A failure prints the command that repeats them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .server import ROOT


def test_random_actions_meet_no_defect():
    if "COMFYUI_PATH" not in os.environ:
        pytest.skip("COMFYUI_PATH is not set: no ComfyUI to test in")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed beside pytest: pip install aiohttp")
    command = [sys.executable, ROOT / "tests" / "faults" / "random_user.py", "--actions", "60"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
