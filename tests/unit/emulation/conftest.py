"""The kernels' own sources compiled for the CPU, every CUDA thread a fiber. Needs g++ and Linux, not a GPU.

Functions with inline PTX are replaced by plain C++, and the code paths are those of compute capability 7.5. Anything
specific to the hardware or to newer instructions is not tested here.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from higgs_tts.engine.checkpoint.talker_layout import make_plan
from higgs_tts.engine.cuda.nvrtc import read_source
from higgs_tts.engine.talker import build_talker
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.tests.kept import KEPT
from higgs_tts.tests.quantized import quantize

HERE = pathlib.Path(__file__).parent
SHARED = re.compile(r"(extern )?__shared__ (?:__align__\(\d+\) )?([\w ]+) (\w+)(\[[^\]]*\])?;")


def pytest_collection_modifyitems(items):
    if sys.platform == "linux" and shutil.which("g++"):
        return
    for item in items:
        if HERE in pathlib.Path(item.path).parents:
            item.add_marker(pytest.mark.skip(reason="no g++ on Linux here to emulate kernels with"))


def translated(source: str, in_place_of: dict[str, str]) -> str:
    for signature, body in in_place_of.items():
        function = re.compile(re.escape(signature) + r" \{(?:(?:  //[^\n]*)?\n.*?\n\}| [^\n]*\})\n", re.DOTALL)
        source, count = function.subn(lambda _, new=f"{signature} {{ {body} }}\n": new, source)
        assert count == 1, signature
    places = iter(range(0, 1 << 18, 1 << 16))

    def shared(found):
        outside, kind, name, size = found.groups()
        at = f"emulation::block().shared({next(places)})"
        if outside:
            return f"{kind}* {name} = ({kind}*){at};"
        return f"{kind} (&{name}){size or ''} = *({kind} (*){size or ''}){at};"

    source = SHARED.sub(shared, source)
    return (HERE / "cuda.h").read_text() + source.replace('extern "C" __global__ void', "static void")


HEADS = {"v3": (8, 2), "v2": (6, 2), "embedded": (4, 1)}  # of queries, and of keys and values


def narrow_talker(name: str, context: int, weights: str = ""):
    """Two layers with heads of the published width, which the kernels require; bf16, one codebook."""
    family, (heads, kv_heads) = "v2" if name == "v2" else "v3", HEADS[name]
    config = ModelConfig(
        family=family,
        layout=family,
        hidden=512,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
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
    quantize(tensors, weights)
    return build_talker(config, tensors, context)


@pytest.fixture
def narrow():
    return narrow_talker


@functools.cache
def compiler_version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def compiled(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """Load the library of C++ code. It is compiled once for the same code, options and compiler, and kept."""
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off"]
    command += options
    digest = hashlib.sha256("\0".join([code, *command, compiler_version()]).encode()).hexdigest()
    library = KEPT / "emulation" / f"{digest}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        own = library.with_suffix(f".{os.getpid()}")  # another process may compile the same
        command += ["-x", "c++", "-o", str(own), "-"]
        done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
        own.replace(library)
    return ctypes.CDLL(str(library))


@pytest.fixture
def emulate():
    """A kernel's source, or its path -> run(argument, grid, seed, at_once), which asserts that its threads
    terminate. at_once: blocks that run together where none waits for another; 0 is all."""

    def build(source, kernel: str, argument: str, threads: int, options, in_place_of=None):
        if isinstance(source, pathlib.Path):
            source = read_source(source)
        code = translated(source, in_place_of or {}) + (HERE / "run.h").read_text()
        given = f"-DKERNEL={kernel}", f"-DARGUMENT={argument}", f"-DBLOCK_THREADS={threads}"
        library = compiled(code, (*given, *options))

        def run(structure, grid: int, seed: int = 0, at_once: int = 0):
            assert library.run(ctypes.byref(structure), grid, seed, at_once) == 0, "the threads deadlock"

        return run

    return build
