"""A chunk of prompts' positions through the talker: matrix products by torch, CUDA kernels between them (prompt.cu).

Its torch twin is Talker.fill. A chunk has a fixed number of places, whatever it holds, so that a product of one shape is
always the same one of cuBLAS's, and a place's result depends on neither its number nor what the others hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
from typing import NamedTuple

import torch

from ...cuda.kernel import ANY, Arguments, CudaKernel, Limits, options, structure
from ...cuda.nvrtc import KernelUnavailable, launch
from ...talker import FAMILIES, Talker
from ...talker.config import ModelConfig
from ...talker.ops.linear import linear
from ...talker.weight import FORMATS, Weight
from .batch import norm_threads
from .single import BF16, FP32, INT32, INT64, unfit

SOURCE = pathlib.Path(__file__).with_name("prompt.cu")
SIZES = (64, 128, 192, 256, 384, 512)  # places of a kind
MAX_POSITIONS = SIZES[-1]  # of a chunk
MAX_ENDS = 16  # positions of a chunk whose logits are wanted
QUERIES = 16  # places of a group, at most
_PLACE_THREADS, _SWIGLU_THREADS, _COPY_THREADS = 256, 256, 256

_KEYS = 8  # int32 words that three addresses and a stride take


class Layout(NamedTuple):
    """The offsets in int32 words of `Chunk`, and its length."""

    places: int
    groups: int
    books: int

    @property
    def words(self) -> int:
        return 12 + 2 * self.places + 2 * self.groups + 2 * MAX_ENDS + self.places * self.books


class Size(NamedTuple):
    """Places of a chunk: the first for text, the others for codes. Where both have the same weights all are text's."""

    text: int
    code: int

    @property
    def places(self) -> int:
        return self.text + self.code


EmbedArgs = structure("EmbedArgs", chunk=INT32, text=BF16, embed=BF16, text_norm=BF16, code_norm=BF16, x=FP32, h=BF16)
AddNormArgs = structure("AddNormArgs", chunk=INT32, delta=BF16, text_norm=BF16, code_norm=BF16, x=FP32, h=BF16)
LogitsArgs = structure("LogitsArgs", chunk=INT32, head=BF16)
PlaceArgs = structure(
    "PlaceArgs", chunk=INT32, qk_norm=BF16, cos=BF16, sin=BF16, qkv=BF16, attended=BF16, layer=ctypes.c_int
)
AttendArgs = structure("AttendArgs", chunk=INT32, qkv=BF16, attended=BF16, layer=ctypes.c_int)
SwigluArgs = structure("SwigluArgs", gate_up=BF16, act=BF16, places=ctypes.c_int)
WidenArgs = structure("WidenArgs", weights=ANY, out=BF16, width=ctypes.c_int, rows=ctypes.c_int)


def max_places(config: ModelConfig) -> int:
    """Places of the largest chunk: those of both kinds are rounded up where each has weights of its own."""
    if not FAMILIES[config.family].dual_ffn:
        return MAX_POSITIONS
    return max(size_for(text) + size_for(MAX_POSITIONS - text) for text in range(MAX_POSITIONS + 1))


def size_for(count: int) -> int:
    """Places of a kind of which a chunk has `count`."""
    return next(size for size in (0, *SIZES) if count <= size)


