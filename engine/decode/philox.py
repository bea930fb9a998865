"""Counter-based noise: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A number depends only on its key and counter. There is no generator state that could drift between runners or rows.
Words are 32-bit values in int64 tensors, because torch has no unsigned 32-bit multiply with a high half.
"""

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def multipliers() -> torch.Tensor:
    """Return the two round constants, [2, 1]."""
    return torch.tensor(_MULTIPLIERS, dtype=torch.int64).view(2, 1)


def round_keys(seed: int) -> torch.Tensor:
    """Return the keys of the ten rounds for a 64-bit seed, [10, 2]."""
    low, high = seed & _MASK, (seed >> 32) & _MASK
    keys = [[(low + r * _WEYL[0]) & _MASK, (high + r * _WEYL[1]) & _MASK] for r in range(ROUNDS)]
    return torch.tensor(keys, dtype=torch.int64)


def philox(
    words: torch.Tensor, keys: torch.Tensor, factors: torch.Tensor, product: torch.Tensor, high: torch.Tensor
) -> None:
    """Run ten rounds in place.

    words: [B, K, 4, Q], the counters, overwritten with random words; keys: [B, 10, 2]; factors: [2, 1];
    product, high: [B, K, 2, Q] scratch.
    """
    even, odd = words[:, :, 0::2], words[:, :, 1::2]
    for r in range(ROUNDS):
        torch.mul(even, factors, out=product)
        torch.bitwise_right_shift(product, 32, out=high)
        high.bitwise_and_(_MASK)
        torch.bitwise_xor(high[:, :, 1], odd[:, :, 0], out=even[:, :, 0])
        torch.bitwise_xor(high[:, :, 0], odd[:, :, 1], out=even[:, :, 1])
        even.bitwise_xor_(keys[:, r].view(-1, 1, 2, 1))
        torch.bitwise_and(product[:, :, 1], _MASK, out=odd[:, :, 0])
        torch.bitwise_and(product[:, :, 0], _MASK, out=odd[:, :, 1])


def gumbel(words: torch.Tensor, out: torch.Tensor) -> None:
    """Write standard Gumbel noise from random words: words [...] int64 (overwritten), out [...] fp32.

    Uses 23 bits per number, so that the added half step, which avoids 0 and 1, is exact in fp32.
    """
    words.bitwise_right_shift_(9)
    out.copy_(words)
    out.add_(0.5).mul_(2.0**-23)
    out.log_().neg_().log_().neg_()
