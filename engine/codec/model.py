"""Waveform to codes and back.

Always in fp32: lower precision changes which code is nearest, and makes the transposed convolutions unstable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from ..audio.resample import resample
from ..core.config import FRAME_SAMPLES, SAMPLE_RATE
from ..core.errors import HiggsError
from ..cuda.kernel import choose
from ..device.memory import drop
from .config import CodecConfig
from .dac import AcousticDecoder, AcousticEncoder, Snake, SnakeOp, put_channels_last
from .hubert import SemanticModel
from .modules import CODEBOOKS, SEMANTIC_RATE, ResidualQuantizer, SemanticEncoder, decoder_parts, encoder_parts
from .snake import SnakeKernel

CONTEXT_FRAMES = 10  # the decoder's receptive field on either side of a frame; makes windows exact
# After a first and a second window that need not be exact. With one earlier window alone, streams ran dry before the
# second one. What it changes: `early_window` in benchmarks/results/codec.json.
EARLY_CONTEXTS = (5, 7)
WINDOW_FRAMES = 200  # frames decoded at once; longer clips are decoded in windows of this length
END_FRAMES = 25  # a clip's last window is padded to a multiple on a CPU, where oneDNN compiles for each new length
_SEMANTIC_PAD = 160  # samples of padding on each side of HuBERT's input
_SEMANTIC_STEP = 2  # HuBERT states per codec frame


class CodecDecoder(nn.Module):
    """Codes to waveform: the quantizer's output side, a projection and the DAC decoder."""

    quantizer: ResidualQuantizer
    fc2: nn.Linear
    acoustic_decoder: AcousticDecoder

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.config = config
        for name, part in decoder_parts(config).items():
            self.add_module(name, part)
        self._snakes = [module for module in self.modules() if isinstance(module, Snake)]
        self.channels_last = False  # see Conv

    def forward(
        self, codes: torch.Tensor, lengths: torch.Tensor | None = None, before: int = 0, after: int = 0, tail: int = 0
    ) -> torch.Tensor:
        """Decode codes [B, K, T] -> [B, 960 * T].

        lengths: int32 [B], frames of each clip if not all have T. Frames beyond act like the end of the clip.
        before, after: frames at either end that are only context. Their sound is not returned, and mostly not computed.
        tail: frames of padding at the end of all clips. Their sound is returned, and acts like the end of the clip.
        """
        frames = codes.shape[2]
        codes = torch.where((codes >= 0) & (codes < self.config.codebook_size), codes, 0)
        hidden = self.fc2(self.quantizer.decode(codes)).transpose(1, 2)
        if lengths is not None:
            hidden.masked_fill_(torch.arange(frames, device=codes.device) >= lengths[:, None, None], 0.0)
        elif self.channels_last:
            hidden = hidden.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        if tail:
            hidden[..., -tail:] = 0
        self._set_lengths(lengths, frames, tail)
        try:
            return self.acoustic_decoder(hidden, before, after).flatten(1)
        finally:
            self._set_lengths(None, frames)  # a kept reference would keep its memory

    def _set_lengths(self, lengths: torch.Tensor | None, length: int, tail: int = 0):
        for snake in self._snakes:
            snake.lengths, snake.frames, snake.tail = lengths, length, tail

    def choose_kernel(self, wanted: str) -> tuple[SnakeKernel | None, str]:
        """Use the CUDA Snake kernel if it can run. Returns it, to be closed in the end, or None and why not.

        Snake is a third of the codec's launches. wanted: `kernels` as in EngineConfig.
        """
        device = self.fc2.weight.device
        kernel, reason = choose(wanted, device, lambda: SnakeKernel(device))
        if kernel is not None:
            self.use(kernel)
        return kernel, reason

    def use(self, snake: SnakeOp) -> None:
        """Compute all Snake activations with `snake`: a kernel, or torch ops (snake.py)."""
        for module in self._snakes:
            module.compute = snake

    @torch.no_grad()
    def decode_span(self, codes: torch.Tensor, start: int, stop: int, context: int = CONTEXT_FRAMES) -> torch.Tensor:
        """Decode frames `start` to `stop` of `codes`, exactly as in a decode of all frames.

        codes: [B, K, T] int64 -> [B, 960 * (stop - start)] fp32 on the decoder's device. Codes outside the codebook
        count as 0. With less than 10 frames of context, the edges are approximate.
        """
        left, right = max(0, start - context), min(codes.shape[2], stop + context)
        tail = -(right - left) % END_FRAMES if self.channels_last and stop == codes.shape[2] else 0
        window = F.pad(codes[:, :, left:right].to(self.fc2.weight.device), (0, tail))
        before, after = (start - left, right - stop) if self.channels_last else (0, 0)  # a GPU keeps its waveforms
        wav = self(window, None, before, after, tail)
        first = (start - left - before) * FRAME_SAMPLES
        return wav[:, first : first + (stop - start) * FRAME_SAMPLES]

    @torch.no_grad()
    def decode_packed(self, packed: torch.Tensor) -> torch.Tensor:
        """Decode clips as `pack` returns them, on the decoder's device -> [rows, 960 * length], one row per clip.

        Always computes all rows and frames, because libraries choose other algorithms, with another summation order,
        for other shapes.
        """
        codes = packed[:, :-1].view(len(packed), CODEBOOKS, -1)
        return self(codes, lengths=packed[:, -1].to(torch.int32))

    @torch.no_grad()
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode codes [B, K, T] int64 -> wav [B, 960 * T] fp32, 24 kHz, on the device of `codes`.

        Codes outside 0..1023 count as 0. Long clips are decoded in exact windows, so working memory does not grow.
        """
        batch, books, frames = codes.shape
        assert books == CODEBOOKS
        wav = torch.empty(batch, frames * FRAME_SAMPLES, device=codes.device)
        for start in range(0, frames, WINDOW_FRAMES):
            stop = min(frames, start + WINDOW_FRAMES)
            wav[:, start * FRAME_SAMPLES : stop * FRAME_SAMPLES] = self.decode_span(codes, start, stop)
        return wav


class CodecEncoder(nn.Module):
    """Waveform to codes. Four times the decoder's size, so it is built for each call and dropped afterwards."""

    acoustic_encoder: AcousticEncoder
    semantic_model: SemanticModel
    encoder_semantic: SemanticEncoder
    fc: nn.Linear
    quantizer: ResidualQuantizer

    def __init__(self, config: CodecConfig):
        super().__init__()
        for name, part in encoder_parts(config).items():
            self.add_module(name, part)

    @torch.no_grad()
    def encode(self, wav: torch.Tensor) -> torch.Tensor:
        """Encode a clip: wav [S] fp32 mono 24 kHz -> codes [ceil(S / 960), K] int64, both on the device of `wav`.

        Pads the clip with silence to whole frames. Raises HiggsError if the clip has no samples.
        """
        (samples,) = wav.shape
        if not samples:
            raise HiggsError("The reference clip has 0 samples. Load a clip with a few seconds of speech.")
        device = self.fc.weight.device
        padded = F.pad(wav.to(device, torch.float32), (0, -samples % FRAME_SAMPLES))[None]
        acoustic = self.acoustic_encoder(padded[:, None])
        semantic = self.encoder_semantic(self._semantic(padded).transpose(1, 2))
        both = torch.cat([acoustic, semantic], dim=1).transpose(1, 2)  # [1, T, hidden]
        return self.quantizer.encode(self.fc(both))[0].T.contiguous().to(wav.device)

    def _semantic(self, wav: torch.Tensor) -> torch.Tensor:  # [1, S] -> [1, T, semantic_hidden]
        padded = F.pad(resample(wav, SAMPLE_RATE, SEMANTIC_RATE), (_SEMANTIC_PAD, _SEMANTIC_PAD))
        return self.semantic_model(padded)[:, ::_SEMANTIC_STEP]


