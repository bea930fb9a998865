"""The kernels' roundings of every fp32 value: to bf16, and to the words that blocks exchange (exchange.cuh)."""

import ctypes
import pathlib

import torch
from higgs_tts.engine.cuda.kernel import options
from higgs_tts.engine.cuda.nvrtc import Module, compile_cubin, launch, read_source
from higgs_tts.engine.decode.kernels import single

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "engine"

THREADS = 256
EPOCH = 0x12345678
OPTIONS = (  # what the sources need; nothing here depends on it
    *("-DHEADS=8", "-DKV_HEADS=2", "-DBLOCKS=1", "-DWARPS=16", "-DPOLLS_PER_CHECK=1024", "-DTIMEOUT_MS=1000"),
    *options({}, single.LayerWeights, single.SingleArgs),
)
PROBE = """
struct Probe { const u32* bits; u32 *packed, *words, *bf16_words; int count; u32 epoch; };
extern "C" __global__ void probe(const Probe p) {
  for (int i = blockIdx.x * BLOCK_THREADS + threadIdx.x; i < p.count; i += gridDim.x * BLOCK_THREADS) {
    const float v = __uint_as_float(p.bits[i]);
    p.packed[i] = pack(v, __uint_as_float(p.bits[p.count - 1 - i]));
    p.words[i] = ll_word(v, p.epoch);
    p.bf16_words[i] = ll_word_bf16(v, p.epoch);
  }
}
"""


class Probe(ctypes.Structure):
    """Matches the source above."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("bits", "packed", "words", "bf16_words")),
        ("count", ctypes.c_int),
        ("epoch", ctypes.c_uint),
    ]


def source() -> str:
    parts = ENGINE / "cuda" / "load.cuh", ENGINE / "decode" / "kernels" / "exchange.cuh"
    return "".join(map(read_source, parts)) + PROBE


def wrong(run, bits) -> list[str]:
    """Return the conversions that are wrong for these fp32 values, given as int32 [n]."""
    packed, words, bf16_words = made = [torch.empty_like(bits) for _ in range(3)]
    run(Probe(bits.data_ptr(), *(one.data_ptr() for one in made), len(bits), EPOCH))
    to_bf16 = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    pairs = {
        "the low half": (packed << 16, to_bf16, bits),
        "the high half": (packed & -0x10000, to_bf16.flip(0), bits.flip(0)),
        "a word": (words & -0x100, (bits + 0x80) & -0x100, bits),
        "a bf16 word": (bf16_words & -0x100, to_bf16, bits),
    }
    found = [name for name, (ours, expected, of) in pairs.items() if not as_expected(ours, expected, of)]
    return found + [
        f"the epoch of {name}"
        for name, ours in (("a word", words), ("a bf16 word", bf16_words))
        if ((ours ^ EPOCH) & 0xFF).any()
    ]


def as_expected(ours, expected, of) -> bool:
    """True if bits match wherever `of` is a number or infinite, and the result is NaN wherever it is NaN."""
    nan = of.view(torch.float32).isnan()
    return bool(((ours == expected) | nan).all() and torch.equal(ours.view(torch.float32).isnan(), nan))


def test_every_number_is_rounded_to_nearest_and_nan_stays_nan():
    major, minor = torch.cuda.get_device_capability()
    module = Module(compile_cubin(source(), f"{major}{minor}", (*OPTIONS, f"-DBLOCK_THREADS={THREADS}")))
    probe, count = module.function("probe"), 1 << 26
    for start in range(-(1 << 31), 1 << 31, count):
        bits = torch.arange(start, start + count, dtype=torch.int64, device="cuda").to(torch.int32)
        assert wrong(lambda argument: launch(probe, 4096, THREADS, argument), bits) == [], hex(start & 0xFFFFFFFF)
    torch.cuda.synchronize()
    module.close()
