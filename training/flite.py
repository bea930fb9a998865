"""flite in this process, through the libraries of its Debian package: speech and the time of every word.

Knows the four voices as they are, no corpus and no network.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch

PITCH = {"slt": 168.0, "rms": 101.0, "awb": 128.0, "kal16": 95.0}  # the voices' own, in Hz
_MEAN = b"int_f0_target_mean"
_WORD_START = b"daughter1.R:SylStructure.daughter1.daughter1.R:Segment.p.end"  # as seen from a token of the text
_POINTER, _TEXT, _FLOAT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float


class Silent(ValueError):
    """A voice has no sound for a text."""


class _Wave(ctypes.Structure):  # flite's cst_wave
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("rate", ctypes.c_int),
        ("samples", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("data", ctypes.POINTER(ctypes.c_short)),
    ]


class _Voice(ctypes.Structure):  # the head of flite's cst_voice
    _fields_ = [("name", ctypes.c_char_p), ("features", ctypes.c_void_p)]


_SIGNATURES = {
    "flite_synth_text": ([_TEXT, _POINTER], _POINTER),
    "utt_wave": ([_POINTER], ctypes.POINTER(_Wave)),
    "utt_relation": ([_POINTER, _TEXT], _POINTER),
    "relation_head": ([_POINTER], _POINTER),
    "item_next": ([_POINTER], _POINTER),
    "ffeature_float": ([_POINTER, _TEXT], _FLOAT),
    "delete_utterance": ([_POINTER], None),
    "flite_feat_set_float": ([_POINTER, _TEXT, _FLOAT], None),
    "flite_get_param_float": ([_POINTER, _TEXT, _FLOAT], _FLOAT),
}


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
    for name in ("usenglish", "cmulex"):
        ctypes.CDLL(f"libflite_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
    for name, (takes, gives) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = takes, gives
    library.flite_init()
    return library


@cache
def _voice(base: str) -> tuple[int, int, float]:
    """Address of the voice, address of its settings, and its mean pitch in Hz before anyone changes it."""
    register = getattr(ctypes.CDLL(f"libflite_cmu_us_{base}.so.1"), f"register_cmu_us_{base}")
    register.restype, register.argtypes = ctypes.POINTER(_Voice), [ctypes.c_char_p]
    voice = register(None)
    settings = voice.contents.features
    mean = _library().flite_get_param_float(settings, _MEAN, 0.0) or PITCH[base]
    return ctypes.cast(voice, ctypes.c_void_p).value, settings, mean


def floats(data, samples: int) -> torch.Tensor:
    """A copy of 16-bit samples at an address, as floats in -1..1."""
    return torch.from_numpy(np.ctypeslib.as_array(data, (samples,)).astype(np.float32) / 32768)


def speak(base: str, text: str, pitch: float, stretch: float) -> tuple[torch.Tensor, int, list[float]]:
    """`text` -> (wav [S], its sample rate, the second at which each word between white space begins).

    pitch: mean in Hz, 0 for the voice's own; stretch: of the durations. Raises Silent.
    """
    flite = _library()
    address, settings, mean = _voice(base)
    flite.flite_feat_set_float(settings, _MEAN, pitch or mean)
    flite.flite_feat_set_float(settings, b"duration_stretch", stretch)
    utterance = flite.flite_synth_text(text.encode("ascii", "ignore"), address)
    if not utterance:
        raise Silent(f"flite said nothing for {text!r}")
    wave = flite.utt_wave(utterance)
    held = wave.contents
    wav, rate = floats(held.data, held.samples), held.rate
    starts = []
    token = flite.relation_head(flite.utt_relation(utterance, b"Token"))
    while token:
        starts.append(flite.ffeature_float(token, _WORD_START))
        token = flite.item_next(token)
    flite.delete_utterance(utterance)
    return wav, rate, starts
