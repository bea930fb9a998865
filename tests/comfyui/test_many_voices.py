"""A page whose voices are many, broken or huge: it gets its list and sentences, and ComfyUI keeps its memory."""

from __future__ import annotations

import os
import struct
import sys
import urllib.error
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from higgs_tts.engine import Voice

from .server import is_on_windows

COUNT = 2000
MOST_GROWTH = 300 << 20  # bytes, of 3 GB that could be read
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def full(start_comfy):
    """ComfyUI with 2,000 voices, a cut clip, a clip whose text is a pipe, and a sparse sound of 3 GB in `input`."""
    comfy = start_comfy()
    voices = comfy.base / "models" / "voices"
    Voice(torch.zeros(50, 8, dtype=torch.int64), "One.").save(voices / "v0000.safetensors")
    for number in range(1, COUNT):
        os.link(voices / "v0000.safetensors", voices / f"v{number:04}.safetensors")
    (voices / "cut.wav").write_bytes((voices / "bob.wav").read_bytes()[:30])
    os.link(voices / "bob.wav", voices / "piped.wav")
    if not is_on_windows():  # which has no such file
        os.mkfifo(voices / "piped.txt")
    size = 3 << 30
    form = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", size - 8, b"WAVEfmt ", 16, 1, 1, 24000, 48000, 2, 16, b"data", size - 44
    )
    with (comfy.base / "input" / "huge.wav").open("wb") as file:
        file.write(form)
        file.truncate(size)
    return comfy


def memory(comfy) -> int:
    """Return the most bytes that the process has held so far."""
    lines = Path(f"/proc/{comfy.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) << 10


def test_all_voices_are_listed_and_the_broken_ones_say_why(full):
    before = memory(full)
    told = {one["name"]: one for one in full.get("/higgs_tts/voices?model=")}
    own = [one for name, one in told.items() if name.startswith("v") and name.endswith(".safetensors")]
    assert len(own) == COUNT and not any(one["problem"] for one in own)
    assert {one["transcript"] for one in own} == {"One."}
    assert told["cut.wav"]["problem"] and told["input/huge.wav"]["problem"].startswith("Trim this clip")
    assert told["piped.wav"]["problem"] or told["piped.wav"]["transcript"] == ""
    assert not told["bob.wav"]["problem"] and memory(full) - before < MOST_GROWTH


@pytest.mark.parametrize("name", ["input/huge.wav", "cut.wav", "piped.wav", "v1999.safetensors", "none.wav"])
def test_one_voice_is_played_or_refused_while_the_queue_answers(full, name):
    before = memory(full)
    with ThreadPoolExecutor(1) as others:
        asked = others.submit(full.fetch, f"/higgs_tts/voice?name={urllib.parse.quote(name)}")
        while not asked.done():
            assert "queue_running" in full.get("/queue")
        if name in ("input/huge.wav", "none.wav"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked.result()
            assert refused.value.code == 404 and b'"error": "' in refused.value.read()
        else:
            assert asked.result()
    assert memory(full) - before < MOST_GROWTH
    assert full.get("/queue")["queue_running"] == []
