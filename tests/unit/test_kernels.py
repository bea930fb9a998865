"""The CUDA sources compile for every GPU generation that ComfyUI's users have. Needs NVRTC, not a GPU."""

import ctypes
import dataclasses
import hashlib
import itertools
import re

import pytest
import torch
from higgs_tts.engine.codec import snake
from higgs_tts.engine.core.config import MAX_BATCH
from higgs_tts.engine.cuda import nvrtc
from higgs_tts.engine.cuda.kernel import ANY, Limits, structure
from higgs_tts.engine.cuda.kernel import options as kernel_options
from higgs_tts.engine.decode.kernels import batch, batch_dense, prompt, sample
from higgs_tts.engine.decode.kernels.batch_product import ProductShape
from higgs_tts.engine.decode.kernels.single import (
    MAX_STAGES,
    SOURCE,
    defines,
    pipeline,
    pipeline_bytes,
    static_shared,
    unfit,
)
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.engine.talker.weight import FORMATS
from higgs_tts.tests.kept import KEPT

V3 = ModelConfig("v3", "v3", 2560, 36, 32, 8, 128, 9728, 1e-6, RopeConfig(1e6), 151936)
V2 = ModelConfig("v2", "v2", 3072, 28, 24, 8, 128, 8192, 1e-5, RopeConfig(5e5), 128256)
BLOCKS = {"75": 30, "80": 108, "86": 28, "89": 128, "90": 132, "100": 148, "120": 170}
QUANTISED = [name for name, format in FORMATS.items() if format.quantize]
SHARED_KB = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}


def some(cases, *kept):
    """Return the cases of a test. Those at other places than `kept` run in `make matrix`."""
    return [case if at in kept else pytest.param(*case, marks=pytest.mark.matrix) for at, case in enumerate(cases)]


MODELS = {"v3": V3, "v2": V2}
EVERYWHERE = list(itertools.product(MODELS, BLOCKS))  # the kept ones: v3 on 9.0, v2 on 8.6
KEPT_HERE = [EVERYWHERE.index(one) for one in (("v3", "90"), ("v2", "86"))]
WEIGHTS = list(itertools.product([("v3", "90"), ("v3", "75"), ("v2", "86")], QUANTISED))

CUDA = tuple(map(int, (torch.version.cuda or "99.0").split(".")))


def assert_compiles(source, capability, options):
    if int(capability.rstrip("a")) >= 100 and CUDA < (12, 8):
        pytest.skip(f"NVRTC {torch.version.cuda} knows no GPU of compute capability {capability}")
    assert nvrtc.compile_cubin(nvrtc.read_source(source), capability, options).startswith(b"\x7fELF")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("model", "capability"), some(EVERYWHERE, *KEPT_HERE))
def test_the_sources_compile(model, capability):
    assert_compiles(SOURCE, capability, defines(MODELS[model], BLOCKS[capability], SHARED_KB[capability] << 10))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("place", "weights"), some(WEIGHTS, 0, 1, 2))
def test_the_sources_compile_for_quantised_weights(place, weights):
    model, capability = place
    given = defines(MODELS[model], BLOCKS[capability], SHARED_KB[capability] << 10, weights)
    assert_compiles(SOURCE, capability, given)


@pytest.mark.parametrize("config", [V3, V2], ids=["v3", "v2"])
@pytest.mark.parametrize("kb", sorted(set(SHARED_KB.values())))
@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_the_pipeline_fits_beside_the_static_shared_memory(config, kb, weights):
    tile, prefetch, stages = pipeline(config, kb << 10, weights)
    format = FORMATS[weights]
    assert 1 <= prefetch <= stages and tile % 16 == 0
    assert (tile if format.quantize else format.row_bytes(config.hidden)) % (
        format.block_bytes if format.quantize else tile
    ) == 0
    assert pipeline_bytes(config, kb << 10, weights) + static_shared(weights) <= kb << 10
    assert stages == prefetch or pipeline_bytes(config, kb << 10, weights) <= MAX_STAGES


def test_a_block_with_too_little_shared_memory_is_refused():
    with pytest.raises(nvrtc.KernelUnavailable, match="too little shared memory"):
        pipeline(V2, 48 << 10)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(("model", "capability"), some(EVERYWHERE, *KEPT_HERE))
def test_the_sample_kernel_compiles(model, capability, dtype):
    assert_compiles(sample.SOURCE, capability, sample.defines(MODELS[model], dtype, 7))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("model", "capability"), some(EVERYWHERE, *KEPT_HERE))
