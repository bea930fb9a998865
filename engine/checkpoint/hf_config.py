"""config.json, in any published spelling, to a ModelConfig. Reads no file and no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..codes import CODE_VOCAB, CODEBOOK_SIZE
from ..errors import HiggsError
from ..talker.config import ModelConfig, RopeConfig

_TRAINED_CONTEXT = 8192  # positions; configs say other numbers, the weights were trained with this one

# What the published weights use. A config may hold null or nothing here. What transformers saves of such a config
# holds its own default instead, which makes noise of the published weights; a model trained with it is possible.
_LIBRARY_THETA = 10_000.0
_ROPE = {
    "v3": RopeConfig(theta=1_000_000.0),
    "v2": RopeConfig(500_000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192),
}
_NORM_EPS = {"v3": 1e-6, "v2": 1e-5}
_CODEBOOKS = 8

# Settings whose other values mean a model this engine does not build: section -> setting -> what it may be.
# A setting that is absent or null has the published value.
_ALLOWED = {
    "v3": {
        "audio_encoder_config": {
            "encoder_type": ("discrete",),
            "use_delay_pattern": (True,),
            "vocab_size": (CODE_VOCAB,),
        },
        "text_config": {
            "model_type": ("qwen3",),
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "use_sliding_window": (False,),
        },
    },
    "v2": {
        "": {
            "audio_adapter_type": ("dual_ffn", "dual_ffn_fast_forward"),
            "use_delay_pattern": (True,),
            "audio_embed_avg": (False,),
            "use_audio_out_self_attention": (False,),
            "use_audio_out_embed_projector": (False,),
            # The old spelling leaves the two special codes out, the new one counts them.
            "audio_codebook_size": (CODEBOOK_SIZE, CODE_VOCAB),
            "codebook_size": (CODEBOOK_SIZE, CODE_VOCAB),
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
        },
        "text_config": {
            "model_type": ("llama",),
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
        },
    },
}


@dataclass(frozen=True)
class Settings:
    """What config.json says of the talker."""

    model: ModelConfig
    tied: bool  # the head is the code embedding
    notes: tuple[str, ...] = ()


def family_of(config: dict) -> str | None:
    """The family a config.json speaks of: "v3", "v2" (in either spelling), or None for another model."""
    kind, text = config.get("model_type"), config.get("text_config")
    if kind == "higgs_multimodal_qwen3":
        return "v3"
    if kind == "higgs_audio_v2" or (kind == "higgs_audio" and "audio_num_codebooks" in config):
        return "v2"
    if kind is None and isinstance(text, dict):
        if text.get("model_type") == "qwen3" and "audio_encoder_config" in config:
            return "v3"
        if "audio_adapter_type" in config:
            return "v2"
    return None


def read_settings(config: dict, path: Path, layout: str) -> Settings:
    """The shape of the talker whose weights have `layout`. `path` is config.json's, for messages.

    The keys of the weights decide the layout; `config` may be of another generation of the same family.
    Raises HiggsError for a setting that is missing, or has a value this engine does not support.
    """
    family = layout.partition("-")[0]
    if family_of(config) != family:
        raise HiggsError(
            f"{path} describes another model (model_type {config.get('model_type')!r}) than the weights beside it, "
            f"which are Higgs {family}. Download the folder again."
        )
    for section, allowed in _ALLOWED[family].items():
        _refuse_unsupported(_section(config, section), allowed, path)
    nested = isinstance(config.get("text_config"), dict)
    text = _section(config, "text_config") if nested else config
    model = _model_config(config, text, path, layout)
    expert_layers = config.get("audio_dual_ffn_layers")
    if isinstance(expert_layers, list) and set(expert_layers) != set(range(model.layers)):
        raise HiggsError(
            f"{path}: audio_dual_ffn_layers names {len(expert_layers)} of {model.layers} layers. "
            "Only models with an audio expert in every layer are supported."
        )
    notes = []
    if family == "v2" and nested != (layout == "v2-boson"):
        ages = ("older", "newer") if nested else ("newer", "older")
        notes.append(f"config.json is of the {ages[0]} generation and the weights are of the {ages[1]}; both are read.")
    if model.rope.theta == _LIBRARY_THETA:
        notes.append(
            f"{path} sets the rope theta to 10000, the default of transformers, probably written when the "
            f"model was saved again. The published value is {_ROPE[family].theta:.0f}: if you hear noise, set that."
        )
    tied = family == "v3" and _section(config, "audio_encoder_config").get("tie_word_embeddings") is not False
    return Settings(model, tied, tuple(notes))


def _model_config(config: dict, text: dict, path: Path, layout: str) -> ModelConfig:
    family = layout.partition("-")[0]
    hidden, heads = _count(text, "hidden_size", path), _count(text, "num_attention_heads", path)
    kv_heads = _count(text, "num_key_value_heads", path)
    codebooks = _section(config, "audio_encoder_config") if family == "v3" else config
    named = next((n for n in ("num_codebooks", "audio_num_codebooks") if codebooks.get(n) is not None), None)
    context = _count(text, "max_position_embeddings", path, _TRAINED_CONTEXT)
    model = ModelConfig(
        family=family,
        layout=layout,
        hidden=hidden,
        layers=_count(text, "num_hidden_layers", path),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(text, "head_dim", path, hidden // heads),
        intermediate=_count(text, "intermediate_size", path),
        norm_eps=_number(text, "rms_norm_eps", path, _NORM_EPS[family]),
        rope=_rope(family, (text, config), path),
        text_vocab=_count(text, "vocab_size", path),
        codebooks=_count(codebooks, named, path) if named else _CODEBOOKS,
        # v2's new config carries a class default (2048) that says nothing of the weights.
        max_context=min(context, _TRAINED_CONTEXT) if family == "v3" else _TRAINED_CONTEXT,
    )
    if heads % kv_heads:
        raise HiggsError(f"{path}: {heads} attention heads cannot share {kv_heads} key-value heads. Download it again.")
    return model


def _rope(family: str, sections: tuple[dict, ...], path: Path) -> RopeConfig:
    published = _ROPE[family]
    spec: dict = {}
    for section in sections:
        for key in ("rope_parameters", "rope_scaling"):
            spec = spec or _section(section, key)
    theta = _number(spec, "rope_theta", path, 0.0)
    for section in sections:
        theta = theta or _number(section, "rope_theta", path, 0.0)
    theta = theta or published.theta
    kind = spec.get("rope_type") or spec.get("type")
    if kind == "default":
        return RopeConfig(theta)
    if kind is None:
        return RopeConfig(
            theta,
            published.factor,
            published.low_freq_factor,
            published.high_freq_factor,
            published.original_context,
        )
    if kind != "llama3":
        raise HiggsError(f"{path}: rope type {kind!r} is not supported. Use the published config.json.")
    return RopeConfig(
        theta,
        _number(spec, "factor", path),
        _number(spec, "low_freq_factor", path),
        _number(spec, "high_freq_factor", path),
        _count(spec, "original_max_position_embeddings", path),
    )


def _refuse_unsupported(section: dict, allowed: dict[str, tuple], path: Path) -> None:
    for name, values in allowed.items():
        if section.get(name) is not None and section[name] not in values:
            raise HiggsError(
                f"{path}: {name} is {section[name]!r}; only {' or '.join(map(repr, values))} is supported. "
                "Use a published Higgs TTS checkpoint."
            )


def _section(config: dict, name: str) -> dict:
    value = config.get(name) if name else config
    return value if isinstance(value, dict) else {}


def _number(section: dict, name: str, path: Path, default: float | None = None) -> float:
    value = section.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise HiggsError(f"{path}: {name} is {value!r}, not a number. Download the file again.")
    return float(value)


def _count(section: dict, name: str, path: Path, default: int | None = None) -> int:
    value = _number(section, name, path, default)
    if value < 1 or value != int(value):
        raise HiggsError(f"{path}: {name} is {value!r}, not a whole number above 0. Download the file again.")
    return int(value)
