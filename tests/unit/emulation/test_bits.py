"""The kernels' roundings on GPUs before 8.0, for CUDA's NaN, which no CPU produces."""

import importlib.util
import pathlib

import torch

GPU_TEST = pathlib.Path(__file__).resolve().parents[2] / "gpu" / "test_bits.py"
EDGES = (0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F, 0x80, 0x81, 0x180, 0x7FFFFF, 0x3F807FFF, 0x3F808000, 0x3F818000)
LARGE = (0x7F7F7FFF, 0x7F7F8000, 0x7F7FFF7F, 0x7F7FFFFF, 0x7F800000)  # the last is infinity
NANS = (0x7F800001, 0x7F80007F, 0x7F8000FF, 0x7F807FFF, 0x7F810000, 0x7FC00000, 0x7FFF8000, 0x7FFFFF80, 0x7FFFFFFF)


def test_numbers_are_rounded_to_nearest_and_nan_stays_nan(emulate):
    spec = importlib.util.spec_from_file_location("gpu_test_bits", GPU_TEST)
    gpu_test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_test)
    positive = torch.tensor([*EDGES, *LARGE, *NANS], dtype=torch.int64)
    chosen = torch.cat([positive, positive - (1 << 31)])
    others = torch.randint(-(1 << 31), 1 << 31, (50_000,), generator=torch.Generator().manual_seed(0))
    bits = torch.cat([chosen, others]).to(torch.int32)
    run = emulate(gpu_test.source(), "probe", "Probe", 32, gpu_test.OPTIONS)
    assert gpu_test.wrong(lambda argument: run(argument, 4), bits) == []
