"""The bench counts the bytes that a step reads, runs on the CPU, and times published shapes only if they fit."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.embedded import EMBEDDED
from higgs_tts.engine.checkpoint.load import inspect, require_whole
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.core.config import EngineConfig
from higgs_tts.engine.engines.engine import Engine
from higgs_tts.engine.tools import bench
from higgs_tts.engine.tools.published import PUBLISHED, fill, write_hollow
from higgs_tts.engine.tools.tiny import FAMILIES

FP32, BF16 = 4, 2


@pytest.fixture(scope="module")
def folders(written):
    return {family: str(folder) for family, folder in written.items()}


def numbers_on_the_way(folder, family):
    """Return the numbers of weights in matrices and in norms used for a code, by the stored names of the tensors."""
    if family == "v3":
        met = r"body\.norm|modality_embeddings\.0\.embedding|body\.layers\.\d\.(self_attn\.._proj|mlp|input|post)"
    else:
        met = r"^(model\.)?norm|audio_lm_head|layers\.\d\.(self_attn|audio_)"
    shapes = open_folder(Path(folder)).shapes
    used = [shape for name, shape in shapes.items() if re.search(met, name)]
    return tuple(sum(math.prod(shape) for shape in used if len(shape) == dims) for dims in (2, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_counted_bytes_equal_the_file_s(folders, family):
    engine = Engine(EngineConfig(folders[family], device="cpu", context=256))
    config = engine.checkpoint.config
    matrices, norms = numbers_on_the_way(folders[family], family)
    if family == "v3":  # one row of norms for each head is kept
        norms += config.layers * (config.heads + config.kv_heads) * config.head_dim
    a_position = 2 * config.layers * config.kv_heads * config.head_dim * FP32
    with bench.opened(engine) as loaded:
        talker = loaded.talker
        assert bench.step_bytes(talker, 0) == matrices * BF16 + norms * FP32
        assert bench.step_bytes(talker, 100, rows=3) - bench.step_bytes(talker, 0) == 300 * a_position
        assert loaded.pool.live_bytes()
    assert not hasattr(loaded, "talker") and not loaded.pool.live_bytes()


def test_a_timed_state_is_live_and_filled_as_requested(folders):
    with bench.opened(Engine(EngineConfig(folders["v3"], device="cpu", context=256, dtype="fp32"))) as loaded:
        runner = loaded.runner()
        state, step = runner.state, runner.step
        steps = []
        runner.step = lambda: (steps.append(int(state.cache.prompt_length[0]) + len(steps)), step())
        assert bench.time_step(runner, 100, steps=20) > 0
        assert len(steps) == 1 + 4 * 20
        assert (
            int(state.cache.prompt_length[0]) == 90
            and int(state.cache.position[0]) == 109
            and not bool(state.delay.done[0])
        )


def test_the_terminal_prints_a_table_and_json(folders, capsys, caplog, monkeypatch):
    monkeypatch.setattr(bench, "PATIENCE", 0.02)
    monkeypatch.setattr(bench, "READ_BYTES", {"cpu": 1 << 20})
    assert main(["bench", "--model", folders["v2"], "--device", "cpu", "--json"]) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    result = json.loads(last)
    (row,) = result["rows"]
    assert (row["who"], row["family"], row["dtype"], row["batch"]) == ("v2", "v2", "float32", 1)
    assert row["frames_per_s"] == pytest.approx(1000 / row["ms_per_step"], rel=1e-3)
    assert row["audio_s_per_s"] == pytest.approx(row["frames_per_s"] / 25, rel=1e-3)
    assert row["percent_of_floor"] == pytest.approx(100 * row["floor_ms"] / row["ms_per_step"], rel=1e-3)
    assert result["read_tb_s"] > 0 and not result["skipped"]
    assert not caplog.records  # a warning would say that something stayed
    assert "GB/s" in table[0] and row["how"] in table[2] and "eager" in row["how"] and "float32" in table[2]


def test_quantised_weights_are_timed_on_request(monkeypatch):
    monkeypatch.setattr(bench, "PATIENCE", 0.02)
    monkeypatch.setattr(bench, "READ_BYTES", {"cpu": 1 << 20})
    result = bench.bench(EngineConfig(str(EMBEDDED), device="cpu", dtype="int8"))
    assert [row["dtype"] for row in result["rows"]] == ["int8"] and not result["skipped"]


def test_the_embedded_model_is_timed_on_a_cpu(capsys, monkeypatch):
    monkeypatch.setattr(bench, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(bench, "PATIENCE", 0.02)
    assert main(["bench", "--device", "cpu", "--json"]) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    (row,) = json.loads(last)["rows"]
    assert row["who"] == "embedded" and row["frames_per_s"] > 0
    assert table[2].startswith("embedded") and "published shapes" in table[3] and "--model" in table[3]


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_hollow_checkpoint_is_whole_and_takes_no_disk_space(tmp_path, family):
    write_hollow(tmp_path, family)
    checkpoint = inspect(tmp_path)
    require_whole(checkpoint)
    assert checkpoint.config.hidden == PUBLISHED[family]["hidden_size"]
    file = (tmp_path / "model.safetensors").stat()
    assert file.st_size > 8e9
    if hasattr(file, "st_blocks"):
        assert file.st_blocks * 512 < 50e6


def test_filled_weights_keep_the_scale_and_never_end_speech(folders):
    with bench.opened(Engine(EngineConfig(folders["v3"], device="cpu", context=256)), hollow=True) as loaded:
        talker = loaded.talker
        head = talker.head_codes.data.float().view(8, 1026, -1)
        assert head[:, :1024].std() == pytest.approx(talker.config.hidden**-0.5, rel=0.05)
        assert head[:, 1024:].std() < 0.02 * head[:, :1024].std()
        assert torch.equal(talker.norm, torch.ones_like(talker.norm))
        before = talker.layers[0].qkv.data.clone()
        fill(talker)
        assert torch.equal(talker.layers[0].qkv.data, before)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights_are_filled_too_and_counted_as_stored(weights):
    engine = Engine(EngineConfig(EMBEDDED, device="cpu", context=256, dtype=weights))
    with bench.opened(engine, hollow=True) as loaded:
        talker = loaded.talker
        layer = talker.layers[0]
        assert layer.qkv.dense(torch.float32).std() == pytest.approx(talker.config.hidden**-0.5, rel=0.05)
        matrices = layer.qkv, layer.out, layer.code.gate_up, layer.code.down
        stored, count = sum(one.nbytes for one in matrices), sum(math.prod(one.shape) for one in matrices)
        assert stored == count * (33 if weights == "int8" else 17) // 32
        assert bench.step_bytes(talker, 0) > talker.config.layers * stored
