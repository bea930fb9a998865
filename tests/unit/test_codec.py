"""The codec: equal to transformers' own class, exact in windows, robust at the edges."""

import dataclasses
import json
import math
import traceback
import weakref

import pytest
import torch
from higgs_tts.engine.checkpoint.codec_layout import CodecWeights, decoder_shapes, encoder_shapes, unused_shapes
from higgs_tts.engine.codec import model as model_module
from higgs_tts.engine.codec.dac import AcousticDecoder, AcousticEncoder
from higgs_tts.engine.codec.hubert import SemanticModel
from higgs_tts.engine.codec.model import CodecDecoder, build_decoder, build_encoder, open_encoder
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.tools.tiny_codec import TINY, hf_config, hubert_settings, tiny_codec
from higgs_tts.tests.real_shapes import PUBLISHED_CODEC
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def tensors():
    return tiny_codec(seed=3)


@pytest.fixture(scope="module")
def decoder(tensors, in_memory):
    weights = CodecWeights(in_memory(tensors))
    return build_decoder(weights.config, weights.read("decoder", "cpu"))


@pytest.fixture(scope="module")
def encoder(tensors, in_memory):
    weights = CodecWeights(in_memory(tensors))
    return build_encoder(weights.config, weights.read("encoder", "cpu"))


@pytest.fixture(scope="module")
def reference(tensors, tmp_path_factory, codec_of_transformers):
    """transformers' class with the same weights, and its messages on loading them."""
    folder = tmp_path_factory.mktemp("codec")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(TINY)), encoding="utf-8")
    model, info = codec_of_transformers.from_pretrained(folder, output_loading_info=True)
    return model.eval(), info


def draw_codes(frames, batch=1, seed=0):
    return torch.randint(0, 1024, (batch, 8, frames), generator=torch.Generator().manual_seed(seed))


def chirp(samples):
    t = torch.arange(samples, dtype=torch.float64) / 24000
    return (0.3 * torch.sin(2 * math.pi * (180 + 900 * t) * t) + 0.1 * torch.sin(2 * math.pi * 3100 * t)).float()


def test_transformers_loads_the_tiny_codec_whole(reference, tensors):
    model, info = reference
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    state = model.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())