def pack(clips: list[torch.Tensor], rows: int, length: int) -> torch.Tensor:
    """Pack clips of codes [T, K] on the host into int64 [rows, K * length + 1]: padded codes by codebook, then T."""
    packed = torch.zeros(rows, CODEBOOKS * length + 1, dtype=torch.int64)
    for row, clip in zip(packed, clips, strict=False):
        row[:-1].view(CODEBOOKS, length)[:, : len(clip)] = clip.T
        row[-1] = len(clip)
    return packed


Half = TypeVar("Half", CodecDecoder, CodecEncoder)
Encode = Callable[[torch.Tensor], torch.Tensor]


def build_decoder(config: CodecConfig, tensors: dict[str, torch.Tensor]) -> CodecDecoder:
    """Build the decoder from loaded tensors (canonical names, fp32). Uses them in place, on their device."""
    decoder = _place(_empty(CodecDecoder, config), tensors)
    if decoder.fc2.weight.device.type == "cpu" and torch.backends.mkldnn.is_available():
        decoder.channels_last = True
        put_channels_last(decoder)
    return decoder


def build_encoder(config: CodecConfig, tensors: dict[str, torch.Tensor]) -> CodecEncoder:
    return _place(_empty(CodecEncoder, config), tensors)


@contextlib.contextmanager
def open_encoder(config: CodecConfig, tensors: dict[str, torch.Tensor], device: torch.device) -> Iterator[Encode]:
    """Yield the encoder of `tensors`, which are on `device`: clip [S] -> codes [T, K] on the host.

    Consumes `tensors`: nothing of the encoder stays on the device. Raises HiggsError if a clip has no samples.
    """
    encoder = build_encoder(config, tensors)
    tensors.clear()
    try:
        yield lambda clip: encoder.encode(clip.to(device)).cpu()
    finally:
        drop((*encoder.parameters(), *encoder.buffers()))  # an exception would keep them through its frames
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _empty(kind: type[Half], config: CodecConfig) -> Half:
    with torch.device("meta"):
        return kind(config)


def _place(module: Half, tensors: dict[str, torch.Tensor]) -> Half:
    module.load_state_dict(tensors, strict=True, assign=True)
    return module.requires_grad_(False).eval()
