"""Codecs in files: both layouts give equal tensors, and errors name what does not fit."""

import pytest
import torch
from higgs_tts.engine.checkpoint.codec_layout import (
    HF_TO_OLD,
    OLD_TO_HF,
    CodecWeights,
    canonical_name,
    codec_config,
    decoder_shapes,
    encoder_shapes,
    looks_like_codec,
)
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.tools.tiny_codec import TINY, tiny_codec, to_old

POSITION = "semantic_model.encoder.pos_conv_embed.conv"


class Tensors:
    """A TensorFile in memory, split into shards by `shard`."""

    def __init__(self, tensors, shard=lambda name: "codec.bin"):
        self.tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        self.file_of = shard

    def get(self, name, device):
        return self.tensors[name].to(device)


@pytest.fixture(scope="module")
def tiny():
    return tiny_codec(seed=1)


@pytest.fixture
def tensors(tiny):
    return dict(tiny)


def problems(tensors):
    return CodecWeights(Tensors(tensors)).problems()


def read_all(tensors):
    weights = CodecWeights(Tensors(tensors))
    assert weights.problems() == [] and weights.config == TINY
    return {**weights.read("decoder", "cpu"), **weights.read("encoder", "cpu")}


def assert_same(found, wanted):
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def test_transformers_layout_is_read(tensors):
    found = read_all(tensors)
    assert found.keys() == {**decoder_shapes(TINY), **encoder_shapes(TINY)}.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items())


def test_the_old_layout_gives_the_same_tensors(tensors):
    old = to_old(tensors)
    assert not old.keys() & {name for name in tensors if name.startswith(("acoustic_", "fc", "quantizer"))}
    assert_same(read_all(old), tensors)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("encoder.block.0.weight", "acoustic_encoder.conv1.weight"),
        ("encoder.block.1.block.0.block.0.alpha", "acoustic_encoder.block.0.res_unit1.snake1.alpha"),
        ("encoder.block.3.block.1.block.2.alpha", "acoustic_encoder.block.2.res_unit2.snake2.alpha"),
        ("encoder.block.5.block.2.block.3.bias", "acoustic_encoder.block.4.res_unit3.conv2.bias"),
        ("encoder.block.2.block.3.alpha", "acoustic_encoder.block.1.snake1.alpha"),
        ("encoder.block.2.block.4.bias", "acoustic_encoder.block.1.conv1.bias"),
        ("encoder.block.6.alpha", "acoustic_encoder.snake1.alpha"),
        ("encoder.block.7.weight_v", "acoustic_encoder.conv2.weight"),
        ("decoder_2.model.0.weight_g", "acoustic_decoder.conv1.weight"),
        ("decoder_2.model.1.block.0.alpha", "acoustic_decoder.block.0.snake1.alpha"),
        ("decoder_2.model.5.block.1.weight_v", "acoustic_decoder.block.4.conv_t1.weight"),
        ("decoder_2.model.4.block.2.block.1.bias", "acoustic_decoder.block.3.res_unit1.conv1.bias"),
        ("decoder_2.model.4.block.4.block.2.alpha", "acoustic_decoder.block.3.res_unit3.snake2.alpha"),
        ("decoder_2.model.6.alpha", "acoustic_decoder.snake1.alpha"),
        ("decoder_2.model.7.bias", "acoustic_decoder.conv2.bias"),
        ("quantizer.vq.layers.7._codebook.embed", "quantizer.quantizers.7.codebook.embed"),
        ("quantizer.vq.layers.0.project_in.weight", "quantizer.quantizers.0.project_in.weight"),
        ("fc_prior.weight", "fc.weight"),
        ("fc_post1.bias", "fc1.bias"),
        ("fc_post2.bias", "fc2.bias"),
        ("encoder_semantic.conv.conv.weight", "encoder_semantic.conv.weight"),
        (
            "encoder_semantic.conv_blocks.1.res_units.0.conv1.conv.weight",
            "encoder_semantic.conv_blocks.1.res_units.0.conv1.weight",
        ),
        (
            "encoder_semantic.conv_blocks.1.res_units.0.conv2.weight",
            "encoder_semantic.conv_blocks.1.res_units.0.conv2.weight",
        ),
        ("encoder_semantic.conv_blocks.0.conv.conv.bias", "encoder_semantic.conv_blocks.0.conv.bias"),
        (f"{POSITION}.weight_g", f"{POSITION}.parametrizations.weight.original0"),
        (f"{POSITION}.weight_v", f"{POSITION}.parametrizations.weight.original1"),
        (f"{POSITION}.bias", f"{POSITION}.bias"),
    ],
)
def test_old_names_map_to_new_ones(old, new):
    assert canonical_name(old)[0] == new
    assert canonical_name(new) == (new, "")


