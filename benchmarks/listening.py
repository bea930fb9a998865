"""Whisper as the judge of speech: what it hears, and which words of a text it hears again or not at all."""

from __future__ import annotations

import difflib
import functools
import pathlib

import numpy as np
import torch
from common import ROOT  # noqa: F401 - makes training importable

from engine import SAMPLE_RATE, resample
from training.hearing import words_of

_ENGLISH = [50258, 50259, 50359, 50363]  # Whisper: start, English, transcribe, no timestamps
_END, _LONGEST, _MOST_TOKENS = 50257, 29, 220


class Ear:
    """Whisper by transformers, greedy. Sound over 29 s is cut where it is quietest."""

    def __init__(self, folder: pathlib.Path, device: str):
        from tokenizers import Tokenizer
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        dtype = torch.float16 if device != "cpu" else torch.float32
        self._model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
        self._model.tie_weights()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._features, self._device, self._dtype = WhisperFeatureExtractor(), device, dtype

    def __call__(self, wavs: list[torch.Tensor], size: int = 64) -> list[str]:
        parts, owners = [], []
        for number, wav in enumerate(wavs):
            sound = resample(wav, SAMPLE_RATE, 16_000)
            while len(sound) > _LONGEST * 16_000:
                level = sound[20 * 16_000 : _LONGEST * 16_000].square().unfold(0, 1600, 400).mean(1)
                cut = 20 * 16_000 + int(level.argmin()) * 400 + 800
                parts.append(sound[:cut].numpy())
                owners.append(number)
                sound = sound[cut:]
            parts.append(sound.numpy())
            owners.append(number)
        heard, order = [""] * len(wavs), sorted(range(len(parts)), key=lambda number: len(parts[number]))
        texts = [""] * len(parts)
        for first in range(0, len(order), size):
            own = order[first : first + size]
            for number, text in zip(own, self._batch([parts[one] for one in own]), strict=True):
                texts[number] = text.strip()
        for number, text in zip(owners, texts, strict=True):
            heard[number] = f"{heard[number]} {text}".strip()
        return heard

    def _batch(self, sounds: list[np.ndarray]) -> list[str]:
        made = self._features(sounds, sampling_rate=16_000, return_tensors="pt", device=self._device)
        encoded = self._model.model.encoder(made.input_features.to(self._device, self._dtype))
        ids, past, found = torch.tensor([_ENGLISH] * len(sounds), device=self._device), None, []
        done = torch.zeros(len(sounds), dtype=torch.bool, device=self._device)
        for step in range(_MOST_TOKENS):
            out = self._model(decoder_input_ids=ids, encoder_outputs=encoded, past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[:, -1].float()
            logits[:, _END + 1 :] = -torch.inf
            logits[:, _END] -= 1e9 * (step == 0)
            token = logits.argmax(-1).masked_fill(done, _END)
            done |= token == _END
            found.append(token)
            ids = token[:, None]
            if step % 8 == 7 and done.all():
                break
        rows = torch.stack(found, 1).tolist()
        return [self._tokenizer.decode([one for one in row if one < _END]) for row in rows]


@functools.lru_cache(1 << 16)
def _cost(word: str, other: str) -> float:
    ratio = 1.0 if word == other else difflib.SequenceMatcher(None, word, other).ratio()
    return 0.0 if word == other else 1.1 - 0.6 * ratio if ratio > 0.5 else 1.2


def aligned(text: str, heard: str) -> list[tuple[int | None, int | None]]:
    """Pair the words of a text with those heard, by the fewest edits; like words may take each other's place."""
    words, others = words_of(text), words_of(heard)
    table = np.zeros((len(words) + 1, len(others) + 1))
    table[:, 0], table[0] = np.arange(len(words) + 1), np.arange(len(others) + 1)
    for row, word in enumerate(words, 1):
        for column, other in enumerate(others, 1):
            near = table[row - 1, column - 1] + _cost(word, other)
            table[row, column] = min(near, table[row - 1, column] + 1, table[row, column - 1] + 1)
    row, column, pairs = len(words), len(others), []
    while row or column:
        both = row and column and table[row - 1, column - 1] + _cost(words[row - 1], others[column - 1])
        if row and column and abs(table[row, column] - both) < 1e-9:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif row and abs(table[row, column] - table[row - 1, column] - 1) < 1e-9:
            row -= 1
            pairs.append((row, None))
        else:
            column -= 1
            pairs.append((None, column))
    return pairs[::-1]


def faults(text: str, heard: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]], set[int]]:
    """Return (again, lost, wrong): (place, count) of words heard again, (first, stop) of those not heard."""
    words, others, pairs = words_of(text), words_of(heard), aligned(text, heard)
    again, lost, at = [], [], 0
    while at < len(pairs):
        stop, (row, column) = at, pairs[at]
        while (
            stop < len(pairs)
            and (pairs[stop][0] is None) == (row is None)
            and (pairs[stop][1] is None) == (column is None)
        ):
            stop += 1
        if row is None and stop - at > 1:
            place = next((one for one, _ in pairs[stop:] if one is not None), len(words))
            near = words[max(0, place - 30) : place + 30]
            known = sum(any(_cost(others[column], one) < 0.65 for one in near) for _, column in pairs[at:stop])
            if known >= 0.6 * (stop - at):
                again.append((place, stop - at))
        elif column is None and stop - at > 1:
            lost.append((row, row + stop - at))
        at = stop
    wrong = {row for row, column in pairs if row is not None and (column is None or words[row] != others[column])}
    return again, lost, wrong