def layout(config: ModelConfig) -> Layout:
    """Of `Chunk`. Each of up to MAX_ENDS sequences may leave a group of each kind unfilled."""
    places = max_places(config)
    return Layout(places, places // QUERIES + 2 * MAX_ENDS, config.codebooks)


def defines(config: ModelConfig, weights: str) -> tuple[str, ...]:
    """Compiler options."""
    where = layout(config)
    values = {
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "HEAD_DIM": config.head_dim,
        "INTER": config.intermediate,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(FAMILIES[config.family].qk_norm),
        "CODES": config.codebooks * config.code_vocab,
        "CODEBOOKS": config.codebooks,
        "MAX_PLACES": where.places,
        "MAX_GROUPS": where.groups,
        "MAX_ENDS": MAX_ENDS,
        "NORM_THREADS": norm_threads(config),
        "PLACE_THREADS": _PLACE_THREADS,
        "ATTEND_THREADS": config.heads // config.kv_heads * 32,
        "SWIGLU_THREADS": _SWIGLU_THREADS,
        "COPY_THREADS": _COPY_THREADS,
        "SIZEOF_Chunk": where.words * 4,
    }
    arguments = (EmbedArgs, AddNormArgs, LogitsArgs, PlaceArgs, AttendArgs, SwigluArgs)
    if not FORMATS[weights].quantize:
        return options(values, *arguments)
    return options(values | {"FORMAT": FORMATS[weights].cuda}, *arguments, WidenArgs)


class PromptKernel(CudaKernel):
    """scratch chunk and text -> the cache and the logits that the chunk names. Raises KernelUnavailable.

    Allocates its scratch when constructed; `run` allocates nothing and may be captured.
    """

    def __init__(self, talker: Talker):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason:
            raise KernelUnavailable(reason)
        self.layout = layout(config)
        self.scratch = self.make_scratch(config, device)
        self._talker, self._weights = talker, talker.layers[0].qkv.format
        limits = Limits.of(device)
        super().__init__(SOURCE, limits.capability, defines(config, self._weights))
        names = ["embed_places", "add_norm", "norm_ends", "place_logits", "place_qkv", "attend", "swiglu"]
        names += ["widen"] if FORMATS[self._weights].quantize else []
        self._kernels = {name: self._module.function(name) for name in names}
        self._make_arguments()

    @staticmethod
    def make_scratch(config: ModelConfig, device: torch.device) -> dict[str, torch.Tensor]:
        """What the host writes, and what the kernels and the products between them hand to each other."""
        where = layout(config)
        widths = {
            "text": config.hidden,
            "h": config.hidden,
            "qkv": (config.heads + 2 * config.kv_heads) * config.head_dim,
            "attended": config.heads * config.head_dim,
            "delta": config.hidden,
            "gate_up": 2 * config.intermediate,
            "act": config.intermediate,
        }
        new = {name: torch.zeros(where.places, width, device=device, dtype=BF16) for name, width in widths.items()}
        new["head"] = torch.zeros(MAX_ENDS, config.codebooks * config.code_vocab, device=device, dtype=BF16)
        new["x"] = torch.zeros(where.places, config.hidden, device=device)
        new["chunk"] = torch.zeros(where.words, device=device, dtype=INT32)
        return new

    def _make_arguments(self):
        """The arguments of every launch, in order."""
        s, talker = self.scratch, self._talker
        first = talker.layers[0]
        self._embed = EmbedArgs.of(
            chunk=s["chunk"],
            text=s["text"],
            embed=talker.embed_codes,
            text_norm=first.text.attn_norm,
            code_norm=first.code.attn_norm,
            x=s["x"],
            h=s["h"],
        )
        self._places, self._attends, self._norms = [], [], []
        for index, layer in enumerate(talker.layers):
            common = {"chunk": s["chunk"], "qkv": s["qkv"], "attended": s["attended"], "layer": index}
            tables = {"qk_norm": layer.qk_norm, "cos": talker.cos, "sin": talker.sin}
            self._places.append(PlaceArgs.of(**common, **tables))
            self._attends.append(AttendArgs.of(**common))
            self._norms.append(self._norm(layer.text.mlp_norm, layer.code.mlp_norm))
            following = talker.layers[index + 1 : index + 2]
            self._norms += [self._norm(one.text.attn_norm, one.code.attn_norm) for one in following]
        self._ends = self._norm(talker.norm, talker.norm)
        self._logits = LogitsArgs.of(chunk=s["chunk"], head=s["head"])

    def _norm(self, text: torch.Tensor, code: torch.Tensor) -> Arguments:
        s = {name: self.scratch[name] for name in ("chunk", "delta", "x", "h")}
        return AddNormArgs.of(**s, text_norm=text, code_norm=code)

    def run(self, size: Size) -> None:
        """The pass over the chunk in the scratch, which has that size."""
        s = {name: tensor[: size.places] for name, tensor in self.scratch.items()}
        config, norms = self._talker.config, iter(self._norms)
        groups = (size.places // QUERIES + 2 * MAX_ENDS) * config.kv_heads
        self._launch("embed_places", size.places, norm_threads(config), self._embed)
        for index, layer in enumerate(self._talker.layers):
            self._product(s["h"], layer.qkv, s["qkv"])
            self._launch("place_qkv", size.places, _PLACE_THREADS, self._places[index])
            self._launch("attend", groups, config.heads // config.kv_heads * 32, self._attends[index])
            self._product(s["attended"], layer.out, s["delta"])
            self._launch("add_norm", size.places, norm_threads(config), next(norms))
            for expert, first, count in ((layer.text, 0, size.text), (layer.code, size.text, size.code)):
                if count:
                    h, gate_up, act, delta = (s[name][first : first + count] for name in _MLP)
                    self._product(h, expert.gate_up, gate_up)
                    argument = SwigluArgs.of(gate_up=gate_up, act=act, places=count)
                    blocks = -(-count * config.intermediate // (8 * _SWIGLU_THREADS))
                    self._launch("swiglu", blocks, _SWIGLU_THREADS, argument)
                    self._product(act, expert.down, delta)
            if index + 1 < len(self._talker.layers):
                self._launch("add_norm", size.places, norm_threads(config), next(norms))
        self._launch("norm_ends", MAX_ENDS, norm_threads(config), self._ends)
        linear(self.scratch["h"][:MAX_ENDS], self._talker.head_codes, self.scratch["head"])
        self._launch("place_logits", MAX_ENDS, _COPY_THREADS, self._logits)

    def _product(self, x: torch.Tensor, weight: Weight, out: torch.Tensor):
        """out = x @ W.T; a quantised matrix is written out before."""
        if not FORMATS[weight.format].quantize:
            linear(x, weight, out)
            return
        rows, width = weight.shape
        assert weight.scratch is not None, "a talker gives its quantised weights room"
        matrix = weight.scratch[: rows * width * 2].view(BF16).view(rows, width)
        argument = WidenArgs.of(weights=weight.data, out=matrix, width=width, rows=rows)
        blocks = -(-rows * width // (512 * (_COPY_THREADS // 32)))
        self._launch("widen", blocks, _COPY_THREADS, argument)
        torch.mm(x, matrix.t(), out=out)

    def _launch(self, name: str, grid: int, block: int, argument: Arguments) -> None:
        launch(self._kernels[name], grid, block, argument)

    def tensors(self) -> list[torch.Tensor]:
        """What it has on the device of its own."""
        return list(self.scratch.values())

    def close(self) -> None:
        """Unloads the code and drops the talker."""
        super().close()
        with contextlib.suppress(AttributeError):  # closed before
            del self._talker


_MLP = ("h", "gate_up", "act", "delta")