def test_renames_map_one_to_one():
    assert len(HF_TO_OLD) == len(OLD_TO_HF)


@pytest.mark.parametrize("form", ["weight_{}", "parametrizations.weight.original{}"])
def test_weight_norm_is_folded_over_all_axes_but_the_first(tensors, form):
    direction, length = ("v", "g") if form == "weight_{}" else ("1", "0")
    normed = dict(tensors)
    for module in ("acoustic_decoder.block.0.conv_t1", "acoustic_decoder.conv1", "acoustic_encoder.block.1.conv1"):
        weight = normed.pop(f"{module}.weight")
        flat = weight.flatten(1).norm(dim=1).view(-1, 1, 1)
        normed[f"{module}.{form.format(direction)}"] = weight * torch.rand(len(weight), 1, 1).add(0.5)
        normed[f"{module}.{form.format(length)}"] = flat
    assert_same(read_all(normed), tensors)


def test_position_convolution_keeps_its_weight_norm(tiny, tensors):
    tensors[f"{POSITION}.weight_g"] = tensors.pop(f"{POSITION}.parametrizations.weight.original0")
    tensors[f"{POSITION}.weight_v"] = tensors.pop(f"{POSITION}.parametrizations.weight.original1")
    found = read_all(tensors)
    for half in ("original0", "original1"):
        name = f"{POSITION}.parametrizations.weight.{half}"
        assert torch.equal(found[name], tiny[name])


def test_training_leftovers_are_neither_read_nor_missed(tensors):
    plain = read_all(tensors)
    spoilt = {
        name: torch.full_like(tensor, torch.nan)
        if name.startswith(("decoder_semantic.", "fc1.")) or name.endswith(("embed_avg", "cluster_size", "inited"))
        else tensor
        for name, tensor in tensors.items()
    }
    spoilt["semantic_model.masked_spec_embed"] = torch.full((64,), torch.nan)
    for table in (spoilt, to_old(spoilt)):
        assert_same(read_all(table), plain)
    kept = {name: tensor for name, tensor in tensors.items() if not spoilt[name].isnan().any()}
    assert len(kept) < len(tensors)
    assert_same(read_all(kept), plain)


def test_embed_avg_does_not_stand_in_for_embed(tensors):
    del tensors["quantizer.quantizers.2.codebook.embed"]
    assert problems(tensors) == ["codec.bin: quantizer.quantizers.2.codebook.embed is missing."]


def test_every_missing_tensor_is_named(tensors):
    for name in {**decoder_shapes(TINY), **encoder_shapes(TINY)}:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        assert problems(rest) == [f"codec.bin: {name} is missing."]


def test_every_misshapen_tensor_is_refused(tensors):
    for name in {**decoder_shapes(TINY), **encoder_shapes(TINY)}:
        shape = tensors[name].shape
        wrong = tensors | {name: torch.zeros(shape[0] + 1, *shape[1:])}
        found = problems(wrong)
        assert found and all(text.startswith("codec.bin: ") for text in found)
        with pytest.raises(HiggsError, match=r"codec\.bin"):
            CodecWeights(Tensors(wrong)).read("decoder", "cpu")


def test_a_misshapen_tensor_is_named(tensors):
    tensors["fc2.bias"] = torch.zeros(17)
    assert problems(tensors) == ["codec.bin: fc2.bias has the shape [17], not [16]."]


def test_a_tensor_of_too_few_dimensions_is_named(tensors):
    tensors["acoustic_decoder.block.1.conv_t1.weight"] = torch.zeros(32)
    (found,) = problems(tensors)
    assert found.startswith("codec.bin: acoustic_decoder.block.1.conv_t1.weight")


def test_an_unexpected_tensor_is_named(tensors):
    tensors["acoustic_decoder.block.5.snake1.alpha"] = torch.zeros(1)
    assert problems(tensors) == ["codec.bin: acoustic_decoder.block.5.snake1.alpha does not belong to the codec."]


