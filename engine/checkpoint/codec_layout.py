"""Codec layouts in files: old and new tensor names, weight norm, and widths derived from shapes.

transformers' names are canonical. The old `model.pth` of the v2 tokenizer has its own, in `OLD_TO_HF`.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..codec.config import CodecConfig
from ..codec.hubert import STRIDES
from ..codec.modules import CODEBOOKS, RATIOS, SEMANTIC_BLOCKS, SEMANTIC_UNITS, decoder_parts, encoder_parts
from ..core.codes import CODEBOOK_SIZE
from ..core.config import FRAME_SAMPLES
from ..core.errors import HiggsError

if TYPE_CHECKING:
    from .tensor_file import TensorFile

_UNIT = ("snake1", "conv1", "snake2", "conv2")
_REMEDY = "Download the codec again."


def _old_modules() -> dict[str, str]:
    table = {"fc_prior": "fc", "fc_post1": "fc1", "fc_post2": "fc2"}
    for old, new, up in ("encoder.block", "acoustic_encoder", False), ("decoder_2.model", "acoustic_decoder", True):
        table |= {f"{old}.0": f"{new}.conv1"}
        table |= {f"{old}.{RATIOS + 1}": f"{new}.snake1", f"{old}.{RATIOS + 2}": f"{new}.conv2"}
        for i in range(RATIOS):
            block, to = f"{old}.{i + 1}.block", f"{new}.block.{i}"
            table |= {f"{block}.0": f"{to}.snake1", f"{block}.1": f"{to}.conv_t1"} if up else {}
            table |= {f"{block}.3": f"{to}.snake1", f"{block}.4": f"{to}.conv1"} if not up else {}
            for j in range(3):
                unit = f"{block}.{j + 2 if up else j}.block"
                table |= {f"{unit}.{k}": f"{to}.res_unit{j + 1}.{name}" for k, name in enumerate(_UNIT)}
    for i in range(CODEBOOKS):
        old, new = f"quantizer.vq.layers.{i}", f"quantizer.quantizers.{i}"
        table |= {f"{old}._codebook": f"{new}.codebook"}
        table |= {f"{old}.{name}": f"{new}.{name}" for name in ("project_in", "project_out")}
    table |= {"encoder_semantic.conv.conv": "encoder_semantic.conv"}
    table |= {f"decoder_semantic.{conv}.conv": f"decoder_semantic.{conv}" for conv in ("conv1", "conv2")}
    for half in ("encoder_semantic", "decoder_semantic"):
        for block in (f"{half}.conv_blocks.{i}" for i in range(SEMANTIC_BLOCKS)):
            table |= {f"{block}.conv.conv": f"{block}.conv"}
            units = (f"{block}.res_units.{i}" for i in range(SEMANTIC_UNITS))
            table |= {f"{unit}.conv1.conv": f"{unit}.conv1" for unit in units}
    return table


OLD_TO_HF = _old_modules()  # module name -> module name; other names are the same in both
HF_TO_OLD = {new: old for old, new in OLD_TO_HF.items()}

# Weight norm stores a weight as direction and length, under the names of torch's old or new API.
DIRECTION, LENGTH = ".parametrizations.weight.original1", ".parametrizations.weight.original0"
_HALVES = {".weight_v": DIRECTION, ".weight_g": LENGTH, DIRECTION: DIRECTION, LENGTH: LENGTH}
# The only convolution that keeps its weight norm. HuBERT norms it over other dimensions than the rest.
POSITION = "semantic_model.encoder.pos_conv_embed.conv"
_UNREAD = ("decoder_semantic.", "fc1.", "semantic_model.masked_spec_embed")
_UNREAD_BOOK = (".codebook.inited", ".codebook.cluster_size", ".codebook.embed_avg")

# field of CodecConfig -> tensor and axis with its value
_TELLS = {
    "codebook_size": ("quantizer.quantizers.0.codebook.embed", 0),
    "codebook_dim": ("quantizer.quantizers.0.codebook.embed", 1),
    "acoustic_hidden": ("acoustic_decoder.conv1.weight", 1),
    "decoder_hidden": ("acoustic_decoder.conv1.weight", 0),
    "encoder_hidden": ("acoustic_encoder.conv1.weight", 0),
    "semantic_hidden": ("semantic_model.feature_projection.projection.weight", 0),
    "semantic_ffn": ("semantic_model.encoder.layers.0.feed_forward.intermediate_dense.weight", 0),
    "pos_kernel": (POSITION + DIRECTION, 2),
}
_UPSAMPLING = tuple(f"acoustic_decoder.block.{i}.conv_t1.weight" for i in range(RATIOS))
_HEARING = tuple(f"semantic_model.feature_extractor.conv_layers.{i}.conv.weight" for i in range(len(STRIDES)))
_LAYERS = "semantic_model.encoder.layers."
_WIDEST, _MOST_LAYERS = 1 << 16, 96  # of HuBERT; the published one has 12, of 3072 at most


def looks_like_codec(names: Iterable[str]) -> bool:
    """True if these tensor names, without prefixes, are a codec's, old or new."""
    return any(name.startswith(("acoustic_decoder.", "decoder_2.model.")) for name in names)


