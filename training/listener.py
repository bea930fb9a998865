"""A small frame-level recogniser, trained beside the codec, that scores its speech by content.

Critics reward sound that is like any speech. The listener knows what was said. It learns from real speech and from the
codec's alike, so that the codec cannot please it with artefacts that only a listener hears.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .shards import SAMPLE_RATE, STEP

SYMBOLS = 192  # more than there are
_WIDTH, _BANDS, _WINDOW = 256, 80, 1024
_FLOOR = 1e-3


def _conv(inputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, _WIDTH, 5, stride, 2), nn.GroupNorm(8, _WIDTH), nn.GELU())


class Reader(nn.Sequential):
    """Recognises symbols in the codec's latents, so that codes carry content: [B, LATENT, T] -> [B, SYMBOLS, T]."""

    def __init__(self, latent: int):
        super().__init__(_conv(latent), nn.Conv1d(_WIDTH, SYMBOLS, 3, padding=1))


class Listener(nn.Module):
    """wav [B, 960 * T] -> the activations of its layers, [B, SYMBOLS, T] last."""

    def __init__(self):
        super().__init__()
        from torchaudio.functional import melscale_fbanks

        filters = melscale_fbanks(_WINDOW // 2 + 1, 0.0, SAMPLE_RATE / 2, _BANDS, SAMPLE_RATE, "slaney", "slaney")
        self.register_buffer("window", torch.hann_window(_WINDOW))
        self.register_buffer("filters", filters.T.contiguous())
        self.layers = nn.ModuleList([_conv(_BANDS), _conv(_WIDTH, 2), _conv(_WIDTH, 2), _conv(_WIDTH)])
        self.last = nn.Conv1d(_WIDTH, SYMBOLS, 1)

    def forward(self, wav: torch.Tensor) -> list[torch.Tensor]:
        spectrum = torch.stft(
            wav.float(), _WINDOW, STEP, window=self.window, return_complex=True, pad_mode="constant"
        )  # one more than four per frame
        power = torch.view_as_real(spectrum).square().sum(-1)
        x = (self.filters @ power[..., :-1]).clamp_min(_FLOOR).log()
        states = []
        with torch.autocast(wav.device.type, torch.bfloat16, enabled=wav.is_cuda, cache_enabled=False):
            for layer in self.layers:
                x = layer(x)
                states.append(x)
            return [*states, self.last(x)]


def misheard(heard: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of [B, SYMBOLS, T] and symbols [B, T]. Frames without a symbol do not count."""
    return F.cross_entropy(heard.float(), said, ignore_index=0)


def wrong(heard: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
    """Return the share of frames recognised as the wrong symbol."""
    told = said != 0
    return ((heard.argmax(1) != said) & told).sum() / told.sum().clamp_min(1)


def distance(made: list[torch.Tensor], real: list[torch.Tensor]) -> torch.Tensor:
    """Return the feature distance of two sounds in every layer but the last."""
    pairs = zip(made[:-1], real[:-1], strict=True)
    return sum(F.l1_loss(a.float(), b.float()) / b.float().abs().mean().clamp_min(1e-3) for a, b in pairs)