def test_sound_equals_that_of_transformers(reference, decoder):
    codes = draw_codes(60, batch=2)
    with torch.no_grad():
        wanted = reference[0].decode(codes).audio_values[:, 0]
    assert wanted.std() > 0.05
    assert (decoder.decode(codes) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("frames", [1, 2, 3, 26, 75])
def test_codes_equal_those_of_transformers(reference, encoder, frames):
    wav = chirp(960 * frames)
    with torch.no_grad():
        wanted = reference[0].encode(wav[None, None]).audio_codes[0].T
    assert torch.equal(encoder.encode(wav), wanted)


def test_codes_are_the_same_under_every_transformers(encoder):
    # Codes that the comparison above has confirmed. One in ten may break a tie differently on another processor.
    wanted = [
        [57, 959, 772, 148, 95, 770, 229, 741],
        [323, 342, 280, 160, 166, 422, 670, 255],
        [632, 488, 381, 36, 96, 469, 272, 225],
        [327, 144, 167, 635, 1020, 605, 669, 918],
    ]
    found = encoder.encode(chirp(960 * 25))[[0, 8, 16, 24]]
    assert (found == torch.tensor(wanted)).float().mean() >= 0.9


@pytest.mark.parametrize("frames", [0, 1, 2, 7])
def test_a_frame_is_960_samples(decoder, frames):
    wav = decoder.decode(draw_codes(frames, batch=2))
    assert wav.shape == (2, 960 * frames) and wav.dtype == torch.float32


def test_a_long_clip_is_encoded_in_exact_windows(decoder, monkeypatch):
    codes = draw_codes(53)
    whole = decoder(codes)
    lengths = []
    forward = CodecDecoder.forward
    monkeypatch.setattr(model_module, "WINDOW_FRAMES", 16)
    monkeypatch.setattr(
        CodecDecoder, "forward", lambda self, c, *rest: lengths.append(c.shape[2]) or forward(self, c, *rest)
    )
    assert (decoder.decode(codes) - whole).abs().max() < 1e-5
    assert lengths == [26, 36, 31, 25]  # the last one includes the end, and is padded


def test_ten_frames_of_context_are_needed(decoder):
    codes = draw_codes(44)
    whole = decoder(codes)[0]
    window = slice(15 * 960, 25 * 960)
    assert (decoder.decode_span(codes, 15, 25)[0] - whole[window]).abs().max() < 1e-5
    assert (decoder.decode_span(codes, 15, 25, context=9)[0] - whole[window]).abs().max() > 1e-5


@pytest.mark.parametrize("span", [(0, 1), (0, 13), (9, 12), (15, 40), (30, 44), (0, 44)])
def test_spans_equal_the_whole_with_channels_in_either_place(decoder, span, monkeypatch):
    codes, (start, stop) = draw_codes(44, batch=2), span
    monkeypatch.setattr(decoder, "channels_last", False)
    wanted = decoder(codes)[:, start * 960 : stop * 960]
    for decoder.channels_last in (False, True):
        wav = decoder.decode_span(codes, start, stop)
        assert wav.shape == wanted.shape and (wav - wanted).abs().max() < 1e-5


def test_codes_outside_the_codebook_count_as_zero(decoder):
    odd, even = draw_codes(14), draw_codes(14)
    for frame, code in enumerate((1024, 1025, -1, -1000, 1 << 40)):
        odd[0, frame, frame] = code
        even[0, frame, frame] = 0
    assert torch.equal(decoder.decode(odd), decoder.decode(even))
    even[0, 0, 0] = 1023
    assert not torch.equal(decoder.decode(odd), decoder.decode(even))


@pytest.mark.parametrize("samples", [1, 100, 500, 959, 960, 961, 1919, 24_119, 24_700])
def test_a_clip_is_padded_to_whole_frames(encoder, samples):
    frames = -(-samples // 960)
    wav = chirp(samples)
    found = encoder.encode(wav)
    assert found.shape == (frames, 8) and found.dtype == torch.int64
    assert found.min() >= 0 and found.max() < 1024
    padded = torch.zeros(960 * frames)
    padded[:samples] = wav
    assert torch.equal(found, encoder.encode(padded))


def test_an_empty_clip_is_refused(encoder):
    with pytest.raises(HiggsError, match="0 samples"):
        encoder.encode(torch.zeros(0))


def test_weights_load_whole_and_frozen(decoder, encoder):
    for module in (decoder, encoder):
        assert not module.training
        for tensor in (*module.parameters(), *module.buffers()):
            assert tensor.dtype == torch.float32 and not tensor.requires_grad and not tensor.is_meta


def dac_of_transformers(config):
    """Return transformers' DacEncoder and DacDecoder with this codec's two changes to the decoder."""
    from transformers import DacConfig
    from transformers.models.dac.modeling_dac import DacDecoder, DacEncoder

    dac = DacConfig(
        encoder_hidden_size=config.encoder_hidden,
        decoder_hidden_size=config.decoder_hidden,
        downsampling_ratios=list(config.ratios),
    )
    dac.upsampling_ratios, dac.hidden_size = list(config.ratios), config.acoustic_hidden
    decoder = DacDecoder(dac)
    decoder.tanh = torch.nn.Identity()
    for block in decoder.block:
        block.conv_t1.output_padding = (block.conv_t1.stride[0] % 2,)
    return DacEncoder(dac), decoder


@pytest.mark.parametrize("config", [TINY, dataclasses.replace(TINY, ratios=(5, 4, 4, 4, 3), decoder_hidden=96)])
def test_the_acoustic_half_equals_transformers_dac(config):
    """Ours lets speech work without transformers. Equal tensors give equal numbers."""
    torch.manual_seed(0)
    pairs = zip(dac_of_transformers(config), (AcousticEncoder(config), AcousticDecoder(config)), strict=True)
    for (theirs, ours), shape in zip(pairs, [(2, 1, 9600), (2, config.acoustic_hidden, 9)], strict=True):
        state = theirs.state_dict()
        state |= {name: 1 + 0.2 * torch.rand_like(alpha) for name, alpha in state.items() if name.endswith("alpha")}
        theirs.load_state_dict(state)
        ours.load_state_dict(state, strict=True)
        x = torch.randn(shape)
        wanted, found = theirs(x), ours(x)
        assert found.shape == wanted.shape and wanted.std() > 1e-3
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def hubert_of_transformers(config):
    try:
        from transformers import HubertConfig, HubertModel
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"transformers' HuBERT cannot be imported here: {error}")
    return HubertModel(HubertConfig(**hubert_settings(config), attn_implementation="sdpa")).eval()


# Wide enough for three heads; the published kernel is even, and an odd one yields no frame too many.
WIDER = dataclasses.replace(TINY, semantic_hidden=192, semantic_ffn=320, semantic_layers=3, pos_kernel=7, pos_groups=3)


@pytest.mark.parametrize("config", [TINY, WIDER], ids=["tiny", "wider"])
@pytest.mark.parametrize("samples", [400, 4_000, 16_321])
@torch.no_grad()
def test_the_semantic_half_equals_transformers_hubert(config, samples):
    """Ours spares the first voice a slow import. Equal tensors give equal means of hidden states."""
    torch.manual_seed(0)
    theirs, ours = hubert_of_transformers(config), SemanticModel(config).eval()
    state = {name: tensor + 0.2 * torch.randn_like(tensor) for name, tensor in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    ours.load_state_dict(state, strict=True)
    wav = torch.randn(2, samples)
    wanted = torch.stack(theirs(wav, output_hidden_states=True).hidden_states).mean(0)
    found = ours(wav)
    assert found.shape == wanted.shape == (2, (samples - 80) // 320, config.semantic_hidden)
    assert wanted.std() > 0.3 and (samples == 400 or wanted.std(dim=1).min() > 0.03)  # over time
    assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()


@pytest.mark.parametrize("config", [TINY, PUBLISHED_CODEC], ids=["tiny", "published"])
def test_hubert_s_tensors_are_those_of_transformers_in_their_order(config):
    with torch.device("meta"):
        built = [model.state_dict() for model in (SemanticModel(config), hubert_of_transformers(config))]
    ours, theirs = ([(name, tensor.shape) for name, tensor in state.items()] for state in built)
    assert ours == theirs


def test_the_published_codec_has_the_published_size():
    def count(shapes):
        return sum(math.prod(shape) for shape in shapes.values())

    def millions(shapes, prefix):
        return round(count({n: s for n, s in shapes.items() if n.startswith(prefix)}) / 1e6, 1)

    out, way_in, unused = (shapes(PUBLISHED_CODEC) for shapes in (decoder_shapes, encoder_shapes, unused_shapes))
    assert round(count(out) / 1e6, 1) == 21.6
    assert millions(out, "acoustic_decoder.") == 20.2 and millions(way_in, "acoustic_encoder.") == 51.3
    assert millions(way_in, "semantic_model.") == 94.4 and millions(way_in, "encoder_semantic.") == 14.7
    assert millions(unused, "decoder_semantic.") == 16.5
    assert len({**out, **way_in, **unused}) == 528


@pytest.mark.parametrize("seed", [0, 1])
def test_tiny_codec_makes_sound_and_varied_codes(in_memory, seed):
    weights = CodecWeights(in_memory(tiny_codec(seed)))
    wav = build_decoder(weights.config, weights.read("decoder", "cpu")).decode(draw_codes(50, seed=seed))
    assert 0.05 < wav.square().mean().sqrt() < 0.3 and wav.abs().max() <= 1
    codes = build_encoder(weights.config, weights.read("encoder", "cpu")).encode(chirp(48_000))
    assert all(len(codes[:, book].unique()) > 10 for book in range(8))


def test_tiny_codec_follows_its_seed(tensors):
    again, other = tiny_codec(3), tiny_codec(4)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert any(not torch.equal(other[name], tensor) for name, tensor in tensors.items())


def test_a_failed_decode_keeps_no_tensor(decoder):
    heard = torch.tensor([3], dtype=torch.int32)
    kept = weakref.ref(heard)

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with decoder.acoustic_decoder.register_forward_pre_hook(fail), pytest.raises(torch.OutOfMemoryError) as failed:
        decoder(torch.zeros(1, 8, 4, dtype=torch.int64), heard)
    traceback.clear_frames(failed.tb)
    del heard
    assert kept() is None


def test_a_failed_voice_leaves_no_encoder_in_memory(tensors, in_memory):
    """A live exception may hold its frames."""
    weights = CodecWeights(in_memory(tensors))
    read = weights.read("encoder", "cpu")
    with (
        pytest.raises(HiggsError, match="0 samples") as failed,
        open_encoder(weights.config, read, torch.device("cpu")) as encode,
    ):
        encode(torch.zeros(0))
    frames = [frame for frame, _ in traceback.walk_tb(failed.tb)]
    (encoder,) = {frame.f_locals["encoder"] for frame in frames if "encoder" in frame.f_locals}
    parts = [*encoder.parameters(), *encoder.buffers()]
    assert not read and len(parts) > 100 and not any(part.numel() for part in parts)
