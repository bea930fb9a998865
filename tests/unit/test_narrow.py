"""Matrices kept in bf16 for a CPU that computes in fp32: products and codes equal those of fp32 weights to the bit."""

import pytest
import torch
from higgs_tts.engine.checkpoint.embedded import EMBEDDED
from higgs_tts.engine.checkpoint.load import inspect, load_talker, talker_sizes
from higgs_tts.engine.core.config import Adapter, EngineConfig, SamplingParams
from higgs_tts.engine.engines.engine import Engine
from higgs_tts.engine.talker import weight as weight_module
from higgs_tts.engine.talker.ops.linear import add_linear, linear, project
from higgs_tts.engine.talker.weight import SCRATCH, Weight, widened_bytes
from higgs_tts.tests.peft_files import write_adapter

CPU = torch.device("cpu")


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def narrow(shape):
    """Return a bf16 matrix and the same in fp32."""
    data = drawn(*shape).bfloat16()
    scratch = torch.empty(widened_bytes(shape, torch.float32), dtype=torch.uint8)
    return Weight(data, scratch), Weight(data.float())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 33])
@pytest.mark.parametrize("shape", [(8208, 512), (768, 512), (1025, 512), (2049, 512), (60, 64), (300, 9728)])
def test_products_by_blocks_of_rows_have_the_same_bits(shape, rows):
    kept, wide = narrow(shape)
    x, before = drawn(rows, shape[1]), drawn(rows, shape[0])
    for product in (linear, add_linear):
        found = [before.clone(), before.clone()]
        for weight, out in zip((kept, wide), found, strict=True):
            product(x, weight, out)
        assert torch.equal(*found)
    assert torch.equal(project(x, kept), project(x, wide))


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((8208, 512), [1024] * 7 + [1040]), ((1025, 512), [1025]), ((130, 9728), [64, 66]), ((60, 64), [60])],
)
def test_blocks_are_whole_tiles_and_the_last_takes_the_rest(shape, blocks):
    kept, _ = narrow(shape)
    assert [len(matrix) for _, matrix in kept.parts(torch.float32)] == blocks
    assert kept.scratch.nbytes == max(blocks) * shape[1] * 4


def test_rows_are_taken_as_from_fp32():
    kept, wide = narrow((60, 64))
    index, found = torch.tensor([3, 59, 0, 3]), torch.empty(4, 64)
    kept.take(index, found)
    assert torch.equal(found, wide.data[index])


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_codes_equal_those_of_fp32_weights(written, family, is_traced, monkeypatch):
    monkeypatch.setattr(weight_module, "WIDENED", 1 << 13)  # several blocks also here
    params, said = SamplingParams(seed=5, max_frames=40, retries=0), []
    for keeps in (True, False):
        with monkeypatch.context() as patch:
            for user in ("engine", "loaded_model"):
                patch.setattr(f"higgs_tts.engine.engines.{user}.keeps_bf16", lambda *given, keeps=keeps: keeps)
            with Engine(EngineConfig(str(written[family]), device="cpu", context=512)) as engine:
                data = engine.loaded.talker.layers[0].qkv.data
                assert data.dtype == (torch.bfloat16 if keeps else torch.float32)
                said.append(engine.speak("Two ways to keep the weights.", params=params).codes)
    assert torch.equal(*said)


def test_what_is_planned_is_what_is_loaded_and_half_of_fp32():
    checkpoint = inspect(EMBEDDED)
    tensors = load_talker(checkpoint, CPU, torch.float32, narrow=True)
    on_device = {id(tensor): tensor.nbytes for name, tensor in tensors.items() if name != "embed_text"}
    assert sum(on_device.values()) == sum(talker_sizes(checkpoint, torch.float32, narrow=True))
    assert sum(on_device.values()) - tensors[SCRATCH].nbytes < 0.51 * sum(talker_sizes(checkpoint, torch.float32))
    assert tensors["embed_codes"].dtype == torch.bfloat16 and tensors["norm"].dtype == torch.float32


def test_matrices_that_an_adapter_changes_are_kept_in_fp32(written, tmp_path):
    write_adapter(written["v3"], tmp_path / "adapter", "whole")
    checkpoint = inspect(written["v3"], adapters=(Adapter(str(tmp_path / "adapter"), 1.0),))
    wide, kept = (load_talker(checkpoint, CPU, torch.float32, narrow=narrow) for narrow in (False, True))
    assert kept["layers.0.o"].dtype == torch.float32 and torch.equal(kept["layers.0.o"], wide["layers.0.o"])
    assert kept["layers.0.qkv"].dtype == torch.bfloat16
