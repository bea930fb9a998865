"""Words of a finished speech by Whisper's attention while it reads the known text. For talkers without aligning heads.

As in OpenAI's whisper/timing.py: one pass of encoder and decoder, cross-attention of the alignment heads, normalised
over tokens, a median over time, a monotonic path. Pauses are left out, and a constant lag is taken off.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.functional import pad

from ..audio.resample import resample
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..device.memory import to_device
from ..speech.result import SpeechResult
from .boundaries import pauses_of, placed
from .estimate import estimate
from .letters import words_of
from .path import path_starts
from .transcribe import HEARS, load_whisper, require_whisper
from .word import Word

_FRAME = SAMPLE_RATE // 50  # samples of a position of the encoder
_EARLY = 5  # positions by which attention comes before the sound, in whisper-base
_LAG = SAMPLE_RATE // 200  # what is left then
_MEDIAN = 7  # positions
# No memory, or another transformers than those known.
_FAILED = (HiggsError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_LOG = logging.getLogger("higgs_tts")


class WhisperAligner:
    """Aligns with the Whisper in a folder, which is loaded at the first call and stays on the host until `close`.

    Its weights are on the device during a call only. Raises HiggsError if the folder holds no Whisper.
    """

    def __init__(self, folder: Path, device: torch.device):
        require_whisper(folder)
        self._folder, self._device = folder, device
        self._loaded: tuple[Any, Any, Any] | None = None

    def close(self) -> None:
        """Drop the weights."""
        self._loaded = None

    @torch.inference_mode()
    def align(self, speech: SpeechResult) -> tuple[Word, ...]:
        """Return the words of a speech in order. Chunks over 30 s, or of more text than Whisper reads, are estimated.

        If Whisper fails, all are, and the log says why: the speech is there already.
        """
        try:
            chunk_starts = self._starts(speech)
        except _FAILED as error:
            _LOG.warning("Higgs TTS could not find the times of words with Whisper, so they are estimated: %s", error)
            chunk_starts = [None] * len(speech.said)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        words: list[Word] = []
        for turn, starts in zip(speech.said, chunk_starts, strict=True):
            if starts is None:
                words += estimate(speech.wav, turn)
            else:
                words += placed(words_of(turn.text), starts, speech.wav, turn, "whisper")
        return tuple(words)

    @torch.inference_mode()
    def transcribe(self, text: str, wav: torch.Tensor) -> tuple[str, list[float]] | None:
        """Return what it writes down of a chunk [n], and the sample at which each word of the text starts.

        None if it cannot be read, or if Whisper fails, which the log tells.
        """
        try:
            reader = self._reader()
            starts = reader.starts(text, wav)
            return None if starts is None else (reader.written(wav), starts)
        except _FAILED as error:
            _LOG.warning("Higgs TTS could not check speech with Whisper: %s", error)
            return None

    def _reader(self) -> Reader:
        if self._loaded is None:
            self._loaded = load_whisper(self._folder, self._device)
        return Reader(*self._loaded, self._device)

    def _starts(self, speech: SpeechResult) -> list[list[float] | None]:
        reader = self._reader()
        return [
            reader.starts(turn.text, speech.wav[turn.start : turn.stop]) if turn.is_spoken else None
            for turn in speech.said
        ]


class Reader:
    """Reads the chunks of one speech. Its language is the one that Whisper hears in the first of them."""

    def __init__(self, extractor: Any, tokenizer: Any, whisper: Any, device: torch.device):
        self._extractor, self._tokenizer, self._model, self._device = extractor, tokenizer, whisper.model, device
        self._writer, self._settings, self._begin = _Generation(whisper), whisper.generation_config, []
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        self._weights = {name: tensor.to(device) for name, tensor in tensors.items()}  # not pinned: too large
        layers, heads = whisper.config.decoder_layers, whisper.config.decoder_attention_heads
        upper = [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
        given = [tuple(head) for head in getattr(self._settings, "alignment_heads", None) or upper]
        # A distilled model may name its teacher's.
        is_own = all(layer < layers and head < heads for layer, head in given)
        self._heads = given if is_own else upper
        self._most_tokens, self._most_frames = whisper.config.max_target_positions, whisper.config.max_source_positions

    def starts(self, text: str, wav: torch.Tensor) -> list[float] | None:
        """Return the sample at which each word of a chunk starts in its wav [n]. None if it cannot be read."""
        tokens, frames = self.tokens(text), -(-len(wav) // _FRAME)
        count = sum(map(len, tokens))
        # Four tokens come before the text, and one after it.
        fits = frames <= self._most_frames and count + 5 <= self._most_tokens
        if not fits or not tokens or not all(tokens) or frames <= count + 1:
            return None
        hidden = self._encoded(wav)
        ids = [*self._begin, *(token for word in tokens for token in word), self._settings.eos_token_id]
        score = self._score(self.attention(ids, hidden)[..., :frames])  # [N + 1, T]
        places = _sounding(wav, frames)
        if len(places) < len(score):
            places = torch.arange(frames)
        first = places[path_starts(score[:, places].T[None].numpy())[0]]
        at, starts = 0, []
        for word in tokens:
            starts.append((float(first[at]) + 0.5) * _FRAME + _LAG)
            at += len(word)
        return starts

    def written(self, wav: torch.Tensor) -> str:
        """Return what it writes down of a chunk [n] that `starts` could read, in the same language."""
        features = self._features(wav)
        spoken = {id_: name for name, id_ in (getattr(self._settings, "lang_to_id", None) or {}).items()}
        given = {"language": spoken[self._begin[1]], "task": "transcribe"} if spoken else {}
        weights = {f"whisper.model.{name}": tensor for name, tensor in self._weights.items()}
        ids = functional_call(self._writer, weights, (features,), given)
        return self._tokenizer.batch_decode(ids, skip_special_tokens=True)[0]

    def tokens(self, text: str) -> list[list[int]]:
        """Return the tokens of each word, with the space before it if it has one."""
        word_tokens, at = [], 0
        for word in words_of(text):
            at = max(at, text.find(word, at))
            spaced = word if at and text[at - 1].isalnum() else f" {word}"
            word_tokens.append(self._tokenizer.encode(spaced, add_special_tokens=False))
            at += len(word)
        return word_tokens

    def _run(self, ids: list[int], **given: Any) -> Any:
        given |= {"decoder_input_ids": torch.tensor([ids], device=self._device), "use_cache": False}
        return functional_call(self._model, self._weights, kwargs=given)

    def _encoded(self, wav: torch.Tensor) -> torch.Tensor:
        """Encode a sound. The first one also decides the language."""
        embedding, start = self._weights["decoder.embed_tokens.weight"], self._settings.decoder_start_token_id
        read = self._run([start], input_features=self._features(wav))
        if not self._begin:
            self._begin = [start]
            if languages := getattr(self._settings, "lang_to_id", None):  # English-only models have none
                ids = torch.tensor(list(languages.values()))
                best = embedding[ids.to(self._device)] @ read.last_hidden_state[0, -1]
                self._begin += [int(ids[int(best.argmax())]), self._settings.task_to_id["transcribe"]]
            self._begin.append(self._settings.no_timestamps_token_id)
        return read.encoder_last_hidden_state

    def _features(self, wav: torch.Tensor) -> torch.Tensor:
        sound = resample(wav, SAMPLE_RATE, HEARS)
        features = self._extractor(sound.numpy(), sampling_rate=HEARS, return_tensors="pt").input_features
        return to_device(features, self._device).to(self._weights["decoder.embed_tokens.weight"].dtype)

    def attention(self, ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """Return the attention [heads, ids, positions] of the alignment heads, fp32."""
        seen: dict[tuple[int, str], torch.Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for layer in {layer for layer, _ in self._heads}:
                for name in ("q_proj", "k_proj"):
                    part = getattr(self._model.decoder.layers[layer].encoder_attn, name)
                    hook = part.register_forward_hook(
                        lambda part, given, out, key=(layer, name): seen.__setitem__(key, out[0])
                    )
                    hooks.callback(hook.remove)
            self._run(ids, encoder_outputs=(hidden,))
        dim = hidden.shape[-1] // self._model.config.decoder_attention_heads
        maps = []
        for layer, head in self._heads:
            q, k = (seen[layer, name][:, head * dim : (head + 1) * dim].float() for name in ("q_proj", "k_proj"))
            maps.append((q @ k.T * dim**-0.5).softmax(-1))
        return torch.stack(maps)

    def _score(self, attention: torch.Tensor) -> torch.Tensor:
        """Return how well each token, and then the end, fits each position: [heads, ids, T] -> host [N + 1, T]."""
        shares = attention / attention.sum(-1, keepdim=True)
        normal = (shares - shares.mean(1, keepdim=True)) / (shares.std(1, correction=0, keepdim=True) + 1e-9)
        margin = min(_MEDIAN // 2, normal.shape[-1] - 1)
        smooth = pad(normal, (margin, margin), mode="reflect").unfold(-1, 2 * margin + 1, 1).median(-1).values
        places = (torch.arange(smooth.shape[-1]) - _EARLY).clamp(min=0)
        return smooth.mean(0).cpu()[len(self._begin) - 1 : -1, places]  # a token is attended to where it is predicted


class _Generation(torch.nn.Module):
    """`generate` as a module's call, which takes weights from elsewhere."""

    def __init__(self, whisper: Any):
        super().__init__()
        self.whisper = whisper

    def forward(self, features: torch.Tensor, **given: Any) -> torch.Tensor:
        return self.whisper.generate(features, **given)


def _sounding(wav: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the positions that are neither in a pause nor before or after the speech."""
    first, last, pauses = pauses_of(wav)
    middle = (torch.arange(frames) + 0.5) * _FRAME
    kept = (middle > first) & (middle < last)
    for start, stop in pauses:
        kept &= ~((middle > start) & (middle < stop))
    return kept.nonzero().flatten()
