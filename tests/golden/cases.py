"""The golden runs: their texts, models and stored results.

A run depends only on this file, the engine and the random weights of `write_tiny` and `real_shapes.write`. Sampling is
spelled out, so that a change of defaults changes no code here.
"""

from __future__ import annotations

import hashlib
import pathlib
import platform

import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, SamplingParams, Voice
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests import real_shapes

HERE = pathlib.Path(__file__).parent
CPU_FILE, GPU_FILE = HERE / "cpu.safetensors", HERE / "gpu.safetensors"
FAMILIES = ("v3", "v2", "v2-boson", "embedded")
TEXTS = {
    "zero-shot": "The kettle is on, and nobody is in a hurry.",
    "cloned": "These are words that the clip never said.",
    "long": "The first sentence is short. The second one says a little more than that. And the third one ends it.",
}
PARAMS = {"seed": 7, "temperature": 1.0, "top_p": 0.95, "top_k": 50, "retries": 0}
ROWS = (1, 2, 8, 64, 128)
LINES = 70  # more than 64, so that 64 rows are refilled, and 128 need twice the warps
BATCH_TEXT = " ".join(f"This is sentence number {number} of seventy." for number in range(1, LINES + 1))


def a_voice(frames: int = 40) -> Voice:
    """Return a voice of random codes: any will do, as long as it stays the same."""
    codes = torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(3))
    return Voice(codes, "What the clip says.", "golden")


def a_clip(seconds: float, rate: int) -> torch.Tensor:
    """Return a clip [S] with events at every time and pitch, the same on every machine."""
    time = torch.arange(int(seconds * rate), dtype=torch.float64) / rate
    sweep = torch.sin(2 * torch.pi * (150 + 400 * time) * time) * (0.6 + 0.4 * torch.sin(2 * torch.pi * 3 * time))
    return (0.3 * sweep + 0.05 * torch.sin(2 * torch.pi * 3000 * time)).to(torch.float32)


def folder_of(family: str, made: pathlib.Path) -> pathlib.Path:
    return EMBEDDED if family == "embedded" else write_tiny(made / family, family)


def cpu_runs(family: str, folder: pathlib.Path):
    """Yield (name of the run, codes [T, K] int64, wav [S] float32 or None) on the CPU in fp32."""
    config = EngineConfig(model=str(folder), device="cpu", dtype="fp32", context=1024, runner="eager")
    most = 220 if family == "embedded" else 48
    with Engine(config) as engine:
        for kind, text in TEXTS.items():
            params = SamplingParams(**PARAMS, max_frames=most, chunk_seconds=2.5 if kind == "long" else 30.0)
            speech = engine.speak(text, a_voice() if kind == "cloned" else None, params)
            yield f"{family}/{kind}", speech.codes, speech.wav
        for rate in (SAMPLE_RATE, 22_050, 44_100):
            voice = engine.encode_voice(a_clip(2.02, rate), rate)
            yield f"{family}/encoded at {rate} Hz", voice.codes, None


def gpu_runs(family: str, folder: pathlib.Path):
    """Yield (name of the run, codes [T, K] int64) of a narration on the GPU in bf16, at each number of rows."""
    for rows in ROWS:
        config = EngineConfig(model=str(folder), device="cuda:0", dtype="bf16", context=1024, batch=rows)
        params = SamplingParams(**PARAMS, max_frames=40, chunk_seconds=4.0)
        with Engine(config) as engine:
            speech = engine.speak(BATCH_TEXT, a_voice(), params)
        assert speech.chunks == LINES
        yield f"{family}/{rows} rows", speech.codes


def gpu_folder(family: str, made: pathlib.Path) -> pathlib.Path:
    """Return the embedded checkpoint, or two layers of the published widths."""
    if family == "embedded":
        return EMBEDDED
    return real_shapes.write(made / family, family, layers=2, device="cpu")


def digest(wav: torch.Tensor) -> str:
    return hashlib.sha256(wav.contiguous().numpy().tobytes()).hexdigest()


def environment() -> str:
    """Return what decides a waveform's last bits: torch, and the CPU's instructions and model."""
    version = torch.__version__.partition("+")[0]
    return f"torch {version}, {platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {_cpu()}"


def _cpu() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor()
    lines = (line.partition(":") for line in info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    names = ("vendor_id", "cpu family", "model", "stepping", "cache size", "CPU implementer", "CPU part")
    return " ".join(found[name] for name in names if name in found)