def test_problems_of_an_old_file_carry_its_own_names(tensors):
    old = to_old(tensors)
    del old["fc_post2.bias"]
    old["decoder_2.model.6.alpha"] = torch.zeros(3)
    old["decoder_2.model.8.weight"] = torch.zeros(3)
    assert problems(old) == [
        "codec.bin: fc_post2.bias is missing.",
        "codec.bin: decoder_2.model.6.alpha has the shape [3], not [1, 2, 1].",
        "codec.bin: decoder_2.model.8.weight does not belong to the codec.",
    ]


def test_half_a_weight_norm_is_a_problem(tensors):
    old = to_old(tensors)
    del old["encoder.block.0.weight_g"]
    (found,) = problems(old)
    assert "codec.bin" in found and "encoder.block.0.weight_v" in found


def test_a_weight_given_twice_is_a_problem(tensors):
    tensors["decoder_2.model.6.alpha"] = tensors["acoustic_decoder.snake1.alpha"]
    (found,) = problems(tensors)
    assert "acoustic_decoder.snake1.alpha" in found and "decoder_2.model.6.alpha" in found


def test_a_weight_norm_of_the_wrong_length_is_a_problem(tensors):
    old = to_old(tensors)
    old["encoder.block.0.weight_g"] = torch.ones(3, 1, 1)
    assert problems(old) == ["codec.bin: encoder.block.0.weight_g has the shape [3, 1, 1], not [2, 1, 1]."]


def test_a_missing_tensor_is_searched_beside_its_neighbours(tensors):
    del tensors["acoustic_decoder.block.3.conv_t1.bias"]
    weights = CodecWeights(Tensors(tensors, lambda name: "2.bin" if name.startswith("acoustic_d") else "1.bin"))
    (problem,) = weights.problems()
    assert "2.bin" in problem and "acoustic_decoder.block.3.conv_t1.bias" in problem


def test_read_refuses_with_file_tensor_and_remedy(tensors):
    del tensors["fc.bias"]
    with pytest.raises(HiggsError, match=r"codec\.bin.*fc\.bias.*Download"):
        CodecWeights(Tensors(tensors)).read("decoder", "cpu")
    del tensors["acoustic_decoder.conv1.weight"]
    with pytest.raises(HiggsError, match=r"codec\.bin.*acoustic_decoder\.conv1\.weight"):
        _ = CodecWeights(Tensors(tensors)).config


def test_a_codec_of_another_frame_length_is_a_problem(tensors):
    tensors["acoustic_decoder.block.4.conv_t1.weight"] = torch.zeros(4, 2, 8)
    (found,) = problems(tensors)
    assert found.startswith("codec.bin: ") and "960" in found


def test_half_precision_is_read_into_fp32_copies(tensors):
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    found = CodecWeights(Tensors(half)).read("decoder", "cpu")
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert torch.equal(found["fc2.weight"], half["fc2.weight"].float())
    found = CodecWeights(Tensors(tensors)).read("decoder", "cpu")
    assert all(tensor.data_ptr() != tensors[name].data_ptr() for name, tensor in found.items())


def test_encoder_and_decoder_hold_the_tensors_they_need(tensors):
    weights = CodecWeights(Tensors(tensors))
    tops = {part: {name.split(".")[0] for name in weights.read(part, "cpu")} for part in ("decoder", "encoder")}
    assert tops["decoder"] == {"quantizer", "fc2", "acoustic_decoder"}
    assert tops["encoder"] == {"quantizer", "fc", "acoustic_encoder", "semantic_model", "encoder_semantic"}


def test_codecs_are_known_by_their_names(tensors):
    assert looks_like_codec(tensors) and looks_like_codec(to_old(tensors))
    assert not looks_like_codec(["model.layers.0.mlp.up_proj.weight", "audio_lm_head.weight", "norm.weight"])
    with pytest.raises(HiggsError, match=r"codec\.bin"):
        CodecWeights(Tensors({"model.norm.weight": torch.zeros(3)}))


def test_the_config_is_read_from_shapes(tensors):
    assert codec_config({name: tuple(tensor.shape) for name, tensor in tensors.items()}) == TINY
    with pytest.raises(KeyError, match=r"quantizers\.0\.codebook\.embed"):
        codec_config({})
