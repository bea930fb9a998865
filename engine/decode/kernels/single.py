"""The talker's decode pass for one row as one persistent CUDA kernel (single.cu). Torch twin: Talker.decode."""

from __future__ import annotations

import ctypes
import itertools
import pathlib

import torch

from ...cuda.kernel import ANY, Arguments, CudaKernel, Limits, first_reason, options, structure
from ...cuda.nvrtc import KernelUnavailable, compile_cubin, launch
from ...talker import FAMILIES, Talker
from ...talker.config import ModelConfig
from ...talker.weight import FORMATS
from ..state import DecodeState

SOURCE = pathlib.Path(__file__).with_name("single.cu")
BF16, FP32, INT32, INT64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
THREADS = 512
WARPS = THREADS // 32
MAX_SPLITS = 32  # of the KV cache
# Tiles in flight per warp. More would delay the exchange between blocks.
PREFETCH = {"bf16": 2, "int8": 3, "q8_0": 3, "int4": 4}
TILE_BLOCKS = {"int8": 3, "q8_0": 3, "int4": 6}  # maximum blocks per tile of quantised weights
MAX_STAGES = 128 << 10  # bytes of a block's stages; only an idle block fills them
STAGES = {"int8": 3, "q8_0": 3, "int4": 4}  # maximum per warp: more are slower, even in idle blocks
POLLS_PER_CHECK = 1024  # polls of another block's value between checks of the clock
TIMEOUT_MS = 1000  # for a whole launch; Windows resets a GPU that does not respond for two seconds
_PROBE = 'extern "C" __global__ void probe() {}'

LayerWeights = structure(
    "LayerWeights",
    attn_norm=BF16,
    qkv=ANY,
    qk_norm=BF16,
    out=ANY,
    mlp_norm=BF16,
    gate_up=ANY,
    down=ANY,
    queries=BF16,
    query_heads=ctypes.c_longlong,
)
SingleArgs = structure(
    "SingleArgs",
    layers=INT64,  # [layers, 9], as in LayerWeights
    x_in=BF16,
    head=BF16,
    norm=BF16,
    cos=BF16,
    sin=BF16,
    keys=BF16,
    values=BF16,
    position=INT64,
    logits=FP32,
    x=INT32,
    qkv=INT32,
    partial=INT32,
    attended=INT32,
    act=INT32,
    epoch=INT32,
    arrivals=INT32,
    stalled=INT32,
    layer_stride=ctypes.c_longlong,
    layer_count=ctypes.c_int,
    max_seq_len=ctypes.c_int,
)


