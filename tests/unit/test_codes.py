import pytest
import torch
from higgs_tts.engine.core import codes as codes_module

A, B, C, BEGIN, END = 1, 2, 3, 1024, 1025


def test_rows_of_both_families_equal_the_published_example():
    codes = torch.tensor([[10, 20, 30], [11, 21, 31]])
    middle = [[10, BEGIN, BEGIN], [11, 20, BEGIN], [END, 21, 30], [END, END, 31]]
    assert codes_module.apply_v3(codes).tolist() == middle
    assert codes_module.apply_v2(codes).tolist() == [[BEGIN] * 3, *middle, [END] * 3]


@pytest.mark.parametrize("frames", [0, 1, 2, 7, 8, 40])
def test_revert_undoes_apply(frames):
    codes = torch.randint(0, 1024, (frames, 8))
    assert torch.equal(codes_module.revert(codes_module.apply_v3(codes)), codes)
    assert torch.equal(codes_module.revert(codes_module.apply_v2(codes))[1:-1], codes)


def test_revert_of_less_than_one_frame_is_empty():
    assert codes_module.revert(torch.zeros(5, 8, dtype=torch.int64)).shape == (0, 8)
