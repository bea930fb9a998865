"""The terminal's bench on a GPU: times the captured step and frees everything."""

import pytest
import torch
from higgs_tts.engine import EngineConfig
from higgs_tts.engine.tools.bench import bench
from higgs_tts.engine.tools.tiny import write_tiny


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_bench_times_the_captured_step_and_frees_all_memory(tmp_path, family):
    config = EngineConfig(str(write_tiny(tmp_path / family, family)), device="cuda:0")
    bench(config)  # what CUDA and its libraries keep for the process
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    (row,) = bench(config)["rows"]
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before
    assert "CUDA graph" in row["how"] and 0 < row["floor_ms"] < row["ms_per_step"]
