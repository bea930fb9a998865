"""Undocumented names of torch: each exists and takes our arguments, or is not needed.

A torch that moves one of them fails here, on any machine, before it fails on a user's GPU.
"""

import inspect

import pytest
import torch
from higgs_tts.engine.device import torch_names

has_cuda_build = pytest.mark.skipif(not torch.version.cuda, reason="this torch is built without CUDA")


def parameters(function):
    return inspect.signature(function).parameters


def test_silu_writes_into_a_buffer():
    out = torch.empty(3)
    torch_names.silu_into(torch.ones(3), out)
    assert torch.allclose(out, torch.full((3,), 0.7310586))


def test_a_weight_is_normed_over_all_axes_but_the_last():
    direction, length = torch.tensor([[[3.0, 0.5]], [[4.0, 0.0]]]), torch.tensor([[[10.0, 2.0]]])
    wanted = torch.tensor([[[6.0, 2.0]], [[8.0, 0.0]]])
    assert torch.allclose(torch_names.weight_norm(direction, length), wanted)


def test_a_storage_has_an_identity():
    wide = torch.zeros(4)
    meta = torch.empty(4, device="meta")
    assert torch_names.storage_id(wide) == torch_names.storage_id(wide[1:])
    assert len({torch_names.storage_id(one) for one in (wide, torch.zeros(4), meta, torch.empty_like(meta))}) == 4


@has_cuda_build
def test_workspaces_and_pinned_memory_can_be_released():
    assert callable(torch._C._cuda_clearCublasWorkspaces)
    torch_names.release_pinned_memory()  # since 2.6; without it torch keeps pinned memory, and nothing else happens


@has_cuda_build
def test_pools_streams_and_captures_accept_our_arguments():
    assert "use_count" in dir(torch.cuda.MemPool) or torch.__version__ < "2.6"
    assert list(parameters(torch.cuda.use_mem_pool))[:2] == ["pool", "device"]
    assert list(parameters(torch.cuda.CUDAGraph.capture_begin))[1:3] == ["pool", "capture_error_mode"]
    assert {"device", "priority"} <= parameters(torch.cuda.Stream.__new__).keys()
    assert {"capture_end", "pool", "replay", "reset"} <= set(dir(torch.cuda.CUDAGraph))
    assert callable(torch.cuda.get_allocator_backend)
