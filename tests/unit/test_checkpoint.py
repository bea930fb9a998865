"""Checkpoints in every layout: equal canonical tensors from all, and errors that name what does not fit."""

import codecs
import json
import shutil

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, SamplingParams
from higgs_tts.engine.checkpoint.discover import constants
from higgs_tts.engine.checkpoint.load import inspect, load_talker, talker_sizes
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.tools.tiny import FAMILIES, write_tiny
from higgs_tts.tests.sharded import sharded
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
V3_HEAD = "tied.head.modality_heads.0.weight"
V3_CODES = "tied.embedding.modality_embeddings.0.embedding.weight"


@pytest.fixture
def copy(written, tmp_path):
    def make(family, name="model"):
        return shutil.copytree(written[family], tmp_path / name)

    return make


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def edit(folder, change):
    """Rewrite the talker's file after `change` has edited its tensors."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def load(folder, dtype=torch.float32):
    return load_talker(inspect(folder), CPU, dtype)


def equal(a, b):
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_recognised_by_family_and_layout(written, family):
    checkpoint = inspect(written[family])
    config = checkpoint.config
    assert (config.layout, config.family) == (family, family[:2])
    assert not checkpoint.problems and not checkpoint.notes
    assert checkpoint.tokenizer == written[family] / "tokenizer.json"
    tensors = load_talker(checkpoint, CPU, torch.float32)
    h, d, i = config.hidden, config.head_dim, config.intermediate
    wanted = {
        "attn_norm": (h,),
        "qkv": ((config.heads + 2 * config.kv_heads) * d, h),
        "o": (h, config.heads * d),
        "mlp_norm": (h,),
        "gate_up": (2 * i, h),
        "down": (h, i),
    }
    wanted |= {"q_norm": (d,), "k_norm": (d,)} if family == "v3" else {}
    if family != "v3":
        wanted |= {"audio_attn_norm": (h,), "audio_mlp_norm": (h,), "audio_gate_up": (2 * i, h), "audio_down": (h, i)}
    shapes = {f"layers.{layer}.{name}": shape for layer in range(config.layers) for name, shape in wanted.items()}
    codes = config.codebooks * config.code_vocab
    shapes |= {"embed_codes": (codes, h), "head_codes": (codes, h), "norm": (h,), "embed_text": (config.text_vocab, h)}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert tensors["embed_text"].dtype == torch.bfloat16 and tensors["embed_text"].device == CPU
    assert all(tensor.dtype == torch.float32 for name, tensor in tensors.items() if name != "embed_text")
    assert (tensors["head_codes"] is tensors["embed_codes"]) == (family == "v3")
    on_device = {id(tensor): tensor for name, tensor in tensors.items() if name != "embed_text"}.values()
    assert sum(talker_sizes(checkpoint, torch.float32)) == sum(t.numel() * 4 for t in on_device)


@pytest.mark.parametrize(
    ("family", "prefix", "codes", "head"),
    [
        ("v3", "body.layers.1.", V3_CODES, V3_CODES),
        ("v2", "model.layers.1.", "model.embed_audio_tokens.embed_audio_tokens.weight", "audio_lm_head.weight"),
        (
            "v2-boson",
            "layers.1.",
            "audio_codebook_embeddings.weight",
            "audio_decoder_proj.audio_lm_head.weight",
        ),
    ],
)
def test_tensors_are_fused_in_order_and_rounded_once(written, family, prefix, codes, head):
    raw = load_file(written[family] / "model.safetensors")
    tensors = load(written[family], torch.bfloat16)

    def cat(*names):
        return torch.cat([raw[f"{prefix}{name}.weight"] for name in names])

    same = {
        "qkv": cat("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o": cat("self_attn.o_proj"),
        "gate_up": cat("mlp.gate_proj", "mlp.up_proj"),
        "down": cat("mlp.down_proj"),
        "attn_norm": cat("input_layernorm"),
        "mlp_norm": cat("post_attention_layernorm"),
    }
    if family != "v3":
        same["audio_gate_up"] = cat("audio_mlp.gate_proj", "audio_mlp.up_proj")
        same["audio_down"] = cat("audio_mlp.down_proj")
        same["audio_attn_norm"] = cat("audio_input_layernorm")
        same["audio_mlp_norm"] = cat("audio_post_attention_layernorm")
    for name, tensor in same.items():
        assert torch.equal(tensors[f"layers.1.{name}"], tensor), name
    assert torch.equal(tensors["embed_codes"], raw[codes])
    assert torch.equal(tensors["head_codes"], raw[head])


def test_both_layouts_of_v2_give_the_same_talker(written):
    equal(load(written["v2"]), load(written["v2-boson"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_shards_and_copied_heads_change_nothing(written, tmp_path, family):
    sharded(write_tiny(tmp_path / "other", family), 3)
    assert len(list((tmp_path / "other").glob("*.safetensors"))) == 3
    equal(load(written[family]), load(tmp_path / "other"))


@pytest.mark.parametrize("tie", [True, False])
def test_a_head_of_its_own_is_used_whatever_the_config_says(copy, tie):
    folder = copy("v3")
    edit(folder, lambda tensors: tensors.update({V3_HEAD: tensors[V3_CODES] + 1}))
    audio = json.loads((folder / "config.json").read_text(encoding="utf-8"))["audio_encoder_config"]
    edit_config(folder, audio_encoder_config=audio | {"tie_word_embeddings": tie})
    checkpoint = inspect(folder)
    tensors = load_talker(checkpoint, CPU, torch.float32)
    assert not torch.equal(tensors["head_codes"], tensors["embed_codes"])
    assert sum(talker_sizes(checkpoint, torch.float32)) == sum(
        t.numel() * 4 for n, t in tensors.items() if n != "embed_text"
    )


def split(tensors, name, kind, rows):
    whole = tensors.pop(name)
    stem = name.removesuffix(".weight")
    tensors[f"{stem}.{kind}_frozen.weight"] = whole[:rows].clone()
    tensors[f"{stem}.{kind}_trainable.weight"] = whole[rows:].clone()


def test_frozen_and_trainable_halves_are_joined(copy, written):
    def halve(tensors):
        split(tensors, "embed_tokens.weight", "embedding", 250)
        split(tensors, "audio_decoder_proj.audio_lm_head.weight", "linear", 8000)
        split(tensors, "audio_decoder_proj.text_lm_head.weight", "linear", 250)

    folder = copy("v2-boson")
    edit(folder, halve)
    equal(load(folder), load(written["v2-boson"]))
    edit(folder, lambda tensors: tensors.pop("embed_tokens.embedding_trainable.weight"))
    assert any("embedding_frozen" in problem for problem in inspect(folder).problems)


def test_the_models_prefix_and_known_extras_do_not_matter(copy, written):
    def strip(tensors):
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    def add(tensors):
        tensors["audio_codebook_weights"] = torch.ones(8)
        tensors["rotary_emb.inv_freq"] = torch.ones(8)
        tensors["layers.0.self_attn.rotary_emb.original_inv_freq"] = torch.ones(8)
        tensors["audio_tower.conv1.weight"] = torch.ones(2, 2)

    new, old = copy("v2", "new"), copy("v2-boson", "old")
    edit(new, strip)
    edit(old, add)
    assert inspect(new).config.layout == "v2"
    equal(load(new), load(written["v2"]))
    equal(load(old), load(written["v2"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_that_do_not_fit_are_named_and_not_loaded(copy, family):
    norm = {"v3": "body.norm.weight", "v2": "model.norm.weight", "v2-boson": "norm.weight"}[family]
    layer = norm.replace("norm.weight", "layers.1.")

    def spoil(tensors):
        del tensors[norm]
        tensors[f"{layer}mlp.down_proj.weight"] = torch.zeros(4, 4)
        tensors[f"{layer}self_attn.q_proj.bias"] = torch.zeros(4)

    folder = copy(family)
    edit(folder, spoil)
    problems = inspect(folder).problems
    file = str(folder / "model.safetensors")
    assert len(problems) == 3
    assert "norm.weight" in problems[0] and str(folder) in problems[0]
    assert file in problems[1] and f"{layer}mlp.down_proj.weight" in problems[1]
    assert "[4, 4]" in problems[1] and "[64, 160]" in problems[1]
    assert file in problems[2] and f"{layer}self_attn.q_proj.bias" in problems[2]
    with pytest.raises(HiggsError, match=r"norm\.weight"):
        load(folder)


@pytest.mark.parametrize("kind", ["scales", "whole numbers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_unsupported_quantised_weights_are_refused_in_one_sentence(copy, family, kind):
    weight = {"v3": "body.", "v2": "model.", "v2-boson": ""}[family] + "layers.1.mlp.down_proj.weight"

    def quantise(tensors):
        if kind == "scales":
            tensors[f"{weight}_scale"] = torch.ones(64)
        else:
            tensors[weight] = torch.ones(tensors[weight].shape, dtype=torch.int8)

    folder = copy(family)
    edit(folder, quantise)
    (problem,) = inspect(folder).problems
    assert weight in problem and "quantised" in problem
    with pytest.raises(HiggsError, match=r"quantised.*Download"):
        load(folder)


def test_a_folder_of_mixed_layouts_is_read_by_its_keys(copy, written):
    for weights, config in (("v2", "v2-boson"), ("v2-boson", "v2")):
        folder = copy(weights, f"{weights}-mixed")
        shutil.copy(written[config] / "config.json", folder)
        checkpoint = inspect(folder)
        assert checkpoint.config.layout == weights and len(checkpoint.notes) == 1
        equal(load(folder), load(written["v2"]))


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_byte_order_marks_are_ignored(copy, written, family):
    """Windows editors write them; nothing else may change."""
    folder = copy(family)
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json", "processor_config.json"):
        if (folder / name).is_file():
            (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    checkpoint = inspect(folder)
    assert checkpoint.config == inspect(written[family]).config and not checkpoint.problems
    equal(load(folder), load(written[family]))
    prompts = [PromptBuilder(place / "tokenizer.json", checkpoint.config) for place in (folder, written[family])]
    assert prompts[0].build("Hello, the world.").ids == prompts[1].build("Hello, the world.").ids


def test_missing_files_are_named_with_a_remedy(copy, tmp_path):
    folder = copy("v3")
    (folder / "tokenizer.json").rename(folder / "kept")
    with pytest.raises(HiggsError, match=r"tokenizer\.json.*Copy"):
        inspect(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(HiggsError, match=r"\.safetensors"):
        inspect(folder)
    (folder / "model-q4.gguf").touch()
    with pytest.raises(HiggsError, match="GGUF"):
        inspect(folder)
    (folder / "model-q4.gguf").unlink()
    (folder / "config.json").unlink()
    with pytest.raises(HiggsError, match=r"config\.json.*(No such file|not found|cannot find)"):
        inspect(folder)
    for nothing in (tmp_path / "absent", folder / "kept"):
        with pytest.raises(HiggsError, match=nothing.name):
            inspect(nothing)


def test_codecs_and_other_models_are_refused_as_talkers(copy):
    folder = copy("v2")
    codec = folder / "audio_tokenizer"
    with pytest.raises(HiggsError, match="audio codec"):
        inspect(codec)
    save_file({"lm_head.weight": torch.zeros(2, 2)}, codec / "model.safetensors")
    with pytest.raises(HiggsError, match=r"'lm_head\.'"):
        inspect(codec)


def rename(tensors, change):
    for name in list(tensors):
        tensors[change(name)] = tensors.pop(name)


@pytest.mark.parametrize("prefix", ["model.", "base_model.model.", "module._orig_mod."])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_saved_inside_a_wrapper_is_read(copy, written, family, prefix):
    folder = copy(family)
    edit(folder, lambda tensors: rename(tensors, lambda name: prefix + name))
    checkpoint = inspect(folder)
    assert not checkpoint.problems and checkpoint.config == inspect(written[family]).config
    (note,) = checkpoint.notes
    assert f"'{prefix}'" in note and str(folder) in note
    equal(load(folder), load(written[family]))
    assert checkpoint.codec.problems() == [] and checkpoint.codec.config == inspect(written[family]).codec.config


def test_a_wrapped_model_gives_the_same_codes(copy, written):
    folder = copy("v3")
    edit(folder, lambda tensors: rename(tensors, lambda name: "base_model.model." + name))
    said = []
    for place in (folder, written["v3"]):
        with Engine(EngineConfig(model=str(place), device="cpu", runner="eager", context=512)) as engine:
            said.append(engine.speak("Hello, the world.", params=SamplingParams(max_frames=12, seed=3)).codes)
    assert len(said[0]) == 12 and torch.equal(*said)


def test_a_body_or_the_embeddings_alone_may_be_wrapped(copy, written):
    body, tied = copy("v3", "body"), copy("v3", "tied")
    edit(body, lambda tensors: rename(tensors, lambda name: name.replace("body.", "model.body.")))
    edit(tied, lambda tensors: rename(tensors, lambda name: name.replace("tied.", "model.tied.")))
    equal(load(body), load(written["v3"]))
    equal(load(tied), load(written["v3"]))
    assert inspect(tied).codec.problems() == []


def test_a_wrapped_v3_serves_as_another_models_codec(copy, written):
    v3, v2 = copy("v3"), copy("v2", "talker")
    edit(v3, lambda tensors: rename(tensors, lambda name: f"model.{name}"))
    assert inspect(v2, v3).codec_folder == v3 and not inspect(v2, v3).problems


def test_prefixed_copies_are_not_taken_for_the_model(copy, written):
    """Averages beside the weights: the reader must not guess which ones are meant."""
    beside, twice = copy("v3", "beside"), copy("v3", "twice")
    edit(beside, lambda tensors: tensors.update({f"ema.{name}": t.clone() for name, t in list(tensors.items())}))
    problems = inspect(beside).problems
    assert "ema.body." in problems[0]

    def double(tensors):
        tensors.update({f"ema.{name}": tensor.clone() for name, tensor in list(tensors.items())})
        rename(tensors, lambda name: name if name.startswith("ema.") else f"model.{name}")

    edit(twice, double)
    with pytest.raises(HiggsError, match=r"'(ema|model)\.' and '(ema|model)\.'.*'body\.' and 'tied\.'"):
        inspect(twice)


def test_tensor_names_of_other_engines_are_listed_with_the_expected_ones(copy):
    """First all under Qwen3's names; then the body alone, of which no name is known."""
    whole, body = copy("v3", "whole"), copy("v3", "body")
    edit(
        whole, lambda tensors: rename(tensors, lambda n: "model." + n.removeprefix("body.").replace("tied.", "multi_"))
    )
    with pytest.raises(HiggsError, match=r"'model\.'.*'body\.' and 'tied\.' \(Higgs TTS 3\)"):
        inspect(whole)
    edit(body, lambda tensors: rename(tensors, lambda n: n.replace("body.", "decoder.")))
    with pytest.raises(HiggsError) as error:
        load(body)
    for part in ("23 tensors", "decoder.layers.0", "body.layers.0."):
        assert part in str(error.value)
