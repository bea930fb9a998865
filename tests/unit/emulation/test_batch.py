"""A batch's kernels against the torch twin. Tensor cores are replaced, as on Turing or by loops."""

import struct
import types

import pytest
import torch
from higgs_tts.engine.cuda import kernel, nvrtc
from higgs_tts.engine.decode.kernels import batch as batch_module
from higgs_tts.engine.decode.kernels import batch_dense, batch_product
from higgs_tts.engine.decode.state import DecodeState

CONTEXT = 700
MATRIX = pytest.mark.matrix  # another case of a kind that is tested
POSITIONS = (5, 511, 512, 699)  # one tile, a whole split, one position more, and two splits up to the last slot
IN_PLACE_OF = {  # functions with inline PTX
    "uint4 load_nc16(const void* p)": "return *(const uint4*)p;",
    "float load_nc4(const void* p)": "return *(const float*)p;",
    "float4 load_cg4(const float* p)": "return *(const float4*)p;",
    "float load_cg(const float* p)": "return *p;",
    "uint4 load_cg16(const void* p)": "return *(const uint4*)p;",
    "u32 transpose(u32 v)": """
        const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
        const u32 a = __shfl_sync(~0u, v, column * 4 + row / 2), b = __shfl_sync(~0u, v, column * 4 + 4 + row / 2);
        return row % 2 ? a >> 16 | b & 0xffff0000u : a & 0xffffu | b << 16;""",
    "bool last_to_arrive(const Workspace& of, int splits, Shared& sh)": """
        __syncthreads();
        if (threadIdx.x == 0) sh.last = atomicInc(of.arrived, splits - 1) == splits - 1;
        __syncthreads();
        return sh.last;""",
}

IN_FORMAT_PLACE_OF = IN_PLACE_OF | {
    "u32 and_or(u32 a, u32 b, u32 c)": "return (a & b) | c;",
    "u32 and_xor(u32 a, u32 b, u32 c)": "return (a & b) ^ c;",
    "float fp16(u16 v)": "return ldexpf(v & 31744 ? 1024 + (v & 1023) : v & 1023, max(v >> 10 & 31, 1) - 25);",
    "int dp2a_low(u32 x, u32 w, int c)": "return emulation::dp2a(x, w, c);",
    "int dp2a_high(u32 x, u32 w, int c)": "return emulation::dp2a(x, w >> 16, c);",
}
TILE_VALUE = """
        const auto tile_value = [](u32 tile, int row, int k) {
          const u32 at = (tile << 4) + row * 128 + k * 2;
          return __uint_as_float((u32)*(const u16*)(emulation::block().shared(0) + (at ^ (at >> 7 & 7) << 4)) << 16);
        };"""
