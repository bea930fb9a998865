"""Measures of tests on a GPU: what the device has left, and how far sounds differ."""

import gc

import torch


def free_bytes():
    """Return the device's free bytes, after emptying torch's cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def off(sound, expected):
    """Return the distance of a sound from the expected one, of its norm."""
    return float((sound - expected).norm() / expected.norm())
