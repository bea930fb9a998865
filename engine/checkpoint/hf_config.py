"""config.json, in any published format, to a ModelConfig."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import HiggsError, shown
from ..files.json_file import number, whole
from ..talker import FAMILIES
from ..talker.config import ModelConfig, RopeConfig
from .talker_layout import family_of_layout

_TRAINED_CONTEXT = 8192  # positions; the weights were trained with this, although configs have other numbers

# transformers' default. Saving a config without a theta writes this value, with which the published weights produce
# noise. A model may also have been trained with it.
_LIBRARY_THETA = 10_000.0
_CODEBOOKS = 8

# Limits on a talker's shape. The published ones have 36 layers of 2560 and 28 of 3072, and rms_norm_eps 1e-6 and 1e-5.
_MOST = {
    "num_hidden_layers": 256,
    "hidden_size": 1 << 15,
    "intermediate_size": 1 << 17,
    "num_attention_heads": 512,
    "num_key_value_heads": 512,
    "head_dim": 1024,
    "vocab_size": 1 << 20,
    "num_codebooks": 64,
    "audio_num_codebooks": 64,
    "max_position_embeddings": 1 << 24,
    "original_max_position_embeddings": 1 << 24,
}
_BETWEEN = {
    "rms_norm_eps": (0.0, 0.1),
    "rope_theta": (1.0, 1e12),
    "factor": (1e-3, 1e4),
    "low_freq_factor": (1e-3, 1e4),
    "high_freq_factor": (1e-3, 1e4),
}


@dataclass(frozen=True)
class Settings:
    model: ModelConfig
    tied: bool  # the head is tied to the code embedding
    notes: tuple[str, ...] = ()


def family_of(config: dict) -> str | None:
    """Return the family that a config.json, in any of its formats, belongs to, or None for another model."""
    return next((family.name for family in FAMILIES.values() if family.recognises(config)), None)


def read_settings(config: dict, path: Path, layout: str) -> Settings:
    """Read the settings of the talker whose weights have `layout`. `path`: config.json, for messages.

    The weights' keys decide the layout. `config` may be of another generation of the same family.
    Raises HiggsError if a setting is missing or has an unsupported value.
    """
    family = family_of_layout(layout)
    if family_of(config) != family.name:
        raise HiggsError(
            f"{path} describes a different model (model_type {shown(config.get('model_type'))}) from the weights next "
            f"to it, which are Higgs {family.name}. Download the folder again."
        )
    for section, allowed in family.supported.items():
        _refuse_unsupported(_section(config, section), allowed, path)
    nested = isinstance(config.get("text_config"), dict)
    text = _section(config, "text_config") if nested else config
    model = _model_config(config, text, path, layout)
    experts, every = config.get("audio_dual_ffn_layers"), range(model.layers)
    if isinstance(experts, list) and not (all(one in every for one in experts) and len(set(experts)) == len(every)):
        raise HiggsError(
            f"{path}: audio_dual_ffn_layers names {len(experts)} of {model.layers} layers. "
            "Only models with an audio expert in every layer are supported."
        )
    notes = []
    if family.nested_layout and nested != (layout == family.nested_layout):
        ages = ("older", "newer") if nested else ("newer", "older")
        notes.append(
            f"config.json is in the {ages[0]} format and the weights are in the {ages[1]} one; both can be read."
        )
    if model.rope.theta == _LIBRARY_THETA:
        notes.append(
            f"{path} sets the rope theta to 10000, the transformers default, probably added when the model was saved "
            f"again. If you hear noise, set it to the published value, {family.rope.theta:.0f}."
        )
    tied = family.ties_head and _section(config, family.audio_section).get("tie_word_embeddings") is not False
    return Settings(model, tied, tuple(notes))


def _model_config(config: dict, text: dict, path: Path, layout: str) -> ModelConfig:
    family = family_of_layout(layout)
    hidden, heads = _count(text, "hidden_size", path), _count(text, "num_attention_heads", path)
    kv_heads = _count(text, "num_key_value_heads", path)
    codebooks = _section(config, family.audio_section)
    named = next((n for n in ("num_codebooks", "audio_num_codebooks") if codebooks.get(n) is not None), None)
    context = _count(text, "max_position_embeddings", path, _TRAINED_CONTEXT)
    model = ModelConfig(
        family=family.name,
        layout=layout,
        hidden=hidden,
        layers=_count(text, "num_hidden_layers", path),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(text, "head_dim", path, hidden // heads),
        intermediate=_count(text, "intermediate_size", path),
        norm_eps=_number(text, "rms_norm_eps", path, family.norm_eps),
        rope=_rope(family.rope, (text, config), path),
        text_vocab=_count(text, "vocab_size", path),
        codebooks=_count(codebooks, named, path) if named else _CODEBOOKS,
        max_context=min(context, _TRAINED_CONTEXT) if family.config_tells_context else _TRAINED_CONTEXT,
    )
    if model.head_dim % 2:
        raise HiggsError(f"{path}: head_dim is {model.head_dim}, not an even number. Download the file again.")
    if heads % kv_heads:
        raise HiggsError(f"{path}: {heads} attention heads cannot share {kv_heads} key-value heads. Download it again.")
    return model


def _rope(published: RopeConfig, sections: tuple[dict, ...], path: Path) -> RopeConfig:
    spec: dict = {}
    for section in sections:
        for key in ("rope_parameters", "rope_scaling"):
            spec = spec or _section(section, key)
    with_theta = (section for section in (spec, *sections) if section.get("rope_theta") is not None)
    theta = _number(next(with_theta, {}), "rope_theta", path, published.theta)
    kind = spec.get("rope_type") or spec.get("type")
    if kind == "default":
        return RopeConfig(theta)
    if kind is None:
        return replace(published, theta=theta)
    if kind != "llama3":
        raise HiggsError(f"{path}: rope type {shown(kind)} is not supported. Use the published config.json.")
    low, high = (_number(spec, f"{end}_freq_factor", path) for end in ("low", "high"))
    if low >= high:
        raise HiggsError(f"{path}: low_freq_factor is {low:g}, not below high_freq_factor. Download the file again.")
    factor, context = _number(spec, "factor", path), _count(spec, "original_max_position_embeddings", path)
    return RopeConfig(theta, factor, low, high, context)


def _refuse_unsupported(section: dict, allowed: dict[str, tuple], path: Path) -> None:
    for name, values in allowed.items():
        if section.get(name) is not None and section[name] not in values:
            raise HiggsError(
                f"{path}: {name} is {shown(section[name])}; only {' or '.join(map(repr, values))} is supported. "
                "Use a published Higgs TTS checkpoint."
            )


def _section(config: dict, name: str) -> dict:
    value = config.get(name) if name else config
    return value if isinstance(value, dict) else {}


def _number(section: dict, name: str, path: Path, default: float | None = None) -> float:
    value = section.get(name)
    return number(default if value is None else value, f"{path}: {name}", *_BETWEEN[name])


def _count(section: dict, name: str, path: Path, default: int | None = None) -> int:
    value = section.get(name)
    return whole(default if value is None else value, f"{path}: {name}", 1, _MOST[name])
