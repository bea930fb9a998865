"""What a GPU has left, for tests that compare it before and after."""

import gc

import torch


def free_bytes():
    """Return the device's free bytes, after emptying torch's cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
