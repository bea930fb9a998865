"""The kernels of prompts against the torch twin. Tensor cores are replaced as on Turing."""

import math
import types

import pytest
import torch
from higgs_tts.engine.core.codes import BOC
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.cuda import kernel
from higgs_tts.engine.decode.fill import Fill, Piece, pack
from higgs_tts.engine.decode.kernels import prompt as prompt_module
from higgs_tts.engine.decode.kernels.matrices import split_scratch, weights_of
from higgs_tts.engine.decode.state import DecodeState

CONTEXT = 160


def with_all(mine: str, work: str) -> str:
    """C++ that does `work` with the addresses of `mine` in `all` the lanes of the warp."""
    take = f"[&](auto all, int lane) {{ {work} return all[0]; }}"
    return f"emulation::exchange((u64){mine}, {take}); __syncwarp();"


def matrices(one: str, other: str) -> str:
    """Four matrices, of which each lane has two values: (row, column) of both."""
    values = " | (unsigned)".join(
        f"((const u16*)all[i * 8 + {row}])[{column}]{shift}"
        for (row, column), shift in ((one.split(", "), ""), (other.split(", "), " << 16"))
    )
    work = f"for (int i = 0; i < 4; ++i) to[i] = {values};"
    return f"unsigned to[4]; {with_all('row', work)} return make_uint4(to[0], to[1], to[2], to[3]);"


MULTIPLY = "const u32 mine[6] = {a0, a1, a2, a3, b0, b1}; " + with_all(
    "mine",
    """for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 8; ++i) {
        const u32 a = ((const u32*)all[(lane & ~3) + k])[i % 4];
        const u32 b = ((const u32*)all[(lane & 3) * 8 + i / 4 * 4 + k])[4 + i % 4 / 2];
        c[i % 2 * 2 + i / 4] += low(a) * low(b) + high(a) * high(b);
      }""",
)
IN_PLACE_OF = {  # functions with inline PTX, and one that would exchange 64 values
    "uint4 load_nc16(const void* p)": "return *(const uint4*)p;",
    "float load_nc4(const void* p)": "return *(const float*)p;",
    "float4 load_cg4(const float* p)": "return *(const float4*)p;",
    "float load_cg(const float* p)": "return *p;",
    "uint4 load_cg16(const void* p)": "return *(const uint4*)p;",
    "uint4 load_matrices(const u16* row)": matrices("lane / 4, lane % 4 * 2", "lane / 4, lane % 4 * 2 + 1"),
    "uint4 load_transposed(const u16* row)": matrices("lane % 4 * 2, lane / 4", "lane % 4 * 2 + 1, lane / 4"),
    "void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)": MULTIPLY,
}
IN_QUANTISED_PLACE_OF = IN_PLACE_OF | {
    "float fp16(u16 v)": "return ldexpf(v & 31744 ? 1024 + (v & 1023) : v & 1023, max(v >> 10 & 31, 1) - 25);",
    "int dp2a_low(u32 x, u32 w, int c)": "return emulation::dp2a(x, w, c);",
    "int dp2a_high(u32 x, u32 w, int c)": "return emulation::dp2a(x, w >> 16, c);",
}


