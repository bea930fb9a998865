"""Counter-based noise: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A number depends only on its key and counter. There is no generator state that could drift between runners or rows.
Words are 32-bit values in int64 tensors, because torch has no unsigned 32-bit multiply with a high half.
"""

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def round_keys(seed: int) -> torch.Tensor:
    """Return the keys of the ten rounds for a 64-bit seed, [10, 2]."""
    low, high = seed & _MASK, (seed >> 32) & _MASK
    keys = [[(low + r * _WEYL[0]) & _MASK, (high + r * _WEYL[1]) & _MASK] for r in range(ROUNDS)]
    return torch.tensor(keys, dtype=torch.int64)


def philox(words: torch.Tensor, keys: torch.Tensor, product: torch.Tensor) -> None:
    """Run ten rounds in place.

    words: [B, K, 4, Q], the counters, overwritten with random words; keys: [B, 10, 2]; product: [B, K, 2, Q] scratch.
    Upper bits are cleared of what is multiplied next, and of the rest at the end.
    """
    even, odd = words[:, :, 0::2], words[:, :, 1::2]
    first, third = even.unbind(2)
    halves = [tensor.unbind(2) for tensor in (product, odd)]  # take the products in turn; the last ones go to `odd`
    for key in keys.view(-1, ROUNDS, 1, 2, 1).unbind(1):
        torch.mul(third, _MULTIPLIERS[1], out=halves[0][0])
        torch.mul(first, _MULTIPLIERS[0], out=halves[0][1])
        torch.bitwise_right_shift(product, 32, out=even)
        even.bitwise_xor_(odd).bitwise_xor_(key).bitwise_and_(_MASK)
        product, odd = odd, product
        halves.reverse()
    odd.bitwise_and_(_MASK)


def gumbel(words: torch.Tensor, out: torch.Tensor) -> None:
    """Write standard Gumbel noise from random words: words [...] int64 (overwritten), out [...] fp32.

    Uses 23 bits per number, so that the added half step, which avoids 0 and 1, is exact in fp32.
    """
    words.bitwise_right_shift_(9)
    out.copy_(words)
    out.add_(0.5).mul_(2.0**-23)
    out.log_().neg_().log_().neg_()
