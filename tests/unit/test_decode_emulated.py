"""The fused kernel's own source, run on a CPU against its torch twin. Needs g++ and Linux, not a GPU.

What only a GPU can tell is not here: inline PTX is replaced by what it stands for, and weights take the way that GPUs
without bulk copies take.
"""

import ctypes
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from higgs_tts.engine.config import ModelConfig, RopeConfig
from higgs_tts.engine.kernels import fused
from higgs_tts.engine.layouts import make_plan
from higgs_tts.engine.state import DecodeState
from higgs_tts.engine.talker import build_talker

HERE = pathlib.Path(__file__).parent / "emulation"
CPU = torch.device("cpu")
BLOCKS, CONTEXT = 10, 700  # five blocks to a key-value head, so that up to five parts of the context meet
IN_PLACE_OF = {  # what a function with inline PTX comes down to
    "uint4 stream16(const void* p)": "return *(const uint4*)p;",
    "float4 fresh4(const float* p)": "return *(const float4*)p;",
    "float fresh(const float* p)": "return *p;",
    "uint4 cached16(const void* p)": "return *(const uint4*)p;",
    "void hand(u64* to, float v, u32 round)": "*to = (u64)round << 32 | __float_as_uint(v);",
    "void hand(u32* to, float v, u32 round)": "*to = round << 16 | to_bf16(v);",
    "void arrive(const Step& s)": "__syncthreads(); if (threadIdx.x == 0) ++*s.arrivals;",
    "void wait(const Step& s, u32 round)": (
        "if (threadIdx.x == 0) while ((int)(*s.arrivals - round * BLOCKS) < 0) look_again(); __syncthreads();"
    ),
    "uint4 look(const void* p)": "look_again(); return *(const uint4*)p;",
    "u32 shared_address(const void* p)": "return 0;",
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"), reason="no g++ on Linux here to emulate the kernel with"
)


def emulated_source() -> str:
    text = fused.source()
    for signature, body in IN_PLACE_OF.items():
        function = re.compile(re.escape(signature) + r" \{(?:(?:  //[^\n]*)?\n.*?\n\}| [^\n]*\})\n", re.DOTALL)
        text, count = function.subn(lambda _, new=f"{signature} {{ {body} }}\n": new, text)
        assert count == 1, signature
    text = text.replace("__shared__ Shared sh;", "Shared& sh = *(Shared*)block().shared(0);")
    text = text.replace(
        "extern __shared__ __align__(128) unsigned char slots[];",
        "unsigned char* slots = block().shared(sizeof(Shared));",
    )
    text = text.replace('extern "C" __global__ void', "static void")
    return (HERE / "cuda.h").read_text() + text + (HERE / "run.h").read_text()


def small_talker(family):
    config = ModelConfig(
        family=family,
        layout=family,
        hidden=512,
        layers=2,
        heads=8 if family == "v3" else 6,
        kv_heads=2,
        head_dim=128,
        intermediate=1024,
        norm_eps=1e-6,
        rope=RopeConfig(1e6),
        text_vocab=10,
        codebooks=1,
    )
    plan, g = make_plan(config, [], tied=family == "v3"), torch.Generator().manual_seed(0)
    tensors = {}
    for name in plan.parts:
        shape = plan.shape(name)
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        tensors[name] = (torch.randn(shape, generator=g) * scale).to(torch.bfloat16)
    if plan.tied:
        tensors["head_codes"] = tensors["embed_codes"]
    return build_talker(config, tensors, CONTEXT)


def compiled(config, folder) -> ctypes.CDLL:
    options = [d for d in fused.defines(config, BLOCKS, 99 << 10) if not d.startswith(("-DPIECE", "-DSLOTS"))]
    options += ["-DPIECE=128", "-DSLOTS=3"]
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(emulated_source())
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", *options]
    done = subprocess.run([*command, "-o", library, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(library))


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize("family", ["v3", "v2"])
@torch.inference_mode()
def test_the_kernel_s_source_does_what_the_twin_does(tmp_path, family):
    talker = small_talker(family)
    kernel = compiled(talker.config, tmp_path)
    twin, ours = (DecodeState(talker.config, 1, CONTEXT, CPU, torch.bfloat16) for _ in range(2))
    g = torch.Generator().manual_seed(1)
    for cache in ("keys", "values"):
        getattr(twin, cache).normal_(generator=g)
        getattr(ours, cache).copy_(getattr(twin, cache))
    scratch = fused.FusedDecode.make_scratch(talker.config, CPU)
    layers = fused.layer_table(talker, CPU)
    step = fused.arguments(talker, ours, scratch, layers)
    for seed, at in enumerate((129, CONTEXT - 1)):
        x = torch.randn(1, talker.config.hidden, generator=g)
        for state in (twin, ours):
            state.work.x.copy_(x)
            state.position.fill_(at)
        torch.add(twin.slot_base, twin.position.unsqueeze(1), out=twin.slots)
        torch.gt(twin.cache_index, twin.position.view(-1, 1, 1), out=twin.unfilled)
        talker.decode(twin)
        ours.logits.fill_(float("nan"))
        assert kernel.run(ctypes.byref(step), seed) == 0, "the blocks wait for each other for good"
        assert relative(ours.logits, twin.logits) < 2e-2, at
        assert relative(ours.keys, twin.keys) < 1e-3 and relative(ours.values, twin.values) < 1e-3
    assert int(scratch["rounds"]) == 2 * talker.config.layers * 5