@pytest.fixture
def prompt_kernel(emulate, monkeypatch):
    """PromptKernel whose kernels are emulated."""

    def make(talker):
        monkeypatch.setattr(prompt_module, "SIZES", (64,))
        config, weights = talker.config, talker.layers[0].qkv.format
        limits = kernel.Limits("75", 2, 99 << 10)
        kinds = {
            "embed_places": ("EmbedArgs", config.hidden // 8),
            "add_norm": ("AddNormArgs", config.hidden // 8),
            "norm_ends": ("AddNormArgs", config.hidden // 8),
            "place_logits": ("LogitsArgs", 256),
            "place_qkv": ("PlaceArgs", 256),
            "attend": ("AttendArgs", config.heads // config.kv_heads * 32),
            "swiglu": ("SwigluArgs", 256),
        } | ({} if weights == "bf16" else {"widen": ("WidenArgs", 256)})
        in_place_of = IN_PLACE_OF if weights == "bf16" else IN_QUANTISED_PLACE_OF
        options = prompt_module.defines(config, weights)
        runs = {
            name: emulate(prompt_module.SOURCE, name, argument, threads, options, in_place_of)
            for name, (argument, threads) in kinds.items()
        }

        def launch(name, grid, block, argument):
            assert block == kinds[name][1]
            runs[name](argument, grid, at_once=4)

        module = types.SimpleNamespace(function=lambda name, shared=0: name, close=lambda: None)
        for owner, name, value in (
            (prompt_module, "unfit", lambda *args: None),
            (kernel.Limits, "of", lambda device: limits),
            (kernel, "compile_cubin", lambda *args: b""),
            (kernel, "Module", lambda code: module),
            (prompt_module, "launch", launch),
            (torch.cuda, "current_stream", lambda: types.SimpleNamespace(synchronize=lambda: None)),
        ):
            monkeypatch.setattr(owner, name, value)
        return prompt_module.PromptKernel(talker)

    return make


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def prompt_of(config, seed, text, frames, tail):
    """Text, a clip's codes, text again; v2's ends with a column of codes."""
    g = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, 1024, (frames, config.codebooks), generator=g)
    ids = torch.randint(0, config.text_vocab, (text + frames + tail,), generator=g).tolist()
    audio = ((text, columns),) if frames else ()
    if config.family == "v2":
        audio, ids = (*audio, (len(ids), torch.full((1, config.codebooks), BOC))), [*ids, 0]
    return Sequence(ids, audio)


def fill(talker, kernels, state, pieces):
    """Runs the pieces as one fill."""
    ((size, held),) = pack(state.config, pieces, prompt_module.Sharing.EQUAL_SIZES)
    Fill(state.config, kernels.layout, size, held).upload(talker, kernels, state)
    kernels.run(size)


@pytest.mark.parametrize("shape", ["v3", "embedded"])
def test_matrices_of_a_fill_fit_two_buffers_alternately(narrow, shape):
    talker = narrow(shape, 64, "int8")
    buffers, weights = split_scratch(talker), list(weights_of(talker, True, False))
    assert len(buffers) == 2 and len(weights) == 4 * len(talker.layers)
    assert all(2 * math.prod(weight.shape) <= len(buffers[at % 2]) for at, weight in enumerate(weights))


@pytest.mark.parametrize(
    ("shape", "weights"),
    [("v3", ""), ("v2", ""), ("embedded", ""), ("v3", "int8"), ("v3", "q8_0"), ("v3", "int4")],
)
@torch.inference_mode()
def test_the_kernels_equal_their_twin(prompt_kernel, narrow, shape, weights):
    """Two sequences share fills; one of them comes in two pieces."""
    talker = narrow(shape, CONTEXT, weights)
    config = talker.config
    twin, ours = (DecodeState(config, 3, CONTEXT, talker.device, torch.bfloat16) for _ in range(2))
    kernels = prompt_kernel(talker)
    one, two = prompt_of(config, 1, 7, 21, 12), prompt_of(config, 2, 3, 0, 20)
    for name in ("keys", "values"):
        getattr(twin.cache, name).normal_(generator=torch.Generator().manual_seed(3))
        getattr(ours.cache, name).copy_(getattr(twin.cache, name))
    for row, sequence in ((2, one), (0, two)):
        keys, values = twin.cache.keys[:, row], twin.cache.values[:, row]
        hidden = talker.fill(sequence.ids, sequence.audio, keys, values, 0, len(sequence))
        twin.logits[row] = talker.logits(hidden[-1:]).view(config.codebooks, -1)
    ours.logits.fill_(float("nan"))
    fill(talker, kernels, ours, [Piece(one, 2, 0, 19)])
    fill(talker, kernels, ours, [Piece(two, 0, 0, len(two)), Piece(one, 2, 19, len(one))])
    for row in (2, 0):
        assert relative(ours.logits[row], twin.logits[row]) < 3e-2, row
    assert ours.logits[1].isnan().all()
    assert relative(ours.cache.keys, twin.cache.keys) < 1e-2
    assert relative(ours.cache.values, twin.cache.values) < 1e-2
    kernels.close()