def test_the_batch_kernels_compile(model, capability):
    assert_compiles(batch.SOURCE, capability, batch.defines(MODELS[model], ProductShape(), 64))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("config", "weights", "rows"),
    some(
        [
            (V3, "bf16", 2),
            (V3, "bf16", 64),
            (V2, "bf16", 64),
            (V3, "bf16", 128),
            (V3, "int8", 8),
            (V3, "int8", 9),
            (V3, "int8", 64),
            (V3, "int4", 8),
            (V2, "int4", 33),
            (V3, "int4", 64),
        ],
        *(1, 3, 6, 9),
    ),
)
def test_the_compiler_does_not_spoil_hopper_s_products(monkeypatch, caplog, config, weights, rows):
    """ptxas runs wgmma's instructions one by one if, say, sums are in local memory, and says so."""
    if nvrtc.compiler_version() < batch_dense.MIN_COMPILER:
        pytest.skip("this NVRTC does not know them")
    shape = batch.product_shape(config, weights, rows, Limits("90", 132, 227 << 10))
    options = (*batch.defines(config, shape, rows), "--ptxas-options=-v")
    said = compiler_log(monkeypatch, caplog, batch.SOURCE, shape.target, options)
    frames = dict(re.findall(r"Function properties for ((?:product|gated)_\d+)\D+(\d+) bytes stack frame", said))
    assert frames == {one.kernel: "0" for one in shape.tilings.values()}
    assert "serialized" not in said


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("config", "capability", "rows", "weights"),
    some(
        [
            (V3, "80", 2, "int4"),
            (V2, "86", 64, "int8"),
            (V3, "89", 33, "int4"),
            (V3, "120", 9, "int8"),
            (V3, "90", 64, "q8_0"),
        ],
        *(0, 1, 4),
    ),
    ids=["80", "86", "89", "120", "90 q8_0"],
)
def test_the_batch_kernels_compile_for_quantised_weights(config, capability, rows, weights):
    limits = Limits(capability, BLOCKS[capability], SHARED_KB[capability] << 10)
    shape = batch.product_shape(config, weights, rows, limits)
    assert_compiles(batch.SOURCE, capability, batch.defines(config, shape, rows))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("model", "capability"), some(EVERYWHERE, *KEPT_HERE))
def test_the_prompt_kernels_compile(model, capability):
    assert_compiles(prompt.SOURCE, capability, prompt.defines(MODELS[model], "bf16"))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("place", "weights"), some(WEIGHTS, 0, 1, 2))
def test_the_prompt_kernels_compile_for_quantised_weights(place, weights):
    model, capability = place
    assert_compiles(prompt.SOURCE, capability, prompt.defines(MODELS[model], weights))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("capability",), some([(one,) for one in BLOCKS], list(BLOCKS).index("90")))
def test_the_activation_s_kernel_compiles(capability):
    assert_compiles(snake.SOURCE, capability, kernel_options({}, snake.SnakeArgs))


@pytest.mark.parametrize("weights", QUANTISED)
@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 32, 64])
@pytest.mark.parametrize("capability", BLOCKS)
def test_products_of_quantised_weights_fit_the_multiprocessor(monkeypatch, capability, rows, weights):
    monkeypatch.setattr(batch_dense, "compiler_version", lambda: (11, 8))  # without Hopper's products
    limits = Limits(capability, BLOCKS[capability], SHARED_KB[capability] << 10)
    shape = batch.product_shape(V3, weights, rows, limits)
    assert shape.is_ours == (capability != "75")  # its tensor cores know no bf16
    if shape.is_ours:
        assert min(shape.depths.values()) >= 2 and 8 * shape.row_tiles >= rows
        assert shape.shared <= limits.shared


