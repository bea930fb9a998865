"""The home voice with the time of every word, to guide a talker's attention by. Knows no network."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import torch.nn.functional as F
from torchaudio.functional import resample

from . import voices
from .voices import DEFAULT, EDGE_SECONDS, SAMPLE_RATE

_START = b"R:SylStructure.daughter1.daughter1.R:Segment.p.end"
_END = b"R:SylStructure.daughtern.daughtern.R:Segment.end"
_TOKEN = b"R:Token.parent"
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES = {
    "flite_synth_text": ([_TEXT, _POINTER], _POINTER),
    "utt_wave": ([_POINTER], ctypes.POINTER(voices._Wave)),
    "utt_relation": ([_POINTER, _TEXT], _POINTER),
    "relation_head": ([_POINTER], _POINTER),
    "item_next": ([_POINTER], _POINTER),
    "path_to_item": ([_POINTER, _TEXT], _POINTER),
    "ffeature_float": ([_POINTER, _TEXT], ctypes.c_float),
    "delete_utterance": ([_POINTER], None),
}


@cache
def _library() -> ctypes.CDLL:
    flite = voices._flite()
    for name, (takes, gives) in _SIGNATURES.items():
        function = getattr(flite, name)
        function.argtypes, function.restype = takes, gives
    return flite


def speak(text: str) -> tuple[torch.Tensor, list[tuple[float, float]]]:
    """`text` in the home voice -> (wav [S] fp32 at 24 kHz with 0.1 s of silence around it, (start, end) in seconds of
    what each word between white space takes)."""
    flite = _library()
    address, settings, start = voices._flite_voice(DEFAULT)
    pitch = start["int_f0_target_mean"] or voices._PITCH[DEFAULT]
    flite.flite_feat_set_float(settings, b"int_f0_target_mean", pitch)
    flite.flite_feat_set_float(settings, b"duration_stretch", 1.0)
    utterance = flite.flite_synth_text(text.encode("ascii"), address)
    held = flite.utt_wave(utterance).contents
    wav = resample(voices._floats(held.data, held.samples), held.rate, SAMPLE_RATE)
    spans = _spans(flite, utterance)
    flite.delete_utterance(utterance)
    loud = (voices._loudness(wav) > 0.01 * wav.abs().max()).nonzero()
    keep = round(EDGE_SECONDS * SAMPLE_RATE)
    first, last = int(loud[0]) * voices._FRAME - keep, (int(loud[-1]) + 1) * voices._FRAME + keep
    cut = F.pad(wav[max(0, first) : last], (max(0, -first), max(0, last - len(wav))))
    shift = first / SAMPLE_RATE
    return voices._level(cut), [(begin - shift, end - shift) for begin, end in spans]


def _spans(flite: ctypes.CDLL, utterance: int) -> list[tuple[float, float]]:
    """Start and end of each token of the text; one such as 7:45 may be several words to flite."""
    spans: list[tuple[float, float]] = []
    last = None
    word = flite.relation_head(flite.utt_relation(utterance, b"Word"))
    while word:
        token = flite.path_to_item(word, _TOKEN)
        begin, end = flite.ffeature_float(word, _START), flite.ffeature_float(word, _END)
        if token == last:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
        last = token
        word = flite.item_next(word)
    return spans
