"""config.json in every spelling: the settings read from it, and refusals."""

import pytest
from higgs_tts.engine.checkpoint.hf_config import read_settings
from higgs_tts.engine.core.codes import CODE_VOCAB
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.tools.tiny_config import boson_config, tiny_tokenizer, v2_config, v3_config

V3, V2 = tiny_tokenizer("v3"), tiny_tokenizer("v2")


def settings(config, layout):
    return read_settings(config, "config.json", layout)


@pytest.fixture
def v3():
    return v3_config(V3, 336)


@pytest.fixture
def new():
    return v2_config(V2, 296)


@pytest.fixture
def old():
    return boson_config(V2, 296)


@pytest.mark.parametrize(
    ("text", "top"),
    [
        ({"rope_theta": None}, {}),
        ({}, {}),
        ({}, {"rope_theta": None}),
        ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}}, {}),
        ({"rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"}}, {}),
        ({"rope_parameters": None, "rope_scaling": None}, {"rope_parameters": {"rope_theta": 1e6}}),
        ({"rope_theta": 1_000_000}, {"rope_theta": None}),
        ({"rope_theta": 1_000_000, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {}),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {}),
    ],
)
def test_v3_theta_is_never_a_librarys_default(v3, text, top):
    del v3["text_config"]["rope_theta"], v3["text_config"]["rope_parameters"]
    v3["text_config"] |= text
    rope = settings(v3 | top, "v3").model.rope
    assert (rope.theta, rope.factor) == (1e6, 1.0)


def test_a_theta_set_in_the_config_is_used(v3):
    v3["text_config"] |= {"rope_theta": None, "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}}
    assert settings(v3, "v3").model.rope.theta == 5e6 and not settings(v3, "v3").notes


@pytest.mark.parametrize("spelled", [{"rope_theta": 10000.0}, {"rope_parameters": {"rope_theta": 10000}}])
def test_a_librarys_default_theta_is_used_with_a_note(v3, new, spelled):
    del v3["text_config"]["rope_theta"], v3["text_config"]["rope_parameters"], new["rope_parameters"]
    v3["text_config"] |= spelled
    for config, layout, published in ((v3, "v3", "1000000"), (new | spelled, "v2", "500000")):
        found = settings(config, layout)
        assert found.model.rope.theta == 1e4
        (note,) = found.notes
        assert "config.json" in note and "10000" in note and published in note and "transformers" in note


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_v2_llama3_scaling_is_read_in_either_spelling(new, old, key, place):
    scaling = {
        key: "llama3",
        "factor": 16.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 512,
    }
    inside = {"rope_theta": 4e5} if place == "rope_parameters" else {}
    for config, text, layout in ((new, new, "v2"), (old, old["text_config"], "v2-boson")):
        for name in ("rope_scaling", "rope_parameters", "rope_theta"):
            text.pop(name, None)
        text |= {place: scaling | inside} | ({} if inside else {"rope_theta": 4e5})
        rope = settings(config, layout).model.rope
        got = (rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_context)
        assert got == (4e5, 16.0, 2.0, 3.0, 512)


def test_v2_without_rope_settings_uses_the_published_ones(new):
    del new["rope_parameters"]
    rope = settings(new, "v2").model.rope
    assert (rope.theta, rope.factor) == (5e5, 32.0)
    # The two published spellings of the bands are the same wavelengths.
    spelled = settings(new | v2_config(V2, 296), "v2").model.rope
    for band in ("low_freq_factor", "high_freq_factor"):
        assert rope.original_context / getattr(rope, band) == spelled.original_context / getattr(spelled, band)


def test_an_unsupported_rope_is_refused(v3, new):
    v3["text_config"]["rope_parameters"] = {"type": "yarn", "factor": 4.0}
    new["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 5e5}
    with pytest.raises(HiggsError, match="yarn"):
        settings(v3, "v3")
    with pytest.raises(HiggsError, match="factor is None"):
        settings(new, "v2")


@pytest.mark.parametrize("size", [1024, 1026, None])
def test_the_code_vocabulary_includes_specials_in_every_spelling(new, old, size):
    assert settings(new | {"codebook_size": size}, "v2").model.code_vocab == CODE_VOCAB
    assert settings(old | {"audio_codebook_size": size}, "v2-boson").model.code_vocab == CODE_VOCAB


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("audio_encoder_config", "encoder_type", "whisper"),
        ("audio_encoder_config", "use_delay_pattern", False),
        ("audio_encoder_config", "vocab_size", 1024),
        ("text_config", "model_type", "llama"),
        ("text_config", "attention_bias", True),
        ("text_config", "hidden_act", "gelu"),
        ("text_config", "num_key_value_heads", 3),
        ("text_config", "hidden_size", None),
        ("text_config", "rms_norm_eps", "small"),
        ("text_config", "rms_norm_eps", float("nan")),
        ("text_config", "hidden_size", float("inf")),
    ],
)
def test_what_v3_does_not_support_is_refused_by_name(v3, section, name, value):
    v3[section][name] = value
    with pytest.raises(HiggsError, match=r"config\.json") as error:
        settings(v3, "v3")
    assert str(value) in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audio_embed_avg", True),
        ("use_audio_out_self_attention", True),
        ("use_audio_out_embed_projector", True),
        ("use_delay_pattern", False),
        ("audio_adapter_type", "stack"),
        ("audio_codebook_size", 2048),
        ("audio_dual_ffn_layers", [1]),
    ],
)
def test_what_v2_does_not_support_is_refused_by_name(old, name, value):
    with pytest.raises(HiggsError, match=name):
        settings(old | {name: value}, "v2-boson")


def test_the_keys_decide_the_layout_and_either_config_gives_the_values(new, old):
    for layout in ("v2", "v2-boson"):
        of_new, of_old = settings(new, layout), settings(old, layout)
        assert of_new.model.layout == of_old.model.layout == layout
        shape = {**vars(of_new.model), "rope": None}
        assert shape == {**vars(of_old.model), "rope": None}
        assert bool(of_new.notes) == (layout == "v2-boson") and bool(of_old.notes) == (layout == "v2")


def test_a_config_of_another_model_is_refused(v3, new):
    for config, layout in ((v3, "v2"), (new, "v3"), ({"model_type": "qwen3", "hidden_size": 8}, "v3"), ({}, "v2")):
        with pytest.raises(HiggsError, match="a different model"):
            settings(config, layout)


def test_embeddings_are_tied_unless_the_config_says_otherwise(v3, new):
    assert settings(v3, "v3").tied and not settings(new, "v2").tied
    del v3["audio_encoder_config"]["tie_word_embeddings"]
    assert settings(v3, "v3").tied
    v3["audio_encoder_config"]["tie_word_embeddings"] = False
    assert not settings(v3, "v3").tied


def test_the_class_default_of_2048_positions_does_not_limit_v2(new, v3):
    assert settings(new, "v2").model.max_context == 8192
    assert settings(v3, "v3").model.max_context == 8192
    v3["text_config"]["max_position_embeddings"] = 4096
    assert settings(v3, "v3").model.max_context == 4096
