"""Tables of tensor names for each published talker layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..talker import FAMILIES, Family
from ..talker.config import ModelConfig
from .tensor_file import TensorFile

V3_CODEC = "tied.embedding.modality_embeddings.0.model."  # prefix of the codec inside a v3 file

_PORT = "audio_embedding.weight"  # v3's code embedding under the transformers port's name

# Letters in shapes: H hidden, Q heads x head_dim, K kv_heads x head_dim, D head_dim, I intermediate,
# T text vocabulary, C codebooks x code vocabulary. A source is "name:shape"; several are joined on dimension 0.
_BLOCK = {
    "qkv": ("self_attn.q_proj.weight:QH", "self_attn.k_proj.weight:KH", "self_attn.v_proj.weight:KH"),
    "o": ("self_attn.o_proj.weight:HQ",),
    "attn_norm": ("input_layernorm.weight:H",),
    "mlp_norm": ("post_attention_layernorm.weight:H",),
    "gate_up": ("mlp.gate_proj.weight:IH", "mlp.up_proj.weight:IH"),
    "down": ("mlp.down_proj.weight:HI",),
}
_LAYER = {
    "v3": {**_BLOCK, "q_norm": ("self_attn.q_norm.weight:D",), "k_norm": ("self_attn.k_norm.weight:D",)},
    "v2": {
        **_BLOCK,
        "audio_attn_norm": ("audio_input_layernorm.weight:H",),
        "audio_mlp_norm": ("audio_post_attention_layernorm.weight:H",),
        "audio_gate_up": ("audio_mlp.gate_proj.weight:IH", "audio_mlp.up_proj.weight:IH"),
        "audio_down": ("audio_mlp.down_proj.weight:HI",),
    },
}
_TOP = {
    "v3": {
        "embed_text": ("tied.embedding.text_embedding.weight:TH",),
        "embed_codes": ("tied.embedding.modality_embeddings.0.embedding.weight:CH",),
        "head_codes": ("tied.head.modality_heads.0.weight:CH",),
        "norm": ("norm.weight:H",),
    },
    "v2": {
        "embed_text": ("embed_tokens.weight:TH",),
        "embed_codes": ("audio_codebook_embeddings.weight:CH",),
        "head_codes": ("audio_lm_head.weight:CH",),
        "norm": ("norm.weight:H",),
    },
}
# Renames from file to table, in order. If a file has a tensor under two of its names, they are copies.
_RENAMES = {
    "v3": (
        (r"^body\.", ""),
        # The names of the transformers port, which both public trainers of v3 save.
        (r"^model\.embed_tokens\.", "tied.embedding.text_embedding."),
        (r"^model\.", ""),
        (r"^audio_embedding\.", "tied.embedding.modality_embeddings.0.embedding."),
        (r"^audio_head\.", "tied.head.modality_heads.0."),
    ),
    "v2": (
        (r"^model\.", ""),
        (r"^embed_audio_tokens\.embed_audio_tokens\.", "audio_codebook_embeddings."),
        (r"^audio_decoder_proj\.", ""),
    ),
}
# From the published names of v3 to those of the port.
_TO_PORT = (
    (r"^body\.", "model."),
    (r"^tied\.embedding\.text_embedding\.", "model.embed_tokens."),
    (r"^tied\.embedding\.modality_embeddings\.0\.embedding\.", "audio_embedding."),
    (r"^tied\.head\.modality_heads\.0\.", "audio_head."),
)
# A tensor may be stored as a frozen and a trainable half.
_HALVES = re.compile(r"\.(?:embedding|linear)_(frozen|trainable)\.weight$")
# For models saved inside a wrapper (PEFT, DDP, a trainer) that prefixes all names. Each line: a tensor that always
# exists, and the start of the names from which the same wrapper prefix is removed.
_ANCHORS = tuple(
    (re.compile(rf"((?:\w+\.)*?)(?:{anchor})"), part)
    for anchor, part in (
        (r"body\.norm\.weight", "body."),
        (r"tied\.embedding\.text_embedding\.weight", "tied."),
        (re.escape(_PORT), ""),
        (r"(?:model\.)?embed_audio_tokens\.embed_audio_tokens\.weight", ""),
        (r"audio_codebook_embeddings\.weight", ""),
    )
)
# In published files but not used for speech: the text head, the Whisper encoder, computed tables.
_DROPPED = {
    "v3": re.compile(rf"^(tied\.head\.text_head\.|{re.escape(V3_CODEC)})|rotary_emb\.(original_)?inv_freq$"),
    "v2": re.compile(
        r"^(text_lm_head|audio_tower|audio_encoder_proj)\."
        r"|(^|\.)audio_codebook_weights$|rotary_emb\.(original_)?inv_freq$"
    ),
}


@dataclass(frozen=True)
class Source:
    """A tensor that the model needs: its shape, and its names in the files, joined on dimension 0."""

    name: str  # in the table
    shape: tuple[int, ...]
    stored: tuple[str, ...]  # empty if the files lack it


@dataclass(frozen=True)
class TensorPlan:
    parts: dict[str, tuple[Source, ...]]  # canonical name -> sources, joined on dimension 0
    unexpected: tuple[str, ...]  # unknown names in the files
    tied: bool  # the head is tied to the code embedding
    prefix: str  # prefix of the layers' tensors in the files

    def stored(self, name: str) -> list[str]:
        """Return a tensor's names in the files, in the order in which they are joined."""
        return [key for source in self.parts[name] for key in source.stored]

    def shape(self, name: str) -> tuple[int, ...]:
        sources = self.parts[name]
        return (sum(source.shape[0] for source in sources), *sources[0].shape[1:])


