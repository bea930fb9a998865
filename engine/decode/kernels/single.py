"""The talker's decode pass for one row as one persistent CUDA kernel (single.cu). Its torch twin is Talker.decode."""

from __future__ import annotations

import ctypes
import itertools
import pathlib

import torch

from ...cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source, shared_limit
from ...talker import FAMILIES
from ...talker.weight import FORMATS

THREADS = 512
WARPS = THREADS // 32
MAX_SPLITS = 32  # of the KV cache
STATIC_SHARED = 44 << 10  # bytes of shared memory besides the pipeline's; the kernel asserts that it fits
PREFETCH = 2  # tiles in flight per warp; more would delay the exchange between blocks behind weight loads
MAX_STAGES = 128 << 10  # bytes of a block's stages, which only an idle block fills
_POINTERS = (
    "layers x_in head norm cos sin keys values position logits x qkv partial attended act epoch arrivals"
).split()


class _SingleArgs(ctypes.Structure):
    """`SingleArgs` of exchange.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("layer_stride", ctypes.c_longlong),
        ("layer_count", ctypes.c_int),
        ("max_seq_len", ctypes.c_int),
    ]


def source() -> str:
    return read_source(pathlib.Path(__file__).with_name("single.cu"))


def pipeline(config, shared: int, weights: str = "bf16") -> tuple[int, int, int]:
    """(bytes of a tile, tiles in flight, stages) of a warp's pipeline, for `shared` bytes of shared memory a block.

    Raises KernelUnavailable.
    """
    room = (shared - STATIC_SHARED) // WARPS
    most = min(room, MAX_STAGES // WARPS)
    for prefetch, tiles in itertools.product((PREFETCH, 1), (2, 4, 8)):
        tile = FORMATS[weights].bytes(config.hidden // tiles)
        if tile * prefetch <= room:
            return tile, prefetch, max(prefetch, most // tile)
    raise KernelUnavailable("the GPU's multiprocessors have too little shared memory")


def pipeline_bytes(config, shared: int, weights: str = "bf16") -> int:
    """A block's dynamic shared memory."""
    tile, _, stages = pipeline(config, shared, weights)
    return WARPS * stages * tile


def defines(config, blocks: int, shared: int, weights: str = "bf16") -> tuple[str, ...]:
    """Compiler options for a grid of `blocks` with `shared` bytes of shared memory each. The head is always bf16."""
    tile, prefetch, stages = pipeline(config, shared, weights)
    values = {
        "BLOCKS": blocks,
        "FORMAT": FORMATS[weights].cuda,
        "HEAD_FORMAT": FORMATS["bf16"].cuda,
        "TILE_BYTES": tile,
        "PREFETCH": prefetch,
        "STAGES": stages,
        "STATIC_SHARED": STATIC_SHARED,
        "MAX_SPLITS": MAX_SPLITS,
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "INTER": config.intermediate,
        "CODES": config.codebooks * config.code_vocab,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(FAMILIES[config.family].qk_norm),
    }
    return tuple(f"-D{name}={value}" for name, value in values.items())


def unfit(config, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot serve this model here, or None."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    if dtype != torch.bfloat16:
        return "it computes in bf16 only"
    widths = (config.hidden, config.intermediate, config.heads * config.head_dim)
    if config.head_dim != 128 or any(width % 512 for width in widths) or config.heads // config.kv_heads > 4:
        return "the model's widths are not those of the published models"
    if torch.cuda.get_device_capability(device) < (7, 5):
        return "the GPU is older than compute capability 7.5"
    return None


class SingleKernel:
    """state.work.x -> cache and state.logits, one row. Raises KernelUnavailable if it cannot be compiled or launched.

    Allocates its scratch when constructed; `run` allocates nothing and may be captured.
    """

    name = "CUDA kernel for one row"

    def __init__(self, talker, state):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason or state.batch != 1:
            raise KernelUnavailable(reason or "it serves one row")
        major, minor = torch.cuda.get_device_capability(device)
        self.scratch = self.make_scratch(config, 1, state.max_seq_len, device)
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        limit, weights = shared_limit(), talker.layers[0].qkv.format
        self._shared = pipeline_bytes(config, limit, weights)
        options = defines(config, self._blocks, limit, weights)
        self._module = Module(compile_cubin(source(), f"{major}{minor}", options))
        self._function = self._module.function("single_step", self._shared)
        self._layers = layer_table(talker, device)
        self._argument = arguments(talker, state, self.scratch, self._layers)
        self._try(state)

    def _try(self, state):
        """A first launch, on a state without a sequence: a driver that refuses it does so here, not in a step."""
        state.work.x.zero_()
        try:
            self.run()
        except KernelUnavailable:
            self.close()
            raise

    @staticmethod
    def make_scratch(config, batch: int, max_seq_len: int, device) -> dict[str, torch.Tensor]:
        """The buffers through which blocks exchange values (exchange.cuh), zeroed: no epoch has been published yet."""
        words = {
            "x": config.hidden,
            "qkv": (config.heads + 2 * config.kv_heads) * config.head_dim,
            "partial": 2 * config.heads * MAX_SPLITS * (config.head_dim + 2),
            "attended": config.heads * config.head_dim,
            "act": config.intermediate,
            "epoch": 1,
            "arrivals": 1,
        }
        return {name: torch.zeros(size, device=device, dtype=torch.int32) for name, size in words.items()}

    def run(self):
        launch(self._function, self._blocks, THREADS, self._argument, cooperative=True, shared=self._shared)

    def tensors(self) -> list[torch.Tensor]:
        """What it has on the device of its own, its table of addresses aside."""
        return list(self.scratch.values())

    def close(self):
        """Unloads the code; the scratch is freed with the object."""
        self._module.close()


def layer_table(talker, device) -> torch.Tensor:
    """`LayerWeights` of every layer, [layers, 7] addresses."""
    table = []
    for layer in talker.layers:
        expert = layer.code
        weights = layer.qkv, layer.out, expert.gate_up, expert.down
        qkv, out, gate_up, down = (weight.data for weight in weights)
        tensors = (expert.attn_norm, qkv, layer.qk_norm, out, expert.mlp_norm, gate_up, down)
        table.append([0 if tensor is None else tensor.data_ptr() for tensor in tensors])
    return torch.tensor(table, dtype=torch.int64, device=device)


def arguments(talker, state, scratch: dict, layers: torch.Tensor) -> ctypes.Structure:
    """The kernel's argument; all these tensors must outlive it."""
    return _SingleArgs(
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
        layers=layers.data_ptr(),
        x_in=state.work.x.data_ptr(),
        head=talker.head_codes.data.data_ptr(),
        norm=talker.norm.data_ptr(),
        cos=talker.cos.data_ptr(),
        sin=talker.sin.data_ptr(),
        keys=state.cache.keys.data_ptr(),
        values=state.cache.values.data_ptr(),
        position=state.cache.position.data_ptr(),
        logits=state.logits.data_ptr(),
        layer_stride=state.cache.keys.stride(0),
        layer_count=talker.config.layers,
        max_seq_len=state.max_seq_len,
    )
