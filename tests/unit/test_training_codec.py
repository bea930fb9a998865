"""Training the codec: speech beside its codes, and a decoder whose training leaves the codes unchanged."""

import json

import pytest
import torch
import transformers
from higgs_tts.engine import EMBEDDED
from higgs_tts.engine.checkpoint.codec_layout import decoder_shapes, encoder_shapes, unused_shapes
from higgs_tts.engine.checkpoint.find_codec import open_codec
from higgs_tts.engine.checkpoint.talker_layout import V3_CODEC
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.codec.model import build_decoder
from higgs_tts.engine.core.config import FRAME_SAMPLES
from higgs_tts.engine.prompt.card import CARD
from higgs_tts.engine.tools.tiny_codec import hf_config
from higgs_tts.training import export, train_codec
from higgs_tts.training.bank import Bank, CodedBank
from higgs_tts.training.codec_model import CONFIG, Codec, load, save
from higgs_tts.training.critics import Critics
from higgs_tts.training.shards import STEP
from higgs_tts.training.talker import Shape, Talker
from higgs_tts.training.weights import save_talker
from safetensors.torch import load_file, save_file

FRAMES = {"slt": (5, 9), "rms": (7,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained codec whose books differ from each other."""
    torch.manual_seed(0)
    codec = Codec()
    codec.books.embed.normal_()
    codec.books.total.copy_(codec.books.embed)
    path = tmp_path_factory.mktemp("codec")
    save(codec, path, minutes=1.0, steps=1000)
    return path


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """A shard of noise, each utterance a little short of whole frames."""
    path, made, total = tmp_path_factory.mktemp("speech"), [], 0
    for speaker, lengths in FRAMES.items():
        for frames in lengths:
            made.append({"text": "", "speaker": speaker, "start": total, "samples": frames * FRAME_SAMPLES - 100})
            total += made[-1]["samples"]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(-8000, 8000, (total,), generator=generator).to(torch.int16)
    (path / "train-000.i16").write_bytes(noise.numpy().tobytes())
    (path / "train-000.json").write_text(json.dumps(made))
    return path


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A shard whose samples and symbols both count its hundredths of a second, from 1 in each utterance."""
    path, made, total = tmp_path_factory.mktemp("told"), [], 0
    steps = (37, 20)
    for speaker, count in zip(FRAMES, steps, strict=True):
        made.append({"text": "", "speaker": speaker, "start": total * STEP, "samples": count * STEP})
        total += count
    count = torch.cat([torch.arange(1, steps + 1) for steps in steps])
    (path / "000.i16").write_bytes((count * 100).to(torch.int16).repeat_interleave(STEP).numpy().tobytes())
    (path / "000.sym").write_bytes(count.to(torch.uint8).numpy().tobytes())
    (path / "000.json").write_text(json.dumps(made))
    return path


def test_each_frame_is_paired_with_the_sound_in_its_middle(folder, told):
    wav, said = Bank(told, "cpu").draw(20, 6 * FRAME_SAMPLES)
    middles = wav[:, 0, FRAME_SAMPLES // 2 :: FRAME_SAMPLES]
    assert said.shape == (20, 6) and said.unique().numel() > 6
    gain = middles / (said * 100 / 32768)  # a batch has several levels
    torch.testing.assert_close(gain, gain[:, :1].expand(-1, 6))
    _, wav, said = CodedBank(told, folder, "cpu", "slt", 1.0).draw(20, 4)
    whole = said[said != 0]  # the last frame of an utterance may be half silence
    middles = wav[:, 0, FRAME_SAMPLES // 2 :: FRAME_SAMPLES]
    assert len(whole) > 40
    torch.testing.assert_close((middles * 32768 / 100)[said != 0], whole.float())


def test_labels_are_dropped_unless_all_shards_have_them(told, speech, tmp_path):
    for path in (*told.iterdir(), *speech.iterdir()):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    bank = Bank(tmp_path, "cpu")
    assert bank.symbols is None and not bank.draw(2, 2 * FRAME_SAMPLES)[1].any()


@torch.inference_mode(False)
def test_a_listener_and_a_reader_are_trained_beside_the_codec(told, tmp_path):
    pytest.importorskip("torchaudio", reason="the spectral loss takes its mel bands from torchaudio")
    settings = train_codec.Settings(told, tmp_path, 1.0, batch=2, frames=8, critic_share=2.0, device="cpu")
    run = train_codec.begin(settings, resume=False)
    run.step()
    before = {name: {k: v.clone() for k, v in part.state_dict().items()} for name, part in run.judges.items()}
    run.step()
    changed = {
        name for name, part in run.judges.items()
        if any(not torch.equal(v, before[name][k]) for k, v in part.state_dict().items())
    }  # fmt: skip
    assert changed == {"listener", "reader"}
    assert run.sound and {"told", "misheard", "distance"} < run.losses.keys() and float(run.losses["made wrong"]) <= 1
    run.keep()
    assert {f"{name}.safetensors" for name in run.judges} < {path.name for path in tmp_path.iterdir()}


def test_the_exported_folder_has_every_tensor_that_transformers_needs(folder):
    held = load_file(folder / "model.safetensors")
    wanted = {**encoder_shapes(CONFIG), **decoder_shapes(CONFIG), **unused_shapes(CONFIG)}
    del wanted["semantic_model.masked_spec_embed"]
    assert {name: tuple(tensor.shape) for name, tensor in held.items()} == {n: tuple(s) for n, s in wanted.items()}


def test_transformers_loads_the_exported_folder_strictly(folder, codec_of_transformers):
    held = load_file(folder / "model.safetensors")
    model = codec_of_transformers(transformers.HiggsAudioV2TokenizerConfig(**hf_config(CONFIG)))
    model.load_state_dict({name: tensor.float() for name, tensor in held.items()}, strict=True)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """An untrained talker of test size."""
    torch.manual_seed(0)
    shape = Shape(text_vocab=320, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=96)
    path = tmp_path_factory.mktemp("talker")
    save_talker(path, shape, Talker(shape).state_dict(), {})
    return path


@pytest.mark.parametrize("older", [False, True])
def test_the_export_contains_the_running_sums(talker, folder, tmp_path, older):
    """Also for a codec from before they were kept."""
    codec, sums = tmp_path / "codec", [f"quantizer.quantizers.{book}.codebook.embed_avg" for book in range(8)]
    codec.mkdir()
    trained = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in trained.items() if not (older and name in sums)}
    save_file(kept, codec / "model.safetensors")
    export.export(talker, codec, tmp_path / "whole", 3.2)
    assert (tmp_path / "whole" / CARD).read_bytes() == (EMBEDDED / CARD).read_bytes()
    whole = open_folder(tmp_path / "whole").under(V3_CODEC)
    assert set(whole.shapes) == set(trained)
    assert all(torch.equal(whole.get(name), trained[name]) for name in trained)


@torch.no_grad()
def test_sound_in_training_equals_the_engine_s(folder):
    codec, codes = Codec(), torch.randint(1024, (2, 3, 8), generator=torch.Generator().manual_seed(1))
    assert load(codec, folder) == (1.0, 1000)
    weights = open_codec(folder).weights
    theirs = build_decoder(weights.config, weights.read("decoder", "cpu"))(codes.transpose(1, 2))
    assert theirs.shape == (2, 3 * FRAME_SAMPLES) and theirs.std() > 1e-4
    assert torch.allclose(codec.decode(codes)[:, 0], theirs, atol=1e-5 + 2e-3 * float(theirs.abs().max()))


def test_speech_is_stored_with_its_own_codes(folder, speech):
    bank = CodedBank(speech, folder, "cpu", "slt", 1.0)
    count = sum(map(sum, FRAMES.values()))
    assert bank.codes.shape == (count, 8) and bank.frames.shape == (count, FRAME_SAMPLES)
    assert bank.focus.tolist() == list(range(sum(FRAMES["slt"])))
    codes, wav, said = bank.draw(3, 4)
    assert not said.any()  # these shards do not tell
    assert codes.shape == (3, 4, 8) and wav.shape == (3, 1, 4 * FRAME_SAMPLES)
    frames = wav[0].view(4, FRAME_SAMPLES)
    start = next(i for i in range(count) if torch.equal(bank.frames[i].float() / 32768, frames[0]))
    assert start in bank.focus
    assert torch.equal(bank.frames[start : start + 4].float() / 32768, frames)
    assert torch.equal(bank.codes[start : start + 4].long(), codes[0])


@torch.inference_mode(False)
@pytest.mark.parametrize("critic_share", [0.0, 2.0])
def test_training_the_decoder_further_leaves_the_codes_unchanged(folder, speech, tmp_path, critic_share):
    pytest.importorskip("torchaudio", reason="the spectral loss takes its mel bands from torchaudio")
    before = load_file(folder / "model.safetensors")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = train_codec.Settings(
        speech, tmp_path, 1.01, batch=1, frames=8, critic_frames=4, critic_share=critic_share, fixed_codes=True,
        voice="slt", device="cpu",
    )  # fmt: skip
    train_codec.train(settings, resume=True)
    after = load_file(tmp_path / "model.safetensors")
    changed = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"fc2", "acoustic_decoder"}
    assert after.keys() == before.keys()


@torch.no_grad()
def test_every_critic_responds_at_the_beginning():
    torch.manual_seed(0)
    for states in Critics()(torch.randn(2, 8 * FRAME_SAMPLES)):
        assert all(0.1 < float(state.std()) < 10 for state in states)