@functools.lru_cache(maxsize=4)
def decoder_shapes(config: CodecConfig) -> Mapping[str, tuple[int, ...]]:
    """Return tensor name -> shape of everything that decoding needs."""
    return _shapes(decoder_parts, config)


@functools.lru_cache(maxsize=4)
def encoder_shapes(config: CodecConfig) -> Mapping[str, tuple[int, ...]]:
    """Return tensor name -> shape of everything that encoding needs."""
    return _shapes(encoder_parts, config)


def fp32_sizes(shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the bytes of each tensor of these shapes in fp32."""
    return [4 * math.prod(shape) for shape in shapes.values()]


def unused_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape of the training-only tensors in published codecs. Accepted in a file, never read."""
    width = config.semantic_hidden
    shapes = {
        "semantic_model.masked_spec_embed": (width,),
        "fc1.weight": (width, config.hidden),
        "fc1.bias": (width,),
        "decoder_semantic.conv1.weight": (width, width, 3),
        "decoder_semantic.conv2.weight": (width, width, 3),
    }
    for block in (f"decoder_semantic.conv_blocks.{i}" for i in range(SEMANTIC_BLOCKS)):
        shapes |= {f"{block}.conv.weight": (width, width, 3), f"{block}.conv.bias": (width,)}
        for unit in (f"{block}.res_units.{i}" for i in range(SEMANTIC_UNITS)):
            shapes |= {f"{unit}.conv1.weight": (width, width, 3), f"{unit}.conv2.weight": (width, width, 1)}
    for book in (f"quantizer.quantizers.{i}.codebook" for i in range(CODEBOOKS)):
        table = (config.codebook_size, config.codebook_dim)
        shapes |= {f"{book}.inited": (1,), f"{book}.cluster_size": table[:1], f"{book}.embed_avg": table}
    return shapes


def _shapes(parts: Callable[[CodecConfig], dict[str, nn.Module]], config: CodecConfig) -> Mapping[str, tuple[int, ...]]:
    with torch.device("meta"):
        module = nn.ModuleDict(parts(config))
    return MappingProxyType({name: tuple(tensor.shape) for name, tensor in module.state_dict().items()})


def codec_config(shapes: Mapping[str, tuple[int, ...]]) -> CodecConfig:
    """Derive a codec's widths from the shapes of its tensors under canonical names.

    Raises KeyError with a tensor's name if it is missing or has too few dimensions, and ValueError if the widths are
    not a codec's.
    """

    def size(name: str, axis: int) -> int:
        if len(shapes.get(name, ())) <= axis:
            raise KeyError(name)
        return shapes[name][axis]

    widths = {field: size(name, axis) for field, (name, axis) in _TELLS.items()}
    layers = {int(name.removeprefix(_LAYERS).split(".")[0]) for name in shapes if name.startswith(_LAYERS)}
    config = CodecConfig(
        **widths,
        semantic_layers=max(layers) + 1,
        pos_groups=widths["semantic_hidden"] // max(1, size(POSITION + DIRECTION, 1)),
        ratios=tuple(size(name, 2) // 2 for name in _UPSAMPLING),
        conv_dims=tuple(size(name, 0) for name in _HEARING),
        conv_kernels=tuple(size(name, 2) for name in _HEARING),
    )
    sizes = (config.pos_groups, *config.ratios, *config.conv_dims, *config.conv_kernels, *widths.values())
    if min(sizes) < 1 or max(sizes) > _WIDEST or config.semantic_layers > _MOST_LAYERS:
        raise ValueError(f"its tensors are {min(sizes)} to {max(sizes)} wide, in {config.semantic_layers} layers")
    if math.prod(config.ratios) != FRAME_SAMPLES:
        raise ValueError(f"upsampling by {config.ratios} does not give {FRAME_SAMPLES} samples per frame")
    if config.codebook_size != CODEBOOK_SIZE:
        raise ValueError(f"{config.codebook_size} codes per codebook instead of {CODEBOOK_SIZE}")
    if config.semantic_hidden % config.semantic_heads or config.semantic_hidden % max(1, config.pos_groups):
        raise ValueError(f"HuBERT does not support the width {config.semantic_hidden}")
    return config


def canonical_name(name: str) -> tuple[str, str]:
    """Return (canonical name, half of weight norm or "") for a tensor's name in a file, old or new."""
    if half := next((suffix for suffix in _HALVES if name.endswith(suffix)), ""):
        module = OLD_TO_HF.get(name.removesuffix(half), name.removesuffix(half))
        return (module + _HALVES[half], "") if module == POSITION else (module + ".weight", _HALVES[half])
    module, dot, leaf = name.rpartition(".")
    return OLD_TO_HF.get(module, module) + dot + leaf, ""


class CodecWeights:
    """Codec in a file of either layout: its problems, and its tensors under canonical names."""

    def __init__(self, tensors: TensorFile):
        """Read the shapes only. Raises HiggsError if the tensors are not a codec."""
        self._tensors = tensors
        if not looks_like_codec(tensors.shapes):
            name = next(iter(tensors.shapes), None)
            where = tensors.file_of(name) if name else "The file"
            raise HiggsError(
                f"{where} does not contain a codec: it has no acoustic_decoder. Choose the codec's folder."
            )
        self._old = any(name.startswith("decoder_2.") for name in tensors.shapes)
        self._sorted = sorted(tensors.shapes)
        self._sources: dict[str, dict[str, str]] = {}  # canonical name -> half -> name in the file
        self._doubles: list[str] = []
        for name in tensors.shapes:
            to, half = canonical_name(name)
            if half in (held := self._sources.setdefault(to, {})):
                self._doubles.append(
                    f"{tensors.file_of(name)}: {name} and {held[half]} are the same tensor stored twice."
                )
            held[half] = name
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tensors.shapes[held.get("") or held.get(DIRECTION) or held[LENGTH]]
            for name, held in self._sources.items()
        }

    @functools.cached_property
    def config(self) -> CodecConfig:
        """Widths of the codec. Raises HiggsError if they cannot be derived from the tensors."""
        try:
            return codec_config(self.shapes)
        except (KeyError, ValueError) as error:
            raise HiggsError(f"{self._untold(error)} {_REMEDY}") from error

    def problems(self) -> list[str]:
        """Return a sentence with file and tensor for each tensor that is missing, unexpected or of the wrong shape."""
        try:
            config = codec_config(self.shapes)
        except (KeyError, ValueError) as error:
            return [self._untold(error)]
        expected = {**encoder_shapes(config), **decoder_shapes(config)}
        problems = list(self._doubles)
        for name, shape in expected.items():
            problems += self._wrong(name, tuple(shape))
        for name, held in self._sources.items():
            if name not in expected and not (name.startswith(_UNREAD) or name.endswith(_UNREAD_BOOK)):
                problems += [f"{self._tensors.file_of(n)}: {n} does not belong to the codec." for n in held.values()]
        return problems

    def read(self, part: str, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Read `part`, "decoder" or "encoder": canonical name -> fp32 tensor on `device`, with weight norm folded.

        Raises HiggsError if `problems` finds any.
        """
        if problems := self.problems():
            more = f" There are {len(problems) - 1} more such tensors." if len(problems) > 1 else ""
            raise HiggsError(f"{problems[0]}{more} {_REMEDY}")
        shapes = {"decoder": decoder_shapes, "encoder": encoder_shapes}[part](self.config)
        return {name: self._fold(self._sources[name], device) for name in shapes}

    def _fold(self, held: dict[str, str], device: torch.device | str) -> torch.Tensor:
        if "" in held:
            return self._get(held[""], device)
        direction, length = self._get(held[DIRECTION], device), self._get(held[LENGTH], device)
        axes = tuple(range(1, direction.dim()))
        return length * direction / torch.linalg.vector_norm(direction, dim=axes, keepdim=True)

    def _get(self, name: str, device: torch.device | str) -> torch.Tensor:
        # On the CPU, tensors are backed by the file. Copy them so that the file can be closed.
        tensor = self._tensors.get(name, device)
        return tensor.to(torch.float32, copy=tensor.device.type == "cpu")

    def _wrong(self, name: str, shape: tuple[int, ...]) -> list[str]:
        held = self._sources.get(name)
        if held is None:
            return [self._missing(name)]
        if set(held) not in ({""}, {DIRECTION, LENGTH}):
            names = " and ".join(held.values())
            return [f"{self._tensors.file_of(next(iter(held.values())))}: {names} do not make up one weight."]
        needed = {half: shape[:1] + (1,) * (len(shape) - 1) if half == LENGTH else shape for half in held}
        return [
            f"{self._tensors.file_of(n)}: {n} has the shape {list(self._tensors.shapes[n])}, not {list(needed[half])}."
            for half, n in held.items()
            if tuple(self._tensors.shapes[n]) != needed[half]
        ]

    def _missing(self, name: str) -> str:
        module, dot, leaf = name.rpartition(".")
        named = (HF_TO_OLD.get(module, module) if self._old else module) + dot + leaf
        # In a sharded codec, name the file with the nearest names.
        at = bisect.bisect(self._sorted, named)
        near = max(self._sorted[max(0, at - 1) : at + 1], key=lambda other: _shared(named, other))
        return f"{self._tensors.file_of(near)}: {named} is missing."

    def _untold(self, error: KeyError | ValueError) -> str:
        if isinstance(error, KeyError):
            name = error.args[0]
            wrong = self._wrong(name, ()) if name in self._sources else [self._missing(name)]
            return wrong[0]
        return f"{self._tensors.file_of(next(iter(self._tensors.shapes)))}: {error}."


def _shared(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
