"""Wheels of SGLang-Omni and vLLM-Omni, for tests that read their sources."""

import os
import pathlib
import zipfile

import pytest


def published_wheel(name):
    """Open a wheel of the folder SPEECH_WHEELS (`pip download --no-deps`), or skip the test."""
    wheel = pathlib.Path(os.environ.get("SPEECH_WHEELS", ".")) / name
    if "SPEECH_WHEELS" not in os.environ or not wheel.is_file():
        pytest.skip(f"{name} is not in SPEECH_WHEELS")
    return zipfile.ZipFile(wheel)
