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
def test_codebook_c_runs_c_columns_behind(frames):
    codes = torch.randint(0, 1024, (frames, 8))
    for codebook in range(8):
        assert torch.equal(codes_module.apply_v3(codes)[codebook : codebook + frames, codebook], codes[:, codebook])
        later = slice(codebook + 1, codebook + 1 + frames)
        assert torch.equal(codes_module.apply_v2(codes)[later, codebook], codes[:, codebook])