@pytest.mark.parametrize("multiprocessors", [78, 114, 132])
@pytest.mark.parametrize(
    ("weights", "step", "stored", "rows"),
    [
        (*weights, rows)
        for *weights, most in (("bf16", 64, 128, 128), ("int8", 128, 128, 64), ("int4", 256, 144, 64))
        for rows in (2, 8, 9, 16, 17, 32, 64, 65, 128)
        if rows <= most
    ],
)
def test_hopper_s_products_fit_the_multiprocessor(monkeypatch, multiprocessors, weights, step, stored, rows):
    """The source's layout: inputs of all stages, then their weights and barriers."""
    monkeypatch.setattr(batch_dense, "compiler_version", lambda: (12, 0))
    shape = batch.product_shape(V3, weights, rows, Limits("90", multiprocessors, 227 << 10))
    assert shape.tilings.keys() == shape.parts.keys() and 8 * shape.row_tiles >= rows
    assert shape.most_rows == (128 if weights == "bf16" else 64)
    for one in {*shape.tilings.values()}:
        inputs = one.stages * 8 * shape.row_tiles * 2 * step
        used = inputs + one.stages * (one.features * stored + 8)
        assert one.stages > 2 and used <= shape.shared(one) <= 227 << 10
        tiles = -(-one.features // 64)
        assert one.warpgroups == (1 if weights == "bf16" else tiles)
        if weights == "bf16":  # the last instruction reads 64 features
            assert inputs + ((one.stages - 1) * one.features + tiles * 64) * 128 <= shape.shared(one)


def test_torch_multiplies_where_our_products_cannot_run(monkeypatch):
    hopper = Limits("90", 132, 227 << 10)
    for known, weights, limits in (
        ((11, 8), "bf16", hopper),
        ((13, 0), "bf16", Limits("89", 128, 99 << 10)),
        ((13, 0), "bf16", Limits("120", 170, 99 << 10)),
        ((13, 0), "bf16", Limits("90", 132, 32 << 10)),
        ((13, 0), "int8", Limits("90", 132, 48 << 10)),
    ):
        monkeypatch.setattr(batch_dense, "compiler_version", lambda known=known: known)
        assert not batch.product_shape(V3, weights, 64, limits).is_ours, (known, weights, limits)


@pytest.mark.parametrize("context", [1, 511, 512, 513, 700, 8192, 16384, 16385, 30000, 33000])
def test_a_row_s_splits_stay_within_their_room(context):
    """The sizes that the kernel chooses: doubled while there are too many splits."""
    most = 0
    for at in range(context):
        size = batch.MIN_SPLIT
        while at // size >= batch.MAX_SPLITS:
            size *= 2
        most = max(most, at // size + 1)
    assert most == batch.max_splits(context)


def test_a_batch_stays_within_its_kernels_limit():
    assert MAX_BATCH <= batch_dense.MAX_ROWS


def compiler_log(monkeypatch, caplog, path, capability, options):
    """Return what the compiler says, of this source and these options once per machine."""
    source = nvrtc.read_source(path)
    made_of = "\0".join([source, capability, *options, torch.__version__, repr(nvrtc.compiler_version())])
    kept = KEPT / "compiler" / f"{hashlib.sha256(made_of.encode()).hexdigest()}.txt"
    if not kept.is_file():
        monkeypatch.setattr(nvrtc.cubin_cache, "load", lambda key: None)
        nvrtc.compile_cubin.cache_clear()
        with caplog.at_level("DEBUG", "higgs_tts"):
            nvrtc.compile_cubin(source, capability, options)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(caplog.text, encoding="utf-8")
    return kept.read_text(encoding="utf-8")


@pytest.mark.usefixtures("compiler")
def test_what_the_compiler_says_of_wgmma_is_logged(monkeypatch, caplog, tmp_path):
    """Here it must wait, because a sum is read."""
    if nvrtc.compiler_version() < batch_dense.MIN_COMPILER:
        pytest.skip("this NVRTC does not know wgmma")
    names = ",".join(f"%{i}" for i in range(4))
    sums = ",".join(f'"+f"(sum[{i}])' for i in range(4))
    (tmp_path / "late.cu").write_text(f"""
        extern "C" __global__ void late(float* out, int count) {{
          float sum[4] = {{}};
          for (int i = 0; i < count; ++i) {{
            asm volatile("wgmma.fence.sync.aligned;");
            asm volatile("{{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                         "{{{names}}}, %4, %4, p, 1, 1, 0, 0;}}" : {sums} : "l"(1ll));
            sum[0] *= 2;
            asm volatile("wgmma.commit_group.sync.aligned;");
          }}
          out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
        }}""")
    assert "serialized" in compiler_log(monkeypatch, caplog, tmp_path / "late.cu", batch_dense.TARGET, ())


@pytest.mark.usefixtures("compiler")
def test_a_source_that_does_not_compile_says_why():
    with pytest.raises(nvrtc.KernelUnavailable, match=r"(?s)compute capability 90.*nonsense"):
        nvrtc.compile_cubin("nonsense;", "90", ())


def test_unsupported_shapes_and_dtypes_are_named():
    cuda = torch.device("cuda", 0)
    assert "NVIDIA" in unfit(V3, torch.device("cpu"), torch.bfloat16)
    assert "bf16" in unfit(V3, cuda, torch.float32)
    assert unfit(dataclasses.replace(V3, head_dim=64), cuda, torch.bfloat16)


Probe = structure("Probe", values=torch.float32, any_kind=ANY, count=ctypes.c_int)


def test_an_argument_holds_addresses_and_its_size_goes_to_the_compiler():
    values, other = torch.zeros(4), torch.zeros(2, dtype=torch.int64)
    made = Probe.of(values=values, any_kind=other, count=4)
    assert (made.values, made.any_kind, made.count) == (values.data_ptr(), other.data_ptr(), 4)
    assert Probe.of(values=None, any_kind=other, count=4).values is None
    assert kernel_options({"A": 1}, Probe) == ("-DA=1", "-DSIZEOF_Probe=24")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"values": torch.zeros(4, dtype=torch.float64)}, "values is torch.float64"),
        ({"values": torch.zeros(4, 4).t()}, "values is not contiguous"),
        ({"more": 1}, "more"),
    ],
)
def test_an_argument_that_a_kernel_would_misread_is_refused(changed, told):
    with pytest.raises(TypeError, match=told):
        Probe.of(**{"values": torch.zeros(4), "any_kind": torch.zeros(1), "count": 4} | changed)
    with pytest.raises(TypeError, match="count"):
        Probe.of(values=torch.zeros(4), any_kind=None)


@pytest.mark.usefixtures("compiler")
def test_a_source_with_another_structure_does_not_compile():
    source = nvrtc.read_source(batch.SOURCE).replace("u16* act; int rows;", "u16* act; int rows, more, most;")
    with pytest.raises(nvrtc.KernelUnavailable, match=r"batch\.py fills another structure"):
        nvrtc.compile_cubin(source, "90", batch.defines(V3, ProductShape(), 64))