def pipeline(config: ModelConfig, shared: int, weights: str = "bf16") -> tuple[int, int, int]:
    """Return a warp's (tile bytes, tiles in flight, stages) for `shared` bytes of shared memory per block.

    Raises KernelUnavailable if shared memory is too small.
    """
    room = (shared - static_shared(weights)) // WARPS
    format = FORMATS[weights]
    if format.quantize:
        in_row = config.hidden // format.block
        tiles = [blocks * format.block_bytes for blocks in range(min(in_row, TILE_BLOCKS[weights]), 0, -1)]
    else:
        tiles = [format.row_bytes(config.hidden // parts) for parts in (2, 4, 8)]
    for prefetch, tile in itertools.product(range(PREFETCH[weights], 0, -1), tiles):
        if tile * prefetch <= room:
            stages = STAGES.get(weights, MAX_STAGES // WARPS // tile)
            return tile, prefetch, max(prefetch, min(stages, room // tile))
    raise KernelUnavailable("the GPU's multiprocessors have too little shared memory")


def static_shared(weights: str) -> int:
    """Return the bytes of shared memory besides the pipeline's. More with quantised weights, whose inputs have scales.

    The kernel asserts the number.
    """
    return (46 if FORMATS[weights].quantize else 44) << 10


def pipeline_bytes(config: ModelConfig, shared: int, weights: str = "bf16") -> int:
    """Return the bytes of dynamic shared memory per block."""
    tile, _, stages = pipeline(config, shared, weights)
    return WARPS * stages * tile


def defines(config: ModelConfig, blocks: int, shared: int, weights: str = "bf16") -> tuple[str, ...]:
    """Return compiler options for `blocks` blocks of `shared` bytes of shared memory. The head is always bf16."""
    tile, prefetch, stages = pipeline(config, shared, weights)
    values = {
        "BLOCKS": blocks,
        "FORMAT": FORMATS[weights].cuda,
        "HEAD_FORMAT": FORMATS["bf16"].cuda,
        "TILE_BYTES": tile,
        "PREFETCH": prefetch,
        "STAGES": stages,
        "WARPS": WARPS,
        "POLLS_PER_CHECK": POLLS_PER_CHECK,
        "TIMEOUT_MS": TIMEOUT_MS,
        "STATIC_SHARED": static_shared(weights),
        "MAX_SPLITS": MAX_SPLITS,
        "CODES": config.codebooks * config.code_vocab,
        **shape_of(config),
    }
    return options(values, LayerWeights, SingleArgs)


def shape_of(config: ModelConfig) -> dict[str, object]:
    """Return a talker's shape as compiler options."""
    return {
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "HEAD_DIM": config.head_dim,
        "INTER": config.intermediate,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(FAMILIES[config.family].qk_norm),
    }


def unfit(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernel cannot run this model on `device`, or None."""
    widths = (config.hidden, config.intermediate, config.heads * config.head_dim)
    strange = config.head_dim != 128 or any(width % 512 for width in widths) or config.heads // config.kv_heads > 4
    strange |= config.heads > 64
    own = {
        "it computes in bf16 only": dtype != BF16,
        "the model's widths are not those of the published models": strange,
    }
    return first_reason(device, own)


def decode_ops(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str:
    """Predict the backend for one row: our kernel, or torch ops and why. Compiles at most an empty kernel."""
    reason = unfit(config, device, dtype)
    if reason is None:
        major, minor = torch.cuda.get_device_capability(device)
        try:
            compile_cubin(_PROBE, f"{major}{minor}", ())
        except KernelUnavailable as error:
            reason = str(error)
    return f"torch ops ({reason})" if reason else SingleKernel.name


class SingleKernel(CudaKernel):
    """state.work.x -> cache and state.logits, for one row. Raises KernelUnavailable.

    Allocates its scratch at construction; `run` allocates nothing and may be captured. If blocks wait for each other
    longer than TIMEOUT_MS, the launch ends and sets state.work.stalled. `reset` makes the kernel usable again.
    """

    name = "CUDA kernel for one row"

    def __init__(self, talker: Talker, state: DecodeState):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason or state.batch != 1:
            raise KernelUnavailable(reason or "it serves one row")
        limits, weights = Limits.of(device), talker.layers[0].qkv.format
        self._blocks, self._shared = limits.multiprocessors, pipeline_bytes(config, limits.shared, weights)
        self.scratch = self.make_scratch(config, 1, state.max_seq_len, device)
        self._layers = layer_table(talker, state)
        self._argument = arguments(talker, state, self.scratch, self._layers)
        self._stalled = state.work.stalled
        super().__init__(SOURCE, limits.capability, defines(config, self._blocks, limits.shared, weights))
        self._function = self._module.function("single_step", self._shared)
        with self._first_launch():
            state.work.x.zero_()
            self.run()
            if self._stalled.item():
                self._stalled.zero_()  # torch ops take over, which cannot stall
                raise KernelUnavailable("its blocks do not see each other's values on this GPU")

    @staticmethod
    def make_scratch(
        config: ModelConfig, batch: int, max_seq_len: int, device: torch.device
    ) -> dict[str, torch.Tensor]:
        """Allocate the buffers for exchange between blocks (exchange.cuh), zeroed: no epoch has been published yet."""
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

    def run(self) -> None:
        launch(self._function, self._blocks, THREADS, self._argument, cooperative=True, shared=self._shared)

    def reset(self) -> None:
        """Restore the initial state after a stalled launch: no epoch has been published yet."""
        for tensor in (*self.scratch.values(), self._stalled):
            tensor.zero_()


def layer_table(talker: Talker, state: DecodeState) -> torch.Tensor:
    """Return the `LayerWeights` of every layer, [layers, 9] addresses and bits."""
    table = []
    for index, layer in enumerate(talker.layers):
        expert, (queries, query_heads) = layer.code, state.cache.layer_queries(index)
        values = LayerWeights.of(
            attn_norm=expert.attn_norm,
            qkv=layer.qkv.data,
            qk_norm=layer.qk_norm,
            out=layer.out.data,
            mlp_norm=expert.mlp_norm,
            gate_up=expert.gate_up.data,
            down=expert.down.data,
            queries=queries,
            query_heads=query_heads,
        )
        table.append([getattr(values, name) or 0 for name in LayerWeights.kinds])
    return torch.tensor(table, dtype=INT64, device=state.device)


def arguments(talker: Talker, state: DecodeState, scratch: dict[str, torch.Tensor], layers: torch.Tensor) -> Arguments:
    """Return the kernel's argument. All these tensors must outlive it."""
    return SingleArgs.of(
        **scratch,
        layers=layers,
        x_in=state.work.x,
        head=talker.head_codes.data,
        norm=talker.norm,
        cos=talker.cos,
        sin=talker.sin,
        keys=state.cache.keys,
        values=state.cache.values,
        position=state.cache.position,
        logits=state.logits,
        stalled=state.work.stalled,
        layer_stride=state.cache.keys.stride(0),
        layer_count=talker.config.layers,
        max_seq_len=state.max_seq_len,
    )