IN_DENSE_PLACE_OF = IN_FORMAT_PLACE_OF | {
    "u32 descriptor_of(const u8* at)": "return (u32)(at - emulation::block().shared(0)) >> 4;",
    "void wgmma(float (&sum)[COLUMNS / 2], u32 a, u32 b)": TILE_VALUE
    + """
        const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
        for (int i = 0; i < COLUMNS / 2; ++i) {
          const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
          for (int k = 0; k < 16; ++k) sum[i] += tile_value(a, row, k) * tile_value(b, column, k);
        }""",
    "void wgmma(float (&sum)[COLUMNS / 2], u32 a0, u32 a1, u32 a2, u32 a3, u32 b)": TILE_VALUE
    + """
        const int lane = threadIdx.x % 32;
        for (int k = 0; k < 16; ++k) {
          const int of = lane / 4 * 4 + k % 8 / 2;
          const u32 a[2] = {__shfl_sync(~0u, k < 8 ? a0 : a2, of), __shfl_sync(~0u, k < 8 ? a1 : a3, of)};
          for (int i = 0; i < COLUMNS / 2; ++i)
            sum[i] += __uint_as_float(a[i / 2 % 2] >> k % 2 * 16 << 16) *
                      tile_value(b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
        }""",
    "void wgmma_fence()": "",
    "void wgmma_commit()": "",
    "void wgmma_wait()": "",
    "u32 shared_address(const void* p)": "return (const u8*)p - emulation::block().shared(0);",
    "void copy_box(u32 to, const TensorMap& tensor, int x, int z, int w, u32 barrier)": """
        const struct { const u8* from; i64 sizes[4], strides[3], box[4], swizzle; }& t = *(decltype(&t))&tensor;
        const i64 count = t.box[0] * t.box[1] * t.box[2] * t.box[3], start[4] = {x, 0, z, w};
        u8* const shared = emulation::block().shared(0);
        for (i64 i = 0; i < count; ++i) {
          const u8* from = t.from;
          bool inside = true;
          for (i64 d = 0, rest = i; d < 4; rest /= t.box[d++]) {
            const i64 at = start[d] + rest % t.box[d];
            inside &= at < t.sizes[d];
            from += d ? at * t.strides[d - 1] : at;
          }
          const u32 at = to + i;
          shared[t.swizzle ? at ^ (at >> 7 & 7) << 4 : at] = inside ? *from : 0;
        }
        u64& left = *(u64*)(shared + barrier);  // its upper half is the phase
        left -= count;
        if ((u32)left == 0) left += 1ull << 32;""",
    "void init_barrier(u32 barrier)": "*(u64*)(emulation::block().shared(0) + barrier) = 0;",
    "void fence_barriers()": "",
    "void expect_bytes(u32 barrier, u32 bytes)": "*(u64*)(emulation::block().shared(0) + barrier) += bytes;",
    "void wait_for_bytes(u32 barrier, u32 parity)": """
        while ((*(u64*)(emulation::block().shared(0) + barrier) >> 32 & 1) == parity) emulation::yield();""",
    "void fence_operand(float& sum)": "",
}


def tensor_map(tensor, sizes, strides, box, swizzle=True):
    """In the layout that copy_box reads above."""
    words = (tensor.data_ptr(), *sizes, *strides, *box, swizzle)
    return nvrtc.TENSOR_MAP.from_buffer_copy(struct.pack(f"{len(words)}q", *words).ljust(128, b"\0"))


