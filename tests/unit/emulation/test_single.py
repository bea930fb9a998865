"""The single-row kernel against its torch twin. Weights are copied as on GPUs without cp.async."""

import importlib.util
import pathlib

import pytest
import torch
from higgs_tts.engine.cuda.nvrtc import read_source
from higgs_tts.engine.decode.kernels import single
from higgs_tts.engine.decode.state import DecodeState

GPU_TEST = pathlib.Path(__file__).resolve().parents[2] / "gpu" / "test_single.py"
CPU = torch.device("cpu")
BLOCKS, CONTEXT = 20, 700  # two blocks a query head and ten a KV head, so that splits are combined
IN_PLACE_OF = {  # functions with inline PTX
    "uint4 load_nc16(const void* p)": "return *(const uint4*)p;",
    "float load_nc4(const void* p)": "return *(const float*)p;",
    "float4 load_cg4(const float* p)": "return *(const float4*)p;",
    "float load_cg(const float* p)": "return *p;",
    "uint4 load_cg16(const void* p)": "return *(const uint4*)p;",
    "void publish(u32* to, u32 word)": "*to = word;",
    "void publish(u64* to, float v, u32 epoch)": "*to = (u64)epoch << 32 | __float_as_uint(v);",
    "u32 load_relaxed(const u32* p)": "emulation::yield(); return *p;",
    "u32 clock_ms()": "static u32 now = 0; return now += 100;",
    "void arrive(const SingleArgs& s)": "__syncthreads(); if (threadIdx.x == 0) ++*s.arrivals;",
    "uint4 poll(const void* p)": "emulation::yield(); return *(const uint4*)p;",
    "u32 shared_address(const void* p)": "return 0;",
    "float fp16(u16 v)": "return ldexpf(v & 31744 ? 1024 + (v & 1023) : v & 1023, max(v >> 10 & 31, 1) - 25);",
    "int dp2a_low(u32 x, u32 w, int c)": "return emulation::dp2a(x, w, c);",
    "int dp2a_high(u32 x, u32 w, int c)": "return emulation::dp2a(x, w >> 16, c);",
}


def options(config, weights="bf16"):
    """Return tiles so small that every pipeline wraps around."""
    ours = {"TILE_BYTES": {"bf16": 256, "int8": 512, "q8_0": 544, "int4": 272}[weights], "PREFETCH": 3, "STAGES": 5}
    kept = [d for d in single.defines(config, BLOCKS, 99 << 10, weights) if d[2:].partition("=")[0] not in ours]
    return [*kept, *(f"-D{name}={value}" for name, value in ours.items())]


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize(
    ("shape", "weights"),
    [("v3", "bf16"), ("v2", "bf16"), ("embedded", "bf16"), ("v3", "int8"), ("v3", "q8_0"), ("v3", "int4")],
)
@torch.inference_mode()
def test_the_kernel_equals_its_twin(emulate, narrow, shape, weights):
    talker = narrow(shape, CONTEXT, "" if weights == "bf16" else weights)
    given = options(talker.config, weights)
    run = emulate(single.SOURCE, "single_step", "SingleArgs", single.THREADS, given, IN_PLACE_OF)
    last = talker.config.heads - 1
    aligned = (0, 0), (1, 0), (1, 2), (1, last)
    twin, ours = (DecodeState(talker.config, 1, CONTEXT, CPU, torch.bfloat16, aligned) for _ in range(2))
    g = torch.Generator().manual_seed(1)
    for name in ("keys", "values"):
        getattr(twin.cache, name).normal_(generator=g)
        getattr(ours.cache, name).copy_(getattr(twin.cache, name))
    scratch = single.SingleKernel.make_scratch(talker.config, 1, CONTEXT, CPU)
    layers = single.layer_table(talker, ours)
    step = single.arguments(talker, ours, scratch, layers)
    for seed, at in enumerate(
        (200, CONTEXT - 1)
    ):  # short: blocks of its own for each query head; long: for each KV head
        x = torch.randn(1, talker.config.hidden, generator=g)
        for state in (twin, ours):
            state.work.x.copy_(x)
            state.cache.prompt_length.fill_(at)
            state.cache.seek(torch.zeros(1, dtype=torch.int64))
        talker.decode(twin)
        ours.logits.fill_(float("nan"))
        run(step, BLOCKS, seed)
        assert relative(ours.logits, twin.logits) < 2e-2, at
        assert relative(ours.cache.keys, twin.cache.keys) < 1e-3
        assert relative(ours.cache.values, twin.cache.values) < 1e-3
        written = twin.cache.queries.any(-1)
        assert written.any(-1).all() and torch.equal(written, ours.cache.queries.any(-1)), "and nothing else"
        assert relative(ours.cache.queries, twin.cache.queries) < 2e-2
    assert int(scratch["epoch"]) == 2 * talker.config.layers * 5


@pytest.mark.parametrize("shape", ["v3", "v2"])
@torch.inference_mode()
def test_every_exchange_passes_on_cuda_s_nan(emulate, narrow, shape):
    """A CPU's own NaN has other bits, so CUDA's is planted in the norms' constant."""
    talker = narrow(shape, CONTEXT)
    planted = [d for d in options(talker.config) if not d.startswith("-DEPS")] + ["-DEPS=__uint_as_float(0x7fffffffu)"]
    run = emulate(single.SOURCE, "single_step", "SingleArgs", single.THREADS, planted, IN_PLACE_OF)
    state = DecodeState(talker.config, 1, CONTEXT, CPU, torch.bfloat16)
    state.work.x.normal_(generator=torch.Generator().manual_seed(1))
    state.cache.position.fill_(200)
    scratch = single.SingleKernel.make_scratch(talker.config, 1, CONTEXT, CPU)
    layers = single.layer_table(talker, state)
    run(single.arguments(talker, state, scratch, layers), BLOCKS)
    assert state.logits.isnan().all()
    assert state.cache.keys[..., 200, :].isnan().all() and state.cache.values[..., 200, :].isnan().all()
    for name in ("x", "qkv", "attended", "act"):
        assert (scratch[name] & ~0xFF).view(torch.float32).isnan().all(), name


@pytest.mark.parametrize("missing", ["act", "partial"])
@torch.inference_mode()
def test_a_launch_ends_if_a_value_never_arrives(emulate, narrow, missing):
    """Some blocks publish nothing of a kind in the second layer, where epochs begin at 5."""
    talker = narrow("v3", CONTEXT)
    source = gpu_test().withheld(read_source(single.SOURCE), missing, "epoch >= 5")
    impatient = [d for d in options(talker.config) if not d.startswith("-DPOLLS_PER_CHECK")] + ["-DPOLLS_PER_CHECK=2"]
    run = emulate(source, "single_step", "SingleArgs", single.THREADS, impatient, IN_PLACE_OF)
    state = DecodeState(talker.config, 1, CONTEXT, CPU, torch.bfloat16)
    state.work.x.normal_(generator=torch.Generator().manual_seed(1))
    state.cache.position.fill_(600)
    scratch = single.SingleKernel.make_scratch(talker.config, 1, CONTEXT, CPU)
    layers = single.layer_table(talker, state)
    step = single.arguments(talker, state, scratch, layers)
    run(step, BLOCKS)
    assert int(state.work.stalled) != 0
    state.logits.fill_(7.0)
    run(step, BLOCKS)  # one that was queued behind it
    assert bool((state.logits == 7.0).all())


def gpu_test():
    spec = importlib.util.spec_from_file_location("gpu_test_single", GPU_TEST)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
