"""The stream of sound beside the talker: order and completeness when windows become ready late, and its CPU form."""

import pathlib

import pytest
import torch
from higgs_tts.engine.checkpoint.codec_layout import CodecWeights
from higgs_tts.engine.codec.model import StreamDecoder, build_decoder
from higgs_tts.engine.codec.snake import SnakeKernel, snake
from higgs_tts.engine.codec.stream import SideStreamDecoder, make_stream
from higgs_tts.engine.cuda import nvrtc
from higgs_tts.engine.memory import PrivatePool
from higgs_tts.engine.tools.tiny_codec import tiny_codec

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "engine"


@pytest.fixture(scope="module")
def decoder(in_memory):
    weights = CodecWeights(in_memory(tiny_codec(seed=3)))
    return build_decoder(weights.config, weights.read("decoder", "cpu"))


class Event:
    """Ready when told, or when waited for."""

    ready = False

    def query(self):
        return self.ready

    def synchronize(self):
        self.ready = True


class Held(SideStreamDecoder):
    """Windows that stand for themselves: their wav is there, and ready when the test says so."""

    def __init__(self, decoder, **options):
        StreamDecoder.__init__(self, decoder, **options)
        self.events = []

    def _begin(self, codes, start, stop):
        self.events.append(Event())
        return self.events[-1], StreamDecoder._decode(self, codes, start, stop)


def draw_codes(frames, seed=0):
    return torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(seed))


def test_pushes_give_only_what_is_ready_and_finish_the_rest(decoder):
    codes = draw_codes(60)
    stream, out = Held(decoder, emit=1), []
    for size in (11, 2, 4, 8, 25):
        out.append(stream.push(codes[:size]))
        codes = codes[size:]
    assert len(stream.events) == 5 and not sum(map(len, out))
    stream.events[1].ready = True
    assert not len(stream.poll())  # the second may not come before the first
    stream.events[0].ready = True
    out.append(stream.poll())
    assert len(out[-1]) == 960 * 3 and not len(stream.poll())
    stream.events[2].ready = stream.events[3].ready = True
    out.append(stream.push(codes))
    assert len(out[-1]) == 960 * 12 and not len(stream.poll())
    out.append(stream.finish())
    whole = decoder(draw_codes(60).T[None])[0]
    assert torch.cat(out).shape == whole.shape
    assert (torch.cat(out) - whole).abs().max() < 1e-5


def test_a_finished_stream_starts_anew(decoder):
    stream, codes = Held(decoder, emit=4), draw_codes(18)
    first = torch.cat([stream.push(codes), stream.finish()])
    assert not len(stream.finish()) and not len(stream.poll())
    assert torch.equal(torch.cat([stream.push(codes), stream.finish()]), first)
    stream.push(codes)
    stream.reset()  # a cancelled utterance leaves nothing to the next
    assert torch.equal(torch.cat([stream.push(codes), stream.finish()]), first)


def test_on_a_cpu_it_is_the_plain_stream(decoder):
    pool, codes = PrivatePool(torch.device("cpu")), draw_codes(44)
    stream = make_stream(decoder, pool, emit=1)
    assert type(stream) is StreamDecoder
    wav = [stream.push(codes[:11]), stream.poll(), stream.push(codes[11:]), stream.finish()]
    assert [len(piece) // 960 for piece in wav] == [1, 0, 33, 10]
    assert (torch.cat(wav) - decoder(codes.T[None])[0]).abs().max() < 1e-5


def test_the_activation_is_transformers_own(decoder):
    from transformers.models.dac.modeling_dac import Snake1d

    theirs = Snake1d(24)
    theirs.alpha.data.uniform_(0.2, 3.0)
    x = torch.randn(2, 24, 50) * 4
    kept = x.clone()
    assert (snake(x, theirs.alpha, 50) - theirs(x)).abs().max() < 1e-6
    assert torch.equal(x, kept)
    assert torch.equal(snake(x, theirs.alpha, 7)[..., :7], snake(x, theirs.alpha, 50)[..., :7])
    assert not snake(x, theirs.alpha, 7)[..., 7:].any()


@pytest.mark.parametrize("capability", ["75", "80", "86", "89", "90", "100", "120"])
def test_the_activation_s_kernel_compiles(capability):
    try:
        nvrtc._nvrtc()
    except nvrtc.KernelUnavailable as error:
        pytest.skip(str(error))
    assert nvrtc.compile_cubin(nvrtc.read_source(ENGINE / "codec" / "snake.cu"), capability, ())


def test_the_activation_s_kernel_is_refused_without_a_gpu():
    with pytest.raises(nvrtc.KernelUnavailable, match="NVIDIA"):
        SnakeKernel(torch.device("cpu"))


def test_another_activation_takes_the_place_of_every_one(decoder):
    codes, calls = draw_codes(3).T[None], []
    expected = decoder(codes)
    decoder.use(lambda x, alpha, valid: calls.append(alpha) or snake(x, alpha, valid))
    assert torch.equal(decoder(codes), expected)
    assert len(calls) == len({alpha.data_ptr() for alpha in calls}) == 36
    decoder.use(snake)
    assert torch.equal(decoder(codes), expected) and len(calls) == 36


@pytest.mark.parametrize("frames", [1, 2, 11, 20, 44, 45])
def test_a_window_padded_to_a_fixed_length_is_exact(decoder, frames):
    codes = draw_codes(frames, seed=frames).T[None].repeat(2, 1, 1)
    assert (decoder(codes, 45) - decoder(codes)).abs().max() < 1e-5
    assert decoder(codes).shape == (2, 960 * frames)  # and the padding is forgotten


def test_a_stream_of_two_lengths_is_exact(decoder):
    codes, lengths = draw_codes(130), []
    real = type(decoder).forward
    decoder.forward = lambda codes, length=0: (
        lengths.append(max(length, codes.shape[2])) or real(decoder, codes, length)
    )
    stream, out, rest = StreamDecoder(decoder, emit=1, lengths=(45, 70)), [], codes
    for size in (11, 2, 4, 8, 25, 50):
        out.append(stream.push(rest[:size]))
        rest = rest[size:]
    wav = torch.cat([*out, stream.push(rest), stream.finish()])
    del decoder.forward
    assert lengths == [45, 45, 45, 45, 45, 70, 70, 45]
    assert (wav - decoder(codes.T[None])[0]).abs().max() < 1e-5