@pytest.fixture
def batch_kernel(emulate, monkeypatch):
    """BatchKernel with emulated kernels, on what it takes for a small GPU."""

    def make(talker, state, capability="80", rows=0, scratch=None):
        hopper = capability == batch_dense.CAPABILITY
        limits = kernel.Limits(capability, 2, (227 if hopper else 99) << 10)
        few = {"qkv": 2, "out": 4, "gate_up": 1, "down": 4}  # a step of each part, even if it takes 256 inputs
        for owner, name, value in (
            (batch_dense, "compiler_version", lambda: (12, 0)),
            (batch_dense, "tensor_map", tensor_map),
            (batch_dense, "PARTS", few),
            (batch_dense.DenseShape, "parts", few),
        ):
            monkeypatch.setattr(owner, name, value)
        shape = batch_module.product_shape(talker.config, talker.layers[0].qkv.format, rows or state.batch, limits)
        options = batch_module.defines(talker.config, shape, state.batch)
        kinds = {
            "add_norm": ("AddNormArgs", talker.config.hidden // 8),
            "attend": ("AttendArgs", 128),
            "swiglu": ("SwigluArgs", 256),
        }
        in_place_of = IN_PLACE_OF
        assert isinstance(shape, batch_dense.DenseShape) == hopper
        if isinstance(shape, batch_product.QuantisedShape):
            kinds |= {f"product_{tiles}": ("ProductArgs", batch_product.THREADS) for tiles in shape.depths}
            in_place_of = IN_FORMAT_PLACE_OF
        elif isinstance(shape, batch_dense.DenseShape):
            tilings = {*shape.tilings.values()}
            kinds |= {one.kernel: ("DenseArgs", one.threads) for one in tilings}
            in_place_of = IN_DENSE_PLACE_OF
        runs = {
            name: emulate(batch_module.SOURCE, name, argument, threads, options, in_place_of)
            for name, (argument, threads) in kinds.items()
        }

        def launch(name, grid, block, argument, shared=0, overlapping=False):
            assert block == kinds[name][1]
            runs[name](argument, grid)

        module = types.SimpleNamespace(function=lambda name, shared=0: name, close=lambda: None)
        stream = types.SimpleNamespace(synchronize=lambda: None)
        for owner, name, value in (
            (batch_module, "unfit", lambda *args: None),
            (kernel.Limits, "of", lambda device: limits),
            (kernel, "compile_cubin", lambda *args: b""),
            (kernel, "Module", lambda code: module),
            (batch_module, "launch", launch),
            (batch_product, "launch", launch),
            (torch.cuda, "current_stream", lambda: stream),
        ):
            monkeypatch.setattr(owner, name, value)
        return batch_module.BatchKernel(talker, state, rows, scratch)

    return make


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize(
    ("shape", "weights", "capability"),
    [
        ("v3", "", "80"),
        ("v2", "", "80"),
        ("v3", "", "90"),
        pytest.param("v2", "", "90", marks=MATRIX),
        pytest.param("embedded", "", "90", marks=MATRIX),
        ("v3", "int8", "80"),
        pytest.param("v3", "q8_0", "80", marks=MATRIX),
        pytest.param("v3", "int4", "80", marks=MATRIX),
        pytest.param("v3", "int8", "90", marks=MATRIX),
        ("v3", "int4", "90"),
    ],
)
@torch.inference_mode()
def test_the_kernels_equal_their_twin(batch_kernel, narrow, shape, weights, capability):
    talker, batch = narrow(shape, CONTEXT, weights), len(POSITIONS)
    aligned = (0, 0), (1, 0), (1, 2), (1, talker.config.heads - 1)
    size = batch, CONTEXT, talker.device, torch.bfloat16, aligned
    twin, ours = (DecodeState(talker.config, *size) for _ in range(2))
    kernels, g = batch_kernel(talker, ours, capability), torch.Generator().manual_seed(1)
    for name in ("keys", "values"):
        getattr(twin.cache, name).normal_(generator=g)
        getattr(ours.cache, name).copy_(getattr(twin.cache, name))
    for _ in range(1 if weights else 2):  # what the first leaves behind must not disturb the second
        x = torch.randn(batch, talker.config.hidden, generator=g)
        for state in (twin, ours):
            state.work.x.copy_(x)
            state.delay.done.fill_(False)
            state.cache.prompt_length.copy_(torch.tensor(POSITIONS))
            state.cache.seek(torch.zeros(batch, dtype=torch.int64))
        talker.decode(twin)
        ours.logits.fill_(float("nan"))
        kernels.run()
        for row in range(batch):
            assert relative(ours.logits[row], twin.logits[row]) < 3e-2, row
        assert relative(ours.cache.keys, twin.cache.keys) < 1e-3
        assert relative(ours.cache.values, twin.cache.values) < 1e-3
        written = twin.cache.queries.any(-1)
        assert written.any(-1).all() and torch.equal(written, ours.cache.queries.any(-1)), "and nothing else"
        assert relative(ours.cache.queries, twin.cache.queries) < 2e-2
    kernels.close()


@pytest.mark.parametrize(
    ("weights", "capability"),
    [
        ("", "90"),
        ("int4", "90"),
        *(pytest.param(*case, marks=MATRIX) for case in (("int8", "90"), ("int8", "80"), ("q8_0", "80"))),
    ],
)
@torch.inference_mode()
def test_a_row_s_bits_do_not_depend_on_the_batch_size(batch_kernel, narrow, weights, capability):
    """Products use other tiles and other blocks for more rows."""
    talker, said = narrow("v3", 64, weights), []
    for batch in (2, 17, 50, *([] if weights else [70])):
        state, g = DecodeState(talker.config, batch, 64, talker.device, torch.bfloat16), torch.Generator()
        kernels = batch_kernel(talker, state, capability)
        state.work.x.copy_(torch.randn(70, talker.config.hidden, generator=g.manual_seed(2))[:batch])
        state.cache.position.zero_()
        state.delay.done.fill_(False)
        kernels.run()
        said.append((state.logits[:2].clone(), state.cache.keys[:, :2].clone()))
        kernels.close()
        kernels.close()
        assert not vars(kernels), "an exception that keeps the kernels keeps no tensors"
    for few, *others in zip(*said, strict=True):
        assert all(torch.equal(few, many) for many in others)


@pytest.mark.parametrize(("weights", "capability"), [("", "90"), pytest.param("int8", "80", marks=MATRIX)])
@torch.inference_mode()
def test_a_step_of_fewer_rows_has_the_same_bits(batch_kernel, narrow, weights, capability):
    """In one scratch, where rows that are done have left what they had."""
    talker, said = narrow("v3", 64, weights), []
    aligned = ((0, 0), (1, talker.config.heads - 1))
    for rows in (17, 8, 16):
        state = DecodeState(talker.config, 17, 64, talker.device, torch.bfloat16, aligned)
        kernels, g = batch_kernel(talker, state, capability), torch.Generator().manual_seed(2)
        for position in range(2):
            if rows < 17 and position == 1:
                assert kernels.fewer == [8, 16]
                state.delay.done.fill_(True)  # as when runners open
                kernels = batch_kernel(talker, state, capability, rows, kernels.scratch)
            state.work.x.normal_(generator=g)
            state.cache.position.fill_(position)
            state.delay.done.copy_(torch.arange(17) >= (rows if position == 1 else 17))
            kernels.run()
        cache = state.cache.keys[:, :8], state.cache.values[:, :8], state.cache.queries[:, :8]
        said.append((state.logits[:8].clone(), *(one.clone() for one in cache)))
        kernels.close()
    assert said[0][3].any()
    for whole, *fewer in zip(*said, strict=True):
        assert all(torch.equal(whole, one) for one in fewer)


@torch.inference_mode()
def test_a_row_that_is_done_is_not_attended(batch_kernel, narrow):
    """The others' bits stay, and its cache too."""
    talker, said = narrow("v3", CONTEXT), []
    for done in (False, True):
        state = DecodeState(talker.config, len(POSITIONS), CONTEXT, talker.device, torch.bfloat16)
        kernels, g = batch_kernel(talker, state), torch.Generator().manual_seed(3)
        for tensor in (state.work.x, state.cache.keys, state.cache.values):
            tensor.normal_(generator=g)
        before = state.cache.keys.clone()
        state.cache.position.copy_(torch.tensor(POSITIONS))
        state.delay.done.fill_(False)
        state.delay.done[1] = done
        kernels.run()
        assert torch.equal(state.cache.keys[:, 1], before[:, 1]) == done
        assert state.logits.isfinite().all()
        said.append((state.logits[[0, 2, 3]], state.cache.keys[:, [0, 2, 3]], state.cache.values[:, [0, 2, 3]]))
        kernels.close()
    assert all(torch.equal(one, other) for one, other in zip(*said, strict=True))


@pytest.mark.parametrize("shape", ["v3", "v2"])
@torch.inference_mode()
def test_every_kernel_passes_on_cuda_s_nan(batch_kernel, narrow, monkeypatch, shape):
    """A CPU's own NaN has other bits, so CUDA's is planted in the norms' constant."""
    plain = batch_module.defines
    monkeypatch.setattr(
        batch_module, "defines", lambda *given: (*plain(*given), "-UEPS", "-DEPS=__uint_as_float(0x7fffffffu)")
    )
    talker, batch = narrow(shape, CONTEXT), len(POSITIONS)
    state = DecodeState(talker.config, batch, CONTEXT, talker.device, torch.bfloat16)
    state.work.x.normal_(generator=torch.Generator().manual_seed(1))
    state.cache.position.copy_(torch.tensor(POSITIONS))
    state.delay.done.fill_(False)
    kernels = batch_kernel(talker, state)
    kernels.run()
    assert state.logits.isnan().all()
    for name in ("h", "attended", "act", "x"):
        assert kernels.scratch[name][:batch].isnan().all(), name
    kernels.close()
