"""bf16 matrices for a CPU that computes in fp32: held in fp16 they give the products and codes of fp32 weights."""

import pytest
import torch
from higgs_tts.engine.checkpoint.embedded import EMBEDDED
from higgs_tts.engine.checkpoint.load import inspect, load_talker, talker_sizes
from higgs_tts.engine.core.config import Adapter, EngineConfig, SamplingParams
from higgs_tts.engine.device.torch_names import has_half_product
from higgs_tts.engine.engines.engine import Engine
from higgs_tts.engine.talker.ops.linear import add_linear, linear, project
from higgs_tts.engine.talker.weight import Weight
from higgs_tts.tests.peft_files import write_adapter

CPU = torch.device("cpu")
halved = pytest.mark.skipif(not has_half_product(), reason="this torch or processor has no product with fp16 matrices")


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@halved
@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("shape", [(8208, 512), (1025, 512), (60, 64), (300, 9728)])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_products_are_those_of_fp32_weights(shape, rows, scale):
    matrix = drawn(*shape).mul_(scale).bfloat16()
    half = Weight(matrix)
    half.halve()
    x, before = drawn(rows, shape[1]), drawn(rows, shape[0]).mul_(scale)
    exact = x.double() @ matrix.double().t()
    for product, wanted in ((linear, exact), (add_linear, exact + before)):
        out = before.clone()
        product(x, half, out)
        assert (out - wanted).abs().max() < 3e-7 * scale * shape[1]
    assert torch.equal(project(x, half)[:1], project(x[:1], half)), "a row's bits do not depend on other rows"


@halved
def test_weights_of_every_size_are_exact():
    sizes = torch.tensor([1.0, 0.75, 2.0**-20, 1.171875 * 2.0**-31, 0.0, -1.0])
    half = Weight(torch.diag(sizes).bfloat16())
    half.halve()
    assert torch.equal(project(torch.eye(6), half), torch.diag(sizes))
    assert half.shape == (6, 6) and half.format == "bf16"


@halved
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_codes_equal_those_of_fp32_weights(written, family, monkeypatch):
    params, said = SamplingParams(seed=5, max_frames=40, retries=0), []
    for keeps in (True, False):
        with monkeypatch.context() as patch:
            for user in ("engine", "loaded_model"):
                patch.setattr(f"higgs_tts.engine.engines.{user}.keeps_bf16", lambda *given, keeps=keeps: keeps)
            with Engine(EngineConfig(str(written[family]), device="cpu", context=512)) as engine:
                assert (engine.loaded.talker.layers[0].qkv.half is not None) == keeps
                said.append(engine.speak("Two ways to keep the weights.", params=params).codes)
    assert torch.equal(*said)


def test_what_is_planned_is_what_is_loaded_and_half_of_fp32():
    checkpoint = inspect(EMBEDDED)
    tensors = load_talker(checkpoint, CPU, torch.float32, narrow=True)
    loaded = {id(tensor): tensor.nbytes for name, tensor in tensors.items() if name != "embed_text"}
    head = tensors["head_codes"].nbytes  # once more than the embeddings, which share the file's tensor
    assert sum(loaded.values()) + head == sum(talker_sizes(checkpoint, torch.float32, narrow=True))
    assert sum(loaded.values()) < 0.51 * sum(talker_sizes(checkpoint, torch.float32))
    assert tensors["embed_codes"].dtype == torch.bfloat16 and tensors["norm"].dtype == torch.float32


def test_matrices_that_an_adapter_changes_are_kept_in_fp32(written, tmp_path):
    write_adapter(written["v3"], tmp_path / "adapter", "whole")
    checkpoint = inspect(written["v3"], adapters=(Adapter(str(tmp_path / "adapter"), 1.0),))
    wide, kept = (load_talker(checkpoint, CPU, torch.float32, narrow=narrow) for narrow in (False, True))
    assert kept["layers.0.o"].dtype == torch.float32 and torch.equal(kept["layers.0.o"], wide["layers.0.o"])
    assert kept["layers.0.qkv"].dtype == torch.bfloat16
