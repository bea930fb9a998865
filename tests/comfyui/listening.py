"""Record a page's playback in the page, and compare it with a node's output. Shared with the benchmarks."""

from __future__ import annotations

import base64
import pathlib

import numpy as np

RECORDER = pathlib.Path(__file__).with_name("recorder.js").read_text(encoding="utf-8")
NO_WORKLET = "delete BaseAudioContext.prototype.audioWorklet"  # as on a page that is plain http
# The samples that were heard, as base64 of 16-bit numbers: a long list of numbers takes the browser's driver minutes.
_HEARD = """() => {
    const bytes = new Uint8Array(Int16Array.from(heardSamples()).buffer)
    let text = ""
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768))
    return btoa(text)
}"""


def heard_on(page) -> np.ndarray:
    """Return 16-bit samples [n] since the page's `heard.reset()`, without the silence around them."""
    page.wait_for_timeout(500)  # the recorder's last messages
    return np.trim_zeros(np.frombuffer(base64.b64decode(page.evaluate(_HEARD)), "<i2"))


def dumped(comfy, start: int = 0) -> np.ndarray:
    """Return HiggsProbeDump's input [n] from a sample on, as 16-bit samples without the silence around them."""
    return np.trim_zeros(samples_of(comfy)[start:])


def samples_of(comfy) -> np.ndarray:
    """Return HiggsProbeDump's whole input [n] as 16-bit samples."""
    wav = np.load(comfy.base / "output" / "dump.npy")[0, 0]
    return np.rint(wav.clip(-1, 1) * np.float32(32767)).astype(np.int16)


def compare(heard: np.ndarray, said: np.ndarray) -> tuple[int, bool]:
    """Compare two trimmed arrays of 16-bit samples: (number of pauses in playback, True if nothing else differs)."""
    at = gaps = 0
    while True:
        rest = heard[at : at + len(said)]
        same = rest == said[: len(rest)]
        count = len(rest) if same.all() else int(np.argmin(same))
        said, at = said[count:], at + count
        if not len(said):
            return gaps, at == len(heard)
        sounds = np.flatnonzero(heard[at:])
        if not len(sounds) or not sounds[0]:
            return gaps, False
        gaps, at = gaps + 1, at + int(sounds[0])
