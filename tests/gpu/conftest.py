"""Talkers of the published widths with random weights, straight on the GPU. Everything here skips without CUDA."""

import pathlib

import pytest
import torch
from higgs_tts.engine.checkpoint.talker_layout import make_plan
from higgs_tts.engine.core.codes import BOC, apply_v2, apply_v3
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.decode.state import DecodeState
from higgs_tts.engine.talker import build_talker
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.tests import real_shapes
from higgs_tts.tests.quantized import quantize

PUBLISHED = {
    "v3": {
        "hidden": 2560,
        "heads": 32,
        "head_dim": 128,
        "intermediate": 9728,
        "norm_eps": 1e-6,
        "rope": RopeConfig(1e6),
    },
    "v2": {
        "hidden": 3072,
        "heads": 24,
        "head_dim": 128,
        "intermediate": 8192,
        "norm_eps": 1e-5,
        "rope": RopeConfig(500000.0, 32.0, 0.125, 0.5, 1024),
    },
}


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in pathlib.Path(item.path).parts:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return checkpoints of three layers of each family, of the published widths."""
    return {family: real_shapes.write(tmp_path_factory.mktemp(family), family, 3) for family in ("v3", "v2")}


def wide_talker(family: str, dtype, layers: int, context: int, weights: str = ""):
    """Return a talker of the published width with few layers, on cuda:0."""
    config = ModelConfig(family=family, layout=family, layers=layers, kv_heads=8, text_vocab=400, **PUBLISHED[family])
    plan = make_plan(config, [], tied=family == "v3")
    g = torch.Generator("cuda").manual_seed(0)
    tensors = {}
    for name in plan.parts:
        shape = plan.shape(name)
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        device = "cpu" if name == "embed_text" else "cuda"
        tensors[name] = (torch.randn(shape, generator=g, device="cuda") * scale).to(device, dtype)
    head = tensors["embed_codes" if plan.tied else "head_codes"].view(config.codebooks, config.code_vocab, -1)
    head[:, BOC:] *= 0.01  # speech does not end by chance
    if plan.tied:
        tensors["head_codes"] = tensors["embed_codes"]
    quantize(tensors, weights)
    return build_talker(config, tensors, context)


def wide_prompt(config, seed: int = 0, frames: int = 12) -> Sequence:
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1024, (frames, 8), generator=g)
    rows = apply_v3(codes) if config.family == "v3" else apply_v2(codes)
    text = torch.randint(0, 400, (10,), generator=g).tolist()
    ids, spans = text[:5] + [0] * len(rows) + text[5:], [(5, rows)]
    if config.family == "v2":
        spans.append((len(ids), torch.full((1, 8), BOC)))
        ids = [*ids, 0]
    return Sequence(ids, tuple(spans), prefix=5 + len(rows))


@pytest.fixture
def wide():
    return wide_talker


@pytest.fixture
def prompt():
    return wide_prompt


@pytest.fixture
def state_of():
    def make(talker, batch, context):
        aligned = (0, 0), (0, 5), (1, talker.config.heads - 1)
        return DecodeState(talker.config, batch, context, talker.device, talker.dtype, aligned)

    return make


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield
