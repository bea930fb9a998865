"""Errors begin with the node's name; those that ComfyUI handles keep their type."""

from __future__ import annotations

import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError


@pytest.fixture
def node_errors(load_module):
    return load_module("comfy.node_errors").node_errors


def test_errors_begin_with_the_node_s_name(node_errors):
    with pytest.raises(HiggsError, match=r"^Higgs Speak: the text is empty"), node_errors("Higgs Speak"):
        raise HiggsError("the text is empty")


def test_out_of_memory_keeps_the_type_that_comfyui_handles(node_errors):
    held = []

    def fill():
        scratch = torch.zeros(3)
        held.append(weakref.ref(scratch))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    with pytest.raises(torch.cuda.OutOfMemoryError) as caught, node_errors("Higgs Speak"):
        fill()
    assert str(caught.value).startswith("Higgs Speak: ") and "smaller context" in str(caught.value)
    assert "2 GiB" in str(caught.value) and "more" not in str(caught.value)
    assert held[0]() is None, "the failed frame keeps its tensors alive"


def test_other_exceptions_pass_unchanged(node_errors, interrupted):
    for kind in (interrupted, ValueError, getattr(torch, "AcceleratorError", RuntimeError)):
        with pytest.raises(kind, match=r"^as it was"), node_errors("Higgs Speak"):
            raise kind("as it was")
