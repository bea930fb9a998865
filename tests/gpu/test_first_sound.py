"""Sound during speech: the codec on its own stream, cached prefixes, and the memory both take and free."""

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Listener, SamplingParams, Voice
from higgs_tts.engine.codec.model import build_decoder, pack
from higgs_tts.engine.codec.snake import SnakeKernel, snake
from higgs_tts.engine.codec.stream import SideStreamWindows
from higgs_tts.engine.codec.waveform import LENGTHS, Waveform
from higgs_tts.engine.codec.window_graphs import WindowGraphs
from higgs_tts.engine.device.memory import PrivatePool
from higgs_tts.tests import real_shapes
from higgs_tts.tests.device_memory import free_bytes, off

CUDA = torch.device("cuda", 0)
TEXT = "One two three four five six seven."
PARAMS = SamplingParams(max_frames=90, seed=3)
SIZES = (11, 2, 4, 8, 25, 25, 25, 25)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: real_shapes.write(tmp_path_factory.mktemp(family), family, 3, True) for family in ("v3", "v2")}


def config(folder, **changes):
    return EngineConfig(**{"model": str(folder), "device": "cuda:0", "context": 1024, **changes})


def voice(seed, frames=120):
    g = torch.Generator().manual_seed(seed)
    return Voice(torch.randint(0, 1024, (frames, 8), generator=g), "A reference of a few words.")


def heard(decoder, pool, codes, sizes=SIZES):
    """Return the sound of `codes` pushed in parts of `sizes`, with a listener."""
    waveform = Waveform(decoder, pool, WindowGraphs(decoder, pool, captures=False))
    assert type(waveform.windows) is SideStreamWindows
    sound = waveform.sound(streamed=True)
    for size in (*sizes, len(codes)):
        sound.push(codes[:size])
        while sound.advance():
            pass
        codes = codes[size:]
    sound.finish()
    waveform.finish()
    return sound.new()


@pytest.fixture
def decoder(folders):
    with Engine(config(folders["v3"])) as engine:
        weights = engine.checkpoint.codec
    return build_decoder(weights.config, weights.read("decoder", CUDA))


def test_the_side_stream_equals_the_current_one_and_nearly_the_whole_decode(decoder, monkeypatch):
    pool, codes = PrivatePool(CUDA), torch.randint(0, 1024, (160, 8))

    def at_once(windows, batch, rows):
        """Decode a window on the current stream, and wait for it."""
        (window,) = batch
        length = next(length for length in LENGTHS if length >= len(window.codes))
        wav = decoder.decode_packed(pack([window.codes], 1, length).cuda())[0, window.samples].cpu()
        event = torch.cuda.Event()
        event.record()
        return event, [wav]

    side = heard(decoder, pool, codes)
    monkeypatch.setattr(SideStreamWindows, "begin", at_once)
    assert torch.equal(side, heard(decoder, pool, codes))
    whole = decoder(codes.t()[None].cuda())[0].clamp(-1, 1).cpu()
    assert side.shape == whole.shape
    # cuDNN takes another algorithm for another length, and rounds to TF32 in it.
    assert off(side, whole) < 5e-3
    pool.close()


def test_the_side_stream_is_exact_in_fp64(decoder):
    pool, codes = PrivatePool(CUDA), torch.randint(0, 1024, (160, 8))
    wide = decoder.double()
    side = heard(wide, pool, codes)
    assert (side - wide(codes.t()[None].cuda())[0].clamp(-1, 1).cpu()).abs().max() < 1e-9
    pool.close()


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_windows_decoded_together_sound_as_alone(decoder, rows):
    decoder.use(kernel := SnakeKernel(CUDA))
    clips = [torch.randint(0, 1024, (frames, 8)) for frames in (220, 210, 37, 1, 220, 99, 150, 220)][-rows:]

    def together(clips):
        return decoder.decode_packed(pack(clips, rows, 220).cuda())

    among = together(clips)
    for place, codes in enumerate(clips):
        (alone, *_), sound = together([codes]), slice(0, len(codes) * 960)
        whole = decoder.decode_packed(pack([codes], 1, 220).cuda())[0, sound]
        for one in (alone[sound], among[place, sound]):  # other algorithms, in TF32
            assert off(one, whole) < 5e-3
        assert torch.equal(together(clips), among), "the same each time"
    torch.cuda.synchronize()
    decoder.use(snake)
    kernel.close()


@pytest.mark.parametrize("shape", [(1, 32, 1), (1, 512, 8), (2, 96, 999), (1, 32, 43_200)])
def test_the_activation_s_kernel_equals_its_twin(shape):
    kernel = SnakeKernel(CUDA)
    x, alpha = torch.randn(shape, device=CUDA) * 3, torch.rand(1, shape[1], 1, device=CUDA) * 3 + 0.1
    for unit in (1, 3):
        for heard in (None, *(torch.arange(shape[0], device=CUDA).int() + n for n in (shape[2] // 3, 0))):
            ours = kernel(x, alpha, heard, unit)
            assert (ours - snake(x, alpha, heard, unit)).abs().max() < 1e-5
            assert heard is None or not ours[-1, :, int(heard[-1]) * unit :].any()
            assert torch.equal(kernel(x.transpose(1, 2).contiguous().transpose(1, 2), alpha, heard, unit), ours)
    torch.cuda.synchronize()
    kernel.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_streamed_sound_equals_the_returned_sound(folders, family):
    with Engine(config(folders[family])) as engine:
        heard = []
        speech = engine.speak(TEXT, voice(1), PARAMS, listener=Listener(on_audio=heard.append))
        assert len(heard) > 3 and len(heard[0]) < len(heard[-2])
        assert torch.equal(torch.cat(heard), speech.wav) and len(speech.wav) == 90 * 960
        assert torch.equal(engine.speak(TEXT, voice(1), PARAMS).codes, speech.codes)


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_speech_does_not_depend_on_kept_prefixes(folders, family):
    said = []
    for is_kept in (False, True):
        with Engine(config(folders[family])) as engine:
            for _ in range(2):
                if not is_kept:
                    engine.loaded.prefixes.clear()
                said.append(engine.speak(TEXT, voice(1), PARAMS))
            assert len(engine.loaded.prefixes) == 1
    for speech in said[1:]:
        assert torch.equal(speech.codes, said[0].codes) and torch.equal(speech.wav, said[0].wav)


def test_closing_returns_all_memory(folders):
    def speak_to(engine):
        for seed in range(6):
            engine.speak(TEXT, voice(seed), PARAMS, listener=Listener(on_audio=lambda wav: None))

    with Engine(config(folders["v3"])) as engine:  # whatever the process keeps for good is there after this
        speak_to(engine)
    before = free_bytes()
    engine = Engine(config(folders["v3"]))
    engine.open()
    engine.trim()
    trimmed = free_bytes()
    speak_to(engine)
    kept = engine.loaded.prefixes.nbytes()
    assert len(engine.loaded.prefixes) == 4 and kept > 4 * 120 * 3 * 8 * 128 * 2 * 2
    engine.trim()
    assert free_bytes() == trimmed
    speak_to(engine)

    def stop(wav):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.speak(TEXT, voice(1), PARAMS, listener=Listener(on_audio=stop))
    engine.close()
    assert free_bytes() == before
