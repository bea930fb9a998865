"""The embedded checkpoint's tokenizer: bytes, and the special tokens and control tags of v3."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.tools.tiny_config import SPECIALS


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer without merges: with one id per byte, a small model learns spelling."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS["v3"]])
    return tokenizer
