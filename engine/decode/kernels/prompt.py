"""CUDA kernels that prefill, between torch's matrix products. The torch twin is Talker.fill.

A fill has a fixed number of places, full or not. So each matrix always meets the same cuBLAS kernel, and a place's
result depends neither on its number nor on the other places. Where it does not depend on the size either, sequences of
any sizes share a fill.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...cuda.kernel import ANY, Arguments, CudaKernel, Limits, options, structure
from ...cuda.nvrtc import KernelUnavailable, launch
from ...talker import FAMILIES, Talker
from ...talker.config import ModelConfig
from ...talker.ops.linear import linear
from ...talker.weight import FORMATS, Weight
from .batch import SWIGLU_THREADS, SwigluArgs, norm_threads
from .matrices import Matrices, WidenedMatrices, split_scratch, weights_of
from .single import BF16, FP32, INT32, shape_of, unfit

SOURCE = pathlib.Path(__file__).with_name("prompt.cu")
SIZES = (128, 256, 384, 512)  # places of a kind
MAX_POSITIONS = SIZES[-1]  # of a fill
MAX_ENDS = 16  # positions of a fill whose logits are wanted
QUERIES = 16  # places of a group, at most
_PLACE_THREADS, _COPY_THREADS = 256, 256

Multiply = Callable[..., torch.Tensor]  # like torch.mm


class Layout(NamedTuple):
    """Capacity of `Fill`, and its length in int32 words."""

    places: int
    groups: int
    books: int

    @property
    def words(self) -> int:
        return 12 + 2 * self.places + 2 * self.groups + 2 * MAX_ENDS + self.places * self.books


class Sharing(enum.Enum):
    """Which sequences may share a fill without a change of their bits."""

    NONE = 0
    EQUAL_SIZES = 1
    ANY_SIZES = 2


class Size(NamedTuple):
    """Places of a fill: first text, then codes. In a family with the same weights for both, all count as text."""

    text: int
    code: int

    @property
    def places(self) -> int:
        return self.text + self.code


EmbedArgs = structure("EmbedArgs", fill=INT32, text=BF16, embed=BF16, text_norm=BF16, code_norm=BF16, x=FP32, h=BF16)
AddNormArgs = structure("AddNormArgs", fill=INT32, delta=BF16, text_norm=BF16, code_norm=BF16, x=FP32, h=BF16)
LogitsArgs = structure("LogitsArgs", fill=INT32, head=BF16)
PlaceArgs = structure(
    "PlaceArgs", fill=INT32, qk_norm=BF16, cos=BF16, sin=BF16, qkv=BF16, attended=BF16, layer=ctypes.c_int
)
AttendArgs = structure("AttendArgs", fill=INT32, qkv=BF16, attended=BF16, layer=ctypes.c_int)
WidenArgs = structure("WidenArgs", weights=ANY, out=BF16, width=ctypes.c_int, rows=ctypes.c_int)


def sizes_of(config: ModelConfig) -> list[Size]:
    """Return every size of a fill. A kind with weights of its own is rounded up by itself."""
    if not FAMILIES[config.family].dual_ffn:
        return [Size(places, 0) for places in SIZES]
    least = (0, 1, *(size + 1 for size in SIZES[:-1]))  # counts from which on a kind takes the next size
    pairs = [(text, code) for text in least for code in least if 0 < text + code <= MAX_POSITIONS]
    return [Size(size_for(text), size_for(code)) for text, code in pairs]


def size_for(count: int) -> int:
    """Return the places for `count` positions of a kind."""
    return next(size for size in (0, *SIZES) if count <= size)


def layout(config: ModelConfig) -> Layout:
    """Return the layout of `Fill`. Each of up to MAX_ENDS sequences may leave a group of each kind unfilled."""
    places = max(size.places for size in sizes_of(config))
    return Layout(places, places // QUERIES + 2 * MAX_ENDS, config.codebooks)


def defines(config: ModelConfig, weights: str) -> tuple[str, ...]:
    """Return the compiler options."""
    where = layout(config)
    values = {
        **shape_of(config),
        "CODES": config.codebooks * config.code_vocab,
        "CODEBOOKS": config.codebooks,
        "MAX_PLACES": where.places,
        "MAX_GROUPS": where.groups,
        "MAX_ENDS": MAX_ENDS,
        "NORM_THREADS": norm_threads(config),
        "PLACE_THREADS": _PLACE_THREADS,
        "ATTEND_THREADS": config.heads // config.kv_heads * 32,
        "SWIGLU_THREADS": SWIGLU_THREADS,
        "COPY_THREADS": _COPY_THREADS,
        "SIZEOF_Fill": where.words * 4,
    }
    arguments = (EmbedArgs, AddNormArgs, LogitsArgs, PlaceArgs, AttendArgs, SwigluArgs)
    if not FORMATS[weights].quantize:
        return options(values, *arguments)
    return options(values | {"FORMAT": FORMATS[weights].cuda}, *arguments, WidenArgs)


class PromptKernel(CudaKernel):
    """scratch fill and text -> the cache and the logits that the fill names. Raises KernelUnavailable.

    Allocates its scratch when constructed. `run` allocates nothing and can be captured.

    sharing: which prompts may share a fill, found by comparing cuBLAS's results at construction.
    """

    name = "CUDA kernels for prompts"

    def __init__(self, talker: Talker):
        config, device = talker.config, talker.device
        if reason := unfit(config, device, talker.dtype):
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
        self._buffers = split_scratch(talker)
        self._side = torch.cuda.Stream(device) if self._buffers and device.type == "cuda" else None
        # With a bias torch uses cuBLASLt. For few rows cuBLAS would use split-K, and bits would depend on the size.
        self._down = functools.partial(torch.addmm, self.scratch["zeros"])
        with self._first_launch():
            self.run(sizes_of(config)[0])  # an empty fill
            self.sharing = self._sharing()

    @staticmethod
    def make_scratch(config: ModelConfig, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the buffers that the host writes, and that kernels and products pass to each other."""
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
        new["zeros"] = torch.zeros(config.hidden, device=device, dtype=BF16)
        new["fill"] = torch.full((where.words,), -1, device=device, dtype=INT32)  # nothing in any place
        return new

    def _make_arguments(self):
        """Make the arguments of every launch, in order."""
        s, talker = self.scratch, self._talker
        first = talker.layers[0]
        held = {name: s[name] for name in ("fill", "text", "x", "h")}
        norms = {"text_norm": first.text.attn_norm, "code_norm": first.code.attn_norm}
        self._embed = EmbedArgs.of(**held, **norms, embed=talker.embed_codes)
        self._places, self._attends, self._norms = [], [], []
        for index, layer in enumerate(talker.layers):
            common = {"fill": s["fill"], "qkv": s["qkv"], "attended": s["attended"], "layer": index}
            tables = {"qk_norm": layer.qk_norm, "cos": talker.cos, "sin": talker.sin}
            self._places.append(PlaceArgs.of(**common, **tables))
            self._attends.append(AttendArgs.of(**common))
            self._norms.append(self._norm(layer.text.mlp_norm, layer.code.mlp_norm))
            following = talker.layers[index + 1 : index + 2]
            self._norms += [self._norm(one.text.attn_norm, one.code.attn_norm) for one in following]
        self._ends = self._norm(talker.norm, talker.norm)
        self._logits = LogitsArgs.of(fill=s["fill"], head=s["head"])

    def _norm(self, text: torch.Tensor, code: torch.Tensor) -> Arguments:
        s = {name: self.scratch[name] for name in ("fill", "delta", "x", "h")}
        return AddNormArgs.of(**s, text_norm=text, code_norm=code)

    def run(self, size: Size) -> None:
        """Run the fill in the scratch, which has that size."""
        s = {name: tensor[: size.places] for name, tensor in self.scratch.items()}
        config, norms, matrices = self._talker.config, iter(self._norms), self._matrices(size)
        groups = (size.places // QUERIES + 2 * MAX_ENDS) * config.kv_heads

        def product(x: torch.Tensor, out: torch.Tensor, multiply: Multiply = torch.mm):
            with matrices.following() as matrix:
                multiply(x, matrix.t(), out=out)

        self._launch("embed_places", size.places, norm_threads(config), self._embed)
        for index in range(len(self._talker.layers)):
            product(s["h"], s["qkv"])
            self._launch("place_qkv", size.places, _PLACE_THREADS, self._places[index])
            self._launch("attend", groups, config.heads // config.kv_heads * 32, self._attends[index])
            product(s["attended"], s["delta"])
            self._launch("add_norm", size.places, norm_threads(config), next(norms))
            for first, count in ((0, size.text), (size.text, size.code)):
                if count:
                    h, gate_up, act, delta = (
                        s[name][first : first + count] for name in ("h", "gate_up", "act", "delta")
                    )
                    product(h, gate_up)
                    argument = SwigluArgs.of(gate_up=gate_up, act=act, rows=count)
                    blocks = -(-count * config.intermediate // (8 * SWIGLU_THREADS))
                    self._launch("swiglu", blocks, SWIGLU_THREADS, argument)
                    product(act, delta, self._down)
            if index + 1 < len(self._talker.layers):
                self._launch("add_norm", size.places, norm_threads(config), next(norms))
        self._launch("norm_ends", MAX_ENDS, norm_threads(config), self._ends)
        linear(self.scratch["h"][:MAX_ENDS], self._talker.head_codes, self.scratch["head"])
        self._launch("place_logits", MAX_ENDS, _COPY_THREADS, self._logits)

    def _sharing(self) -> Sharing:
        """Compare the rows of every product: equal ones of a size, and the same ones in fills of all sizes."""
        layer, sizes = self._talker.layers[0], sizes_of(self._talker.config)
        whole, kinds = {size.places for size in sizes}, {count for size in sizes for count in size if count}
        products = [
            (torch.mm, "h", layer.qkv, "qkv", whole),
            (torch.mm, "attended", layer.out, "delta", whole),
            (torch.mm, "h", layer.text.gate_up, "gate_up", kinds),  # codes have matrices of the same shape
            (self._down, "act", layer.text.down, "delta", kinds),
            (torch.mm, "h", self._talker.head_codes, "head", {MAX_ENDS}),
        ]
        sharing = Sharing.ANY_SIZES
        for multiply, x, weight, out, counts in products:
            rows, results, matrix, fewest = self.scratch[x], self.scratch[out], self._matrix(weight).t(), min(counts)
            for count in counts:
                rows[:count] = torch.arange(rows.shape[1], device=rows.device).sin()
                multiply(rows[:count], matrix, out=results[:count])
                if not bool((results[:count] == results[:1]).all()):
                    return Sharing.NONE
            rows.normal_(generator=torch.Generator(rows.device).manual_seed(0))
            seen = None
            for count in counts:
                multiply(rows[:count], matrix, out=results[:count])
                seen = results[:fewest].clone() if seen is None else seen
                if not torch.equal(results[:fewest], seen):
                    sharing = Sharing.EQUAL_SIZES
        return sharing

    def _matrices(self, size: Size) -> Matrices:
        """Return the matrices of a fill, in the order of `run`."""
        weights = weights_of(self._talker, size.text > 0, size.code > 0)
        if self._side is None:
            return Matrices(weights, self._matrix)
        return WidenedMatrices(weights, self._widen, self._buffers, self._side)

    def _matrix(self, weight: Weight) -> torch.Tensor:
        """Return the matrix in bf16. A quantised one is valid until the next call."""
        if not FORMATS[weight.format].quantize:
            return weight.dense(BF16)
        assert weight.scratch is not None, "a talker gives its quantised weights room"
        return self._widen(weight, weight.scratch)

    def _widen(self, weight: Weight, room: torch.Tensor) -> torch.Tensor:
        rows, width = weight.shape
        matrix = room[: rows * width * 2].view(BF16).view(rows, width)
        argument = WidenArgs.of(weights=weight.data, out=matrix, width=width, rows=rows)
        blocks = -(-rows * width // (512 * (_COPY_THREADS // 32)))
        self._launch("widen", blocks, _COPY_THREADS, argument)
        return matrix

    def _launch(self, name: str, grid: int, block: int, argument: Arguments) -> None:
        launch(self._kernels[name], grid, block, argument)
