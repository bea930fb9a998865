"""The talker's decode pass of one row as one cooperative CUDA kernel (single.cu). Its torch twin is Talker.decode."""

from __future__ import annotations

import ctypes
import itertools
import pathlib

import torch

from ...cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source, shared_limit

THREADS = 512
WARPS = THREADS // 32
MAX_SPLITS = 32
SHARED_ROOM = 44 << 10  # bytes of a block's shared memory beside the rings; the kernel checks it against what it has
SLOTS = 2  # pieces a warp has under way; with more, what blocks hand to each other queues behind them
STOCK = 128 << 10  # bytes of a block that an idle one may have under way, where it has the room
_POINTERS = (
    "layers x_in head norm cos sin keys values position logits x qkv partial attended act rounds arrivals"
).split()


class _SingleArgs(ctypes.Structure):
    """As `SingleArgs` in single.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("layer_stride", ctypes.c_longlong),
        ("layer_count", ctypes.c_int),
        ("slots", ctypes.c_int),
    ]


def source() -> str:
    return read_source(pathlib.Path(__file__).with_name("single.cu"))


def ring(config, shared: int) -> tuple[int, int, int]:
    """(weights a piece, pieces under way, slots a warp) of the rings that fit into `shared` bytes of a block.

    Raises KernelUnavailable.
    """
    room = (shared - SHARED_ROOM) // (2 * WARPS)
    stock = min(room, STOCK // (2 * WARPS))
    for under_way, parts in itertools.product((SLOTS, 1), (2, 4, 8)):
        piece = config.hidden // parts
        if piece * under_way <= room:
            return piece, under_way, max(under_way, stock // piece)
    raise KernelUnavailable("the GPU's multiprocessors have too little shared memory")


def ring_bytes(config, shared: int) -> int:
    """Dynamic shared memory of a block."""
    piece, _, slots = ring(config, shared)
    return WARPS * slots * piece * 2


def defines(config, blocks: int, shared: int) -> tuple[str, ...]:
    """The widths as compiler options, for a grid of that many blocks with that many bytes of shared memory each."""
    piece, under_way, slots = ring(config, shared)
    values = {
        "BLOCKS": blocks,
        "PIECE": piece,
        "SLOTS": under_way,
        "RING": slots,
        "SHARED_ROOM": SHARED_ROOM,
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "INTER": config.intermediate,
        "CODES": config.codebooks * config.code_vocab,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(not config.is_v2),
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
    """state.work.x -> cache and state.logits, one row. Raises KernelUnavailable where the kernel cannot be had.

    Allocates its scratch when made; `run` allocates nothing and may be captured.
    """

    name = "CUDA kernel for one row"

    def __init__(self, talker, state):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason or state.batch != 1:
            raise KernelUnavailable(reason or "it serves one row")
        major, minor = torch.cuda.get_device_capability(device)
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        limit = shared_limit()
        self._shared = ring_bytes(config, limit)
        self._module = Module(compile_cubin(source(), f"{major}{minor}", defines(config, self._blocks, limit)))
        self._function = self._module.function("single_step", self._shared)
        self.scratch = self.make_scratch(config, device)
        self._layers = layer_table(talker, device)
        self._argument = arguments(talker, state, self.scratch, self._layers)
        self._try(state)

    def _try(self, state):
        """One launch on a state that holds no row yet: a driver that refuses it does so here, not in the first step."""
        state.work.x.zero_()
        try:
            self.run()
        except KernelUnavailable:
            self.close()
            raise

    @staticmethod
    def make_scratch(config, device) -> dict[str, torch.Tensor]:
        """What the kernel's blocks hand to each other, zeroed: no round has been yet."""
        words = {
            "x": config.hidden,
            "qkv": (config.heads + 2 * config.kv_heads) * config.head_dim,
            "partial": 2 * config.heads * MAX_SPLITS * (config.head_dim + 2),
            "attended": config.heads * config.head_dim,
            "act": config.intermediate,
            "rounds": 1,
            "arrivals": 1,
        }
        return {name: torch.zeros(size, device=device, dtype=torch.int32) for name, size in words.items()}

    def run(self):
        launch(self._function, self._blocks, THREADS, self._argument, cooperative=True, shared=self._shared)

    def close(self):
        """Unloads the code; scratch goes with the object."""
        self._module.close()


def layer_table(talker, device) -> torch.Tensor:
    """Addresses of every layer's weights, [layers, 7] int64."""
    rows = []
    for layer in talker.layers:
        expert = layer.code
        tensors = (expert.attn_norm, layer.qkv, layer.qk_norm, layer.out, expert.mlp_norm, expert.gate_up, expert.down)
        rows.append([0 if tensor is None else tensor.data_ptr() for tensor in tensors])
    return torch.tensor(rows, dtype=torch.int64, device=device)


def arguments(talker, state, scratch: dict, layers: torch.Tensor) -> ctypes.Structure:
    """The kernel's argument; all these tensors must outlive it."""
    return _SingleArgs(
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
        layers=layers.data_ptr(),
        x_in=state.work.x.data_ptr(),
        head=talker.head_codes.data_ptr(),
        norm=talker.norm.data_ptr(),
        cos=talker.cos.data_ptr(),
        sin=talker.sin.data_ptr(),
        keys=state.keys.data_ptr(),
        values=state.values.data_ptr(),
        position=state.position.data_ptr(),
        logits=state.logits.data_ptr(),
        layer_stride=state.keys.stride(0),
        layer_count=talker.config.layers,
        slots=state.context,
    )
