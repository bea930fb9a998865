"""The kernels of a chunk of prompts against the torch twin. Tensor cores are replaced as on Turing."""

import dataclasses
import types

import pytest
import torch
from higgs_tts.engine.codes import BOC
from higgs_tts.engine.cuda import kernel
from higgs_tts.engine.decode import prompts
from higgs_tts.engine.decode.kernels import prompt as prompt_module
from higgs_tts.engine.decode.state import DecodeState
from higgs_tts.engine.sequence import Sequence

CONTEXT = 160
MATRICES = """
    const int lane = threadIdx.x % 32, first = {first}, second = {second};
    unsigned to[4];
    for (int i = 0; i < 4; ++i) {{
      const u16* one = (const u16*)__shfl_sync(~0u, (u64)row, i * 8 + first);
      const u16* other = (const u16*)__shfl_sync(~0u, (u64)row, i * 8 + second);
      to[i] = one[{one}] | (unsigned)other[{other}] << 16;
    }}
    return make_uint4(to[0], to[1], to[2], to[3]);"""
IN_PLACE_OF = {  # functions with inline PTX
    "uint4 load_nc16(const void* p)": "return *(const uint4*)p;",
    "float load_nc4(const void* p)": "return *(const float*)p;",
    "float4 load_cg4(const float* p)": "return *(const float4*)p;",
    "float load_cg(const float* p)": "return *p;",
    "uint4 load_cg16(const void* p)": "return *(const uint4*)p;",
    "uint4 load_matrices(const u16* row)": MATRICES.format(
        first="lane / 4", second="lane / 4", one="lane % 4 * 2", other="lane % 4 * 2 + 1"
    ),
    "uint4 load_transposed(const u16* row)": MATRICES.format(
        first="lane % 4 * 2", second="lane % 4 * 2 + 1", one="lane / 4", other="lane / 4"
    ),
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
            runs[name](argument, grid)

        module = types.SimpleNamespace(function=lambda name, shared=0: name, close=lambda: None)
        for owner, name, value in (
            (prompt_module, "unfit", lambda *args: None),
            (kernel.Limits, "of", lambda device: limits),
            (kernel, "compile_cubin", lambda *args: b""),
            (kernel, "Module", lambda code: module),
            (prompt_module, "launch", launch),
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


def fill(kernels, state, pieces):
    """Runs the pieces as one chunk."""
    config = state.config
    code = sum(piece.num_codes() for piece in pieces)
    text = sum(piece.stop - piece.start for piece in pieces) - code
    chunk = prompts.Chunk(config, kernels.layout, prompts.size_of(config, text, code), pieces)
    chunk.address(state.cache.keys, state.cache.values, state.logits)
    kernels.scratch["chunk"].copy_(chunk.words)
    kernels.scratch["text"][: len(chunk.ids)] = kernels._talker.embed_text[torch.tensor(chunk.ids, dtype=torch.int64)]
    kernels.run(chunk.size)
    return chunk


@pytest.mark.parametrize(
    ("shape", "weights"),
    [("v3", ""), ("v2", ""), ("embedded", ""), ("v3", "int8"), ("v3", "q8_0"), ("v3", "int4"), ("v2", "int8")],
)
@torch.inference_mode()
def test_the_kernels_do_what_the_twin_does(prompt_kernel, narrow, shape, weights):
    """Two sequences share chunks; one of them comes in two pieces."""
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
        twin.logits[row] = talker.prefill(sequence.ids, sequence.audio, keys, values).view(config.codebooks, -1)
    ours.logits.fill_(float("nan"))
    fill(kernels, ours, [prompts.Piece(one, 2, 0, 19)])
    fill(kernels, ours, [prompts.Piece(two, 0, 0, len(two)), prompts.Piece(one, 2, 19, len(one))])
    for row in (2, 0):
        assert relative(ours.logits[row], twin.logits[row]) < 3e-2, row
    assert ours.logits[1].isnan().all()
    assert relative(ours.cache.keys, twin.cache.keys) < 1e-2
    assert relative(ours.cache.values, twin.cache.values) < 1e-2
    kernels.close()