def wrapper_prefixes(names: Iterable[str]) -> dict[str, str]:
    """Return stored name -> name without the wrapper's prefix, for names with such a prefix.

    A part stored under several prefixes (a copy with averaged weights, say) is left alone, since it is ambiguous.
    """
    names = set(names)
    plain: dict[str, str] = {}
    for anchor, part in _ANCHORS:
        prefixes = {match[1] for name in names if (match := anchor.fullmatch(name))}
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        if prefix:
            under = [name for name in names if name.startswith(prefix + part)]
            if not any(name.removeprefix(prefix) in names for name in under):
                plain |= {name: name.removeprefix(prefix) for name in under}
    return plain


def unwrapped(stored: TensorFile) -> tuple[TensorFile, list[str]]:
    """Return the tensors under their layout's names, and the wrapper prefixes that were removed."""
    plain = wrapper_prefixes(stored.shapes)
    prefixes = sorted({f"'{name.removesuffix(ours)}'" for name, ours in plain.items()})
    return stored.renamed(plain), prefixes


def beginnings(names: Iterable[str]) -> str:
    """Return the most frequent prefixes of names, for a message."""
    kinds = Counter(name.partition(".")[0] for name in names)
    return " and ".join(f"'{kind}.'" for kind, _ in kinds.most_common(3))


def family_of_layout(layout: str) -> Family:
    return FAMILIES[layout.partition("-")[0]]


def layout_of(names: Iterable[str]) -> str | None:
    """Return "v3", "v2" or "v2-boson" from the tensor names, or None if they are not a Higgs talker's."""
    names = set(names)
    if names & {"tied.embedding.text_embedding.weight", "body.norm.weight", _PORT}:
        return "v3"
    if any("embed_audio_tokens.embed_audio_tokens." in name for name in names):
        return "v2"
    return "v2-boson" if any("audio_codebook_embeddings." in name for name in names) else None


