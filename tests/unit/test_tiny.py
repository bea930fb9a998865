"""The tiny checkpoints are valid: other libraries load them, and greedy decoding does not stall."""

import json

import pytest
import torch
import transformers
from higgs_tts.engine import EMBEDDED
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.prompt.tags import TAGS
from higgs_tts.engine.tools.tiny import FAMILIES, write_tiny
from safetensors.torch import load_file
from tokenizers import Tokenizer

V3_CODEC = "tied.embedding.modality_embeddings.0.model."


def needs(name):
    return pytest.mark.skipif(not hasattr(transformers, name), reason=f"this transformers has no {name}")


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def contents(folder):
    return {path.name: load_file(path) for path in folder.glob("*.safetensors")}


def test_the_seed_decides_the_weights(written, tmp_path):
    again, other = write_tiny(tmp_path / "again", "v3"), write_tiny(tmp_path / "other", "v3", seed=1)
    name = "body.layers.0.self_attn.q_proj.weight"
    first, second, third = (load_file(folder / "model.safetensors") for folder in (written["v3"], again, other))
    assert set(first) == set(second) == set(third)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first[name], third[name])
    with pytest.raises(HiggsError, match="v2-boson"):
        write_tiny(tmp_path / "none", "v4")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_checkpoint_is_small_and_stored_as_published(written, family):
    size = sum(path.stat().st_size for path in written[family].rglob("*") if path.is_file())
    assert size < 8e6
    tensors = load_file(written[family] / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_the_index_names_all_tensors(tmp_path):
    folder = write_tiny(tmp_path, "v2")
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    held = {name: file for file, tensors in contents(folder).items() for name in tensors}
    assert index["weight_map"] == held and set(held.values()) == {"model.safetensors"}
    size = sum(t.numel() * t.element_size() for tensors in contents(folder).values() for t in tensors.values())
    assert index["metadata"]["total_size"] == size


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_has_every_special_token_once(written, family):
    tokenizer = Tokenizer.from_file(str(written[family] / "tokenizer.json"))
    specials = (
        ["<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>", "<|endoftext|>", *TAGS]
        if family == "v3"
        else ["<|begin_of_text|>", "<|eot_id|>", "<|audio_out_bos|>", "<|audio_eos|>", "<|AUDIO_OUT|>", "<|AUDIO|>"]
    )
    ids = [tokenizer.token_to_id(special) for special in specials]
    assert None not in ids and len(set(ids)) == len(ids)
    assert tokenizer.encode("".join(specials), add_special_tokens=False).ids == ids
    text = "Hello, the world in \u4e16\u754c \u2014 na\u00efve \U0001f600"
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(encoded.ids) == text
    assert "hello" in tokenizer.encode("hello", add_special_tokens=False).tokens
    begins = tokenizer.encode("a").ids[0] == tokenizer.token_to_id("<|begin_of_text|>")
    assert begins == (family != "v3")
    config = config_of(written[family])
    vocab = (config.get("text_config") or config)["vocab_size"]
    assert tokenizer.get_vocab_size() < vocab


def test_v2_names_its_tokens_in_the_config(written):
    token = Tokenizer.from_file(str(written["v2"] / "tokenizer.json")).token_to_id
    new, old = config_of(written["v2"]), config_of(written["v2-boson"])
    assert new["audio_token_id"] == old["audio_out_token_idx"] == token("<|AUDIO_OUT|>")
    assert new["audio_bos_token_id"] == old["audio_out_bos_token_id"] == token("<|audio_out_bos|>")
    assert new["audio_delay_token_id"] == token("<|reserved_special_token_6|>")


@needs("HiggsAudioV2ForConditionalGeneration")
def test_transformers_loads_v2_whole(written):
    model, told = transformers.HiggsAudioV2ForConditionalGeneration.from_pretrained(
        written["v2"], output_loading_info=True, dtype=torch.float32
    )
    assert not any(told.values()), told
    ours = load_talker(inspect(written["v2"]), torch.device("cpu"), torch.float32)
    assert torch.equal(model.audio_lm_head.weight, ours["head_codes"])
    layer = model.model.layers[1]
    assert torch.equal(layer.audio_mlp.down_proj.weight, ours["layers.1.audio_down"])
    assert torch.equal(layer.self_attn.v_proj.weight, ours["layers.1.qkv"][-32:])


def test_transformers_loads_the_codec_whole(written, codec_of_transformers):
    model, told = codec_of_transformers.from_pretrained(written["v2"] / "audio_tokenizer", output_loading_info=True)
    assert not any(told.values()), told
    raw = load_file(written["v3"] / "model.safetensors")
    bundled = {name.removeprefix(V3_CODEC): tensor for name, tensor in raw.items() if name.startswith(V3_CODEC)}
    left = model.load_state_dict({name: tensor.float() for name, tensor in bundled.items()}, strict=False)
    assert not left.missing_keys and left.unexpected_keys == ["semantic_model.masked_spec_embed"]


@needs("Qwen3Model")
@pytest.mark.parametrize("folder", ["tiny", "embedded"])
def test_transformers_reads_v3s_text_config_as_it_stands(written, folder):
    config = transformers.Qwen3Config(**config_of(written["v3"] if folder == "tiny" else EMBEDDED)["text_config"])
    frequencies = transformers.Qwen3Model(config).rotary_emb.inv_freq.double()
    assert torch.allclose(frequencies, 1e6 ** -(torch.arange(0, config.head_dim, 2).double() / config.head_dim))


def test_v3s_theta_is_stored_under_both_keys(written):
    """transformers before 5 and mlx-audio read the first, newer ones the second; a null breaks all of them."""
    for folder in (written["v3"], EMBEDDED):
        text = config_of(folder)["text_config"]
        assert text["rope_theta"] == text["rope_parameters"]["rope_theta"] == 1_000_000


@needs("Qwen3Model")
def test_v3s_body_equals_qwen3_and_its_greedy_speech_varies(written):
    model = transformers.Qwen3Model(transformers.Qwen3Config(**config_of(written["v3"])["text_config"])).eval().float()
    raw = {name: t.float() for name, t in load_file(written["v3"] / "model.safetensors").items()}
    body = {name.removeprefix("body."): tensor for name, tensor in raw.items() if name.startswith("body.")}
    model.load_state_dict(body | {"embed_tokens.weight": raw["tied.embedding.text_embedding.weight"]})
    codes = raw["tied.embedding.modality_embeddings.0.embedding.weight"].view(8, 1026, -1)
    step, cache, rows = model.embed_tokens(torch.arange(20)[None]), None, []
    for _ in range(40):
        with torch.no_grad():
            out = model(inputs_embeds=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(torch.einsum("nvh,h->nv", codes, out.last_hidden_state[0, -1]).argmax(-1))
        step = codes[torch.arange(8), rows[-1]].sum(0)[None, None]
    rows = torch.stack(rows)
    assert rows.max() < 1024
    assert len(torch.unique(rows, dim=0)) > 35
    assert (rows[1:] != rows[:-1]).float().mean() > 0.7
