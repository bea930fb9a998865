"""Shared fixtures for tests in a real ComfyUI: servers, small checkpoints, clips and workflows.

    COMFYUI_PATH=/path/to/ComfyUI COMFYUI_PYTHON=/its/venv/bin/python python -m pytest tests/comfyui

COMFYUI_PYTHON needs ComfyUI's requirements.txt (default: the Python that runs pytest). The client needs aiohttp, which
is in that list; if pytest has a Python of its own, install it there too. The browser tests also need Debian's
`chromium` (or another Chromium on the PATH) and `pip install playwright` beside pytest, without the browsers that
`playwright install` would fetch. They are skipped if one of these is missing.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import pytest

from .server import TODAY, Comfy, add_checkpoints, add_clips, lay_out, read_workflow


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """Small checkpoints of both families."""
    from higgs_tts.engine.tools.tiny import write_tiny

    folder = tmp_path_factory.mktemp("tiny")
    for family in ("v3", "v2"):
        write_tiny(folder / family, family)
    return folder


@pytest.fixture(scope="session")
def start_comfy(tiny, tmp_path_factory):
    """start_comfy(*flags) -> Comfy, a new one in a folder of its own."""
    if "COMFYUI_PATH" not in os.environ:
        pytest.skip("COMFYUI_PATH is not set: no ComfyUI to test in")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed beside pytest: pip install aiohttp")
    running: list[Comfy] = []

    def start(*flags: str, page: bool = False, bare: bool = False) -> Comfy:
        base = tmp_path_factory.mktemp("base")
        lay_out(base)
        if page:
            shutil.rmtree(base / "page")
        if bare:
            running.append(Comfy(base, ("--cpu", *flags)))
            return running[-1]
        pytest.importorskip("soundfile")
        add_checkpoints(base, tiny)
        add_clips(base)
        running.append(Comfy(base, ("--cpu", *flags)))
        return running[-1]

    yield start
    for comfy in running:
        comfy.stop()


@pytest.fixture(scope="session")
def make_comfy(start_comfy):
    """make_comfy(*flags) -> Comfy, cached by flags."""
    return functools.cache(start_comfy)


@pytest.fixture(scope="module")
def chromium_flags() -> list[str]:
    """More of the browser's flags. A module may have its own."""
    return []


@pytest.fixture(scope="session")
def make_bare(start_comfy):
    """make_bare(page=False) -> Comfy without any checkpoint, cached by `page`."""
    return functools.cache(lambda page=False: start_comfy(page=page, bare=True))


@pytest.fixture(scope="session")
def comfy(make_comfy) -> Comfy:
    """ComfyUI with its default flags."""
    return make_comfy()


@pytest.fixture
def workflow():
    """workflow(name, {class_type: {input: value}}) -> a workflow saved with 0.1.0 in API format, with short speech."""

    def read(name: str, **changes: dict) -> dict:
        return read_workflow(name, 40, **changes)

    return read


@pytest.fixture
def template():
    """template(name, {class_type: {input: value}}) -> a current template in API format, with full speech."""

    def read(name: str, **changes: dict) -> dict:
        return read_workflow(name, 2048, TODAY, **changes)

    return read


@pytest.fixture(scope="session")
def fresh(make_bare) -> Comfy:
    """ComfyUI just after the pack was installed: no checkpoint, no voice and no clip."""
    return make_bare()
