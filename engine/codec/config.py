"""The widths of a codec."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import FRAME_SAMPLES


@dataclass(frozen=True)
class CodecConfig:
    """Widths of the network. Everything else about it is fixed."""

    codebook_size: int
    codebook_dim: int
    acoustic_hidden: int
    encoder_hidden: int
    decoder_hidden: int
    semantic_hidden: int
    semantic_ffn: int
    semantic_layers: int
    pos_kernel: int
    pos_groups: int
    ratios: tuple[int, ...]
    conv_dims: tuple[int, ...]
    conv_kernels: tuple[int, ...]

    @property
    def name(self) -> str:
        """Tells codecs apart whose codes mean different things; the published v2 and v3 share one."""
        return f"{self.acoustic_hidden}+{self.semantic_hidden}"

    @property
    def hidden(self) -> int:
        """Channels the quantizer sees: acoustic and semantic side by side."""
        return self.acoustic_hidden + self.semantic_hidden

    def decode_bytes(self, frames: int) -> int:
        """Return the approximate peak device memory in bytes for decoding `frames` frames in fp32.

        The last block's tensors are the largest. Its residual units hold four at a time, and convolutions need as much
        again.
        """
        return 8 * frames * FRAME_SAMPLES * (self.decoder_hidden >> len(self.ratios)) * 4

    @property
    def semantic_heads(self) -> int:
        """HuBERT's attention heads are 64 wide."""
        return max(1, self.semantic_hidden // 64)