def make_plan(config: ModelConfig, names: Iterable[str], tied: bool) -> TensorPlan:
    """Match the names in a file to the tables of `config`'s family. `tied`: the config says head = embedding."""
    names = set(names)
    stored_names, unexpected = _by_table_name(config.family, sorted(names))
    top = dict(_TOP[config.family])
    spare_head = top.pop("head_codes") if tied else ()
    table = {name: tuple(top[name]) for name in top}
    for layer in range(config.layers):
        for name, sources in _LAYER[config.family].items():
            table[f"layers.{layer}.{name}"] = tuple(f"layers.{layer}.{source}" for source in sources)
    parts = {name: tuple(_source(text, config, stored_names) for text in sources) for name, sources in table.items()}
    wanted = {source.name for sources in parts.values() for source in sources}
    wanted.update(text.partition(":")[0] for text in spare_head)
    for name, stored in stored_names.items():
        if name not in wanted:
            unexpected.extend(stored)
    prefix = "model." if _PORT in names else FAMILIES[config.family].tensor_prefix
    return TensorPlan(parts, tuple(unexpected), tied, prefix)


def untied(plan: TensorPlan, family: str) -> TensorPlan:
    """Return the plan with a separate head, read from the code embedding."""
    if not plan.tied:
        return plan
    (text,) = _TOP[family]["head_codes"]
    (embedding,) = plan.parts["embed_codes"]
    head = replace(embedding, name=text.partition(":")[0])
    return replace(plan, parts={**plan.parts, "head_codes": (head,)}, tied=False)


def table_name(family: str, stored: str) -> str:
    """Return the table name of a tensor called `stored` in a file."""
    for pattern, replacement in _RENAMES[family]:
        stored = re.sub(pattern, replacement, stored)
    return stored


def port_name(stored: str) -> str:
    """Return the transformers port's name of a tensor of v3."""
    for pattern, replacement in _TO_PORT:
        stored = re.sub(pattern, replacement, stored)
    return stored


def is_unused(family: str, stored: str) -> bool:
    """True if speech does not use a tensor called `stored`, although published files have it."""
    return _DROPPED[family].search(table_name(family, stored)) is not None


def shape_problems(plan: TensorPlan, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """Return (tensor, problem) for every tensor that is missing or whose shape does not match the config."""
    problems = []
    for sources in plan.parts.values():
        for source in sources:
            if not source.stored:
                problems.append((source.name, "is missing"))
                continue
            held = [shapes[name] for name in source.stored]
            joined = (sum(shape[0] for shape in held), *held[0][1:]) if all(held) else ()
            if joined != source.shape or any(shape[1:] != held[0][1:] for shape in held):
                problems.append((source.stored[0], f"has the shape {list(joined)}, not {list(source.shape)}"))
    return problems


def _by_table_name(family: str, names: list[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return (table name -> stored names, halves in order; names of incomplete halves). Copies are skipped.

    The list of incomplete halves is empty in a valid file.
    """
    by_name: dict[str, dict[str, str]] = {}
    for stored in names:
        name = table_name(family, stored)
        if is_unused(family, stored):
            continue
        half = _HALVES.search(name)
        name = _HALVES.sub(".weight", name)
        by_name.setdefault(name, {}).setdefault(half[1] if half else "whole", stored)
    odd, whole = [], {}
    for name, halves in by_name.items():
        if "whole" in halves:
            whole[name] = (halves["whole"],)
        elif len(halves) == 2:
            whole[name] = (halves["frozen"], halves["trainable"])
        else:
            odd.extend(halves.values())
    return whole, odd


def _source(text: str, config: ModelConfig, stored_names: dict[str, tuple[str, ...]]) -> Source:
    sizes = {
        "H": config.hidden,
        "Q": config.heads * config.head_dim,
        "K": config.kv_heads * config.head_dim,
        "D": config.head_dim,
        "I": config.intermediate,
        "T": config.text_vocab,
        "C": config.codebooks * config.code_vocab,
    }
    name, _, letters = text.partition(":")
    return Source(name, tuple(sizes[letter] for letter in letters), stored_names.get(name, ()))
