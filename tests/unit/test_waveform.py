"""Codes to sound in windows: exact seams, one schedule, and order if windows are ready late."""

import weakref
from collections import deque

import pytest
import torch
from higgs_tts.engine.checkpoint.codec_layout import CodecWeights
from higgs_tts.engine.codec import waveform as waveform_module
from higgs_tts.engine.codec.model import build_decoder, pack
from higgs_tts.engine.codec.snake import SnakeKernel, snake
from higgs_tts.engine.codec.stream import InlineWindows, SideStreamWindows
from higgs_tts.engine.codec.waveform import Waveform
from higgs_tts.engine.cuda import nvrtc
from higgs_tts.engine.device.memory import PrivatePool
from higgs_tts.engine.tools.tiny_codec import tiny_codec


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


class Held(SideStreamWindows):
    """Windows that are decoded at once, and ready when the test says so."""

    def __init__(self, decoder):
        self.decoder, self._batches, self.events, self.lengths = decoder, deque(), [], (45,)

    def begin(self, windows, rows):
        self.events.append(Event())
        return self.events[-1], [self.decoder.decode_span(w.codes.T[None], w.start, w.stop)[0] for w in windows]


class Ruler:
    """Replaces a decoder, and notes the frames of each window, given and returned."""

    def __init__(self):
        self.sizes, self.given = [], []

    def decode_span(self, codes, start, stop):
        self.sizes.append(stop - start)
        self.given.append(codes.shape[2])
        return torch.zeros(codes.shape[0], 960 * (stop - start))


def draw_codes(frames, seed=0):
    return torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(seed))


def made(decoder, streamed=False):
    waveform = Waveform(decoder, PrivatePool(torch.device("cpu")))
    return waveform, waveform.sound(streamed)


HEARD = weakref.WeakKeyDictionary()


def so_far(sound):
    """Return all samples that a sound has given."""
    HEARD[sound] = torch.cat([HEARD.get(sound, torch.empty(0)), sound.new()])
    return HEARD[sound]


def push(sound, codes, sizes=(1,)):
    """Push `codes` in parts of `sizes`, the last size repeated. Returns the samples present after each window."""
    there, sizes = [], list(sizes)
    while len(codes):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        sound.push(codes[:size])
        while sound.advance():
            there.append(len(so_far(sound)))
        codes = codes[size:]
    return there


def finished(waveform, sound):
    sound.finish()
    waveform.finish()
    assert sound.is_complete
    return so_far(sound)


PUSHES = [[1], [3], [13], [44], [100], [0, 1, 9, 0, 20, 2, 1], [22, 0, 1, 12, 6]]


@pytest.mark.parametrize("sizes", PUSHES, ids=str)
@pytest.mark.parametrize("streamed", [False, True])
def test_sound_equals_one_decode_however_the_codes_arrive(decoder, streamed, sizes, monkeypatch):
    monkeypatch.setattr(Waveform, "size", 25)
    codes = draw_codes(144)
    waveform, sound = made(decoder, streamed)
    there = push(sound, codes, sizes)
    assert there == sorted(there) and len(there) > 3
    expected, heard = decoder(codes.T[None])[0].clamp(-1, 1), finished(waveform, sound)
    assert heard.shape == expected.shape and (heard - expected).abs().max() < 1e-5
    waveform, again = made(decoder, streamed)
    push(again, codes)
    assert torch.equal(heard, finished(waveform, again))


def test_sounds_made_together_equal_those_made_alone(decoder):
    waveform = Waveform(decoder, PrivatePool(torch.device("cpu")))
    said = [draw_codes(frames, seed=frames) for frames in (40, 77, 130)]
    sounds = [waveform.sound(streamed=number == 0) for number in range(3)]
    for start in range(0, 130, 7):
        for sound, codes in zip(sounds, said, strict=True):
            push(sound, codes[start : start + 7])
    for number, (sound, codes) in enumerate(zip(sounds, said, strict=True)):
        alone, one = made(decoder, streamed=number == 0)
        push(one, codes)
        assert torch.equal(finished(waveform, sound), finished(alone, one))


@pytest.mark.parametrize("frames", [0, 1, 10, 11, 20, 21])
def test_short_sounds_equal_one_decode(decoder, frames):
    codes = draw_codes(frames, seed=9)
    waveform, sound = made(decoder, streamed=True)
    push(sound, codes)
    assert not sound.is_complete
    expected = decoder(codes.T[None])[0].clamp(-1, 1) if frames else torch.empty(0)
    heard = finished(waveform, sound)
    assert heard.shape == expected.shape and torch.allclose(heard, expected, atol=1e-5, rtol=0)


def test_windows_depend_only_on_frame_numbers():
    for sizes in PUSHES[:5]:
        alone, listened = Ruler(), Ruler()
        for ruler, streamed in ((alone, False), (listened, True)):
            waveform, sound = made(ruler, streamed)
            push(sound, draw_codes(190), sizes)
            finished(waveform, sound)
        assert alone.sizes == [75, 75, 40]
        assert listened.sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 50, 28]


def test_only_one_window_of_codes_is_kept():
    waveform, sound = made(ruler := Ruler())
    for size in [1] * 3000 + [4] * 300:
        sound.push(torch.zeros(size, 8, dtype=torch.int64))
        sound.advance()
        lists = (held for held in vars(sound).values() if isinstance(held, list))
        codes = [part for held in lists for part in held if part.dtype == torch.int64]
        assert 0 < sum(map(len, codes)) < 10 + 75 + 10
        assert sum(part.untyped_storage().nbytes() for part in codes) < 8 * 8 * (10 + 75 + 10)
    finished(waveform, sound)
    assert sum(ruler.sizes) == 4200 and max(ruler.given) == 10 + 75 + 10 and len(ruler.sizes) <= 4200 // 75 + 1


def test_a_closed_waveform_keeps_no_sound(decoder, monkeypatch):
    """Also if windows are under way, and an error keeps the waveform."""
    windows = Held(decoder)
    windows.close = lambda: None
    monkeypatch.setattr(waveform_module, "make_windows", lambda *_: windows)
    waveform, sound = made(decoder, streamed=True)
    assert push(sound, draw_codes(20), [20]) and not windows.events[-1].ready
    kept = weakref.ref(sound)
    waveform.close()
    del sound
    assert kept() is None


def test_late_windows_come_in_order_and_finish_waits_for_the_rest(decoder, monkeypatch):
    windows = Held(decoder)
    monkeypatch.setattr(waveform_module, "make_windows", lambda *_: windows)
    (waveform, sound), codes = made(decoder, streamed=True), draw_codes(60)
    assert waveform.first_frames == [11, 13]
    assert push(sound, codes[:11], [11]) == [960] and not waveform.awaited  # waited for
    assert push(sound, codes[11:20], [9]) == [960] * 3 and len(windows.events) == 4
    windows.events[2].ready = True
    waveform.poll()
    assert len(so_far(sound)) == 960, "the third may not come before the second"
    windows.events[1].ready = True
    waveform.poll()
    assert len(so_far(sound)) == 960 * 6
    push(sound, codes[20:], [40])
    sound.finish()
    assert not sound.is_complete
    heard, expected = finished(waveform, sound), decoder(codes.T[None])[0].clamp(-1, 1)
    assert heard.shape == expected.shape and (heard - expected).abs().max() < 1e-5


@pytest.mark.parametrize("frames", [4, 6, 9, 10, 60])
def test_early_first_windows_wait_for_fewer_frames_and_the_others_are_exact(decoder, frames):
    codes = draw_codes(frames)
    waveform = Waveform(decoder, PrivatePool(torch.device("cpu")), early=True)
    sound, exact = waveform.sound(streamed=True), decoder(codes.T[None])[0].clamp(-1, 1)
    assert waveform.first_frames == [6, 10]
    there = push(sound, codes)
    assert there[:1] == [960] * (frames >= 6) and len(there) == {4: 0, 6: 1, 9: 1, 10: 2, 60: 7}[frames]
    heard = finished(waveform, sound)
    assert heard.shape == exact.shape and (heard[2880:] - exact[2880:]).abs().max() < 1e-5
    for start, stop, seen in ((0, 960, 6), (960, 2880, 10)):
        part = decoder(codes[:seen].T[None])[0].clamp(-1, 1)[start:stop]
        assert (heard[start:stop] - part).abs().max() < 1e-5
        assert frames <= seen or (part - exact[start:stop]).abs().max() > 1e-5, "the frames after it count"


class Together(Held):
    """Windows that are decoded together, and ready at once. `fits`: how many fit in memory at a time."""

    fits = 8

    def __init__(self, decoder):
        super().__init__(decoder)
        self.batches = []

    def begin(self, windows, rows):
        if rows > self.fits:
            raise torch.cuda.OutOfMemoryError("planted")
        self.batches.append((len(windows), rows))
        event = Event()
        event.ready = True
        if rows == 1:
            return event, super().begin(windows, rows)[1]
        wavs = self.decoder.decode_packed(pack([window.codes for window in windows], rows, 45))
        return event, [wav[window.samples] for wav, window in zip(wavs, windows, strict=False)]


@pytest.fixture
def together(decoder, monkeypatch):
    """Return (waveform, its windows), of 25 frames and decoded three at a time."""
    windows = Together(decoder)
    monkeypatch.setattr(Waveform, "size", 25)
    monkeypatch.setattr(waveform_module, "make_windows", lambda *_: windows)
    waveform = Waveform(decoder, PrivatePool(torch.device("cpu")))
    waveform.together = 3
    return waveform, windows


def test_windows_of_several_sounds_decoded_together_sound_as_alone(decoder, together):
    waveform, windows = together
    said = [draw_codes(frames, seed=frames) for frames in (40, 77, 130, 12)]
    sounds = [waveform.sound() for _ in said]
    for start in range(0, 130, 35):
        for sound, codes in zip(sounds, said, strict=True):
            push(sound, codes[start : start + 35], [35])
            if start + 35 >= len(codes) > start:
                sound.finish()
    waveform.finish()
    assert windows.batches == [*[(3, 3)] * 3, (2, 3)]  # 2, 3, 5 and 1 windows
    for sound, codes in zip(sounds, said, strict=True):
        expected, heard = decoder(codes.T[None])[0].clamp(-1, 1), so_far(sound)
        assert sound.is_complete and heard.shape == expected.shape and (heard - expected).abs().max() < 1e-5


def test_streamed_windows_start_at_the_next_poll_and_no_window_waits_for_long(together):
    waveform, windows = together
    other, heard = waveform.sound(), waveform.sound(streamed=True)
    push(other, draw_codes(50), [50])
    push(heard, draw_codes(17), [17])
    assert windows.batches == []
    waveform.poll()
    assert windows.batches == [(1, 1)] * 3 and len(so_far(heard)) == 6 * 960
    for _ in range(100):
        waveform.poll()
    assert windows.batches == [(1, 1)] * 3 + [(1, 3)] and len(so_far(other)) == 25 * 960


def test_an_open_session_captures_all_groups_before_the_first_stream(together, monkeypatch):
    waveform, windows = together
    captured, begun = [], []
    monkeypatch.setattr(windows, "capture", lambda rows, length: captured.append((rows, length)))
    monkeypatch.setattr(windows, "submit", lambda parts, rows: begun.append((rows, windows.padded(parts[0]))))
    waveform.together, windows.lengths = 8, (45, 95, 220)
    waveform.prepare()
    for length in (45, 95):
        for count in range(1, 20):
            for _ in range(count):
                waveform.submit(waveform.sound(streamed=True), draw_codes(length), 0, 1)
            waveform.poll()
    assert (
        {*captured}
        == {one for one in begun if one[0] > 1}
        == {(rows, length) for rows in (2, 4, 8) for length in (45, 95)}
    )


class Clock:
    """A virtual clock."""

    now = 100.0

    def __call__(self):
        return self.now


def test_a_stream_s_lead_is_what_was_sent_less_what_was_played(decoder):
    waveform, sound = made(decoder, streamed=True)
    waveform.clock = clock = Clock()
    assert (sound.lead, sound.is_short) == (0, False)
    sound.deliver(2400)
    assert sound.lead == pytest.approx(0.1) and not sound.is_short
    clock.now += 0.08
    assert sound.is_short
    sound.deliver(2400)  # nothing new
    sound.deliver(4800)
    assert sound.lead == pytest.approx(0.12) and not sound.is_short
    clock.now += 0.3
    assert sound.lead == 0 and sound.is_short
    sound.deliver(7200)  # playback had paused
    assert sound.lead == pytest.approx(0.1)


def test_the_shortest_lead_s_windows_come_first(together, monkeypatch):
    waveform, windows = together
    waveform.together, waveform.clock = 4, Clock()
    order = []
    monkeypatch.setattr(windows, "submit", lambda parts, rows: order.append([len(one.codes) for one in parts]))
    for number, seconds in enumerate((9.0, 0.5, 8.0, 0.0, 3.0)):
        sound = waveform.sound(streamed=True)
        sound.deliver(round(seconds * 24_000))
        waveform.submit(sound, draw_codes(1 + number), 0, 1 + number)  # the length tells which it is
    windows.lengths = (95,)
    waveform.poll()
    assert order == [[4, 2, 5, 3], [1]]


def test_streamed_windows_of_the_same_length_are_decoded_together_in_order(decoder, together):
    waveform, windows = together
    waveform.together, windows.lengths = 8, (30, 45)
    said = [draw_codes(48, seed=number) for number in range(3)]
    sounds = [waveform.sound(streamed=True) for _ in said]
    for sound, codes in zip(sounds, said, strict=True):
        push(sound, codes, [48])  # windows of 1, 2, 3, 4, 6, 8 and 12 frames
        sound.finish()
    waveform.finish()
    assert sum(count for count, _ in windows.batches) == 3 * 8 and all(count == rows for count, rows in windows.batches)
    assert len(windows.batches) == 16
    for sound, codes in zip(sounds, said, strict=True):
        assert (so_far(sound) - decoder(codes.T[None])[0].clamp(-1, 1)).abs().max() < 1e-5


def test_windows_are_decoded_singly_if_memory_is_short(decoder, together):
    (waveform, windows), codes = together, draw_codes(130)
    windows.fits = 1
    sound = waveform.sound()
    push(sound, codes, [50])
    assert (finished(waveform, sound) - decoder(codes.T[None])[0].clamp(-1, 1)).abs().max() < 1e-5
    assert windows.batches == [(1, 1)] * 5 and waveform.together == 1
    windows.fits = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        push(waveform.sound(), codes, [50])


@pytest.mark.parametrize("company", [[], [45, 3], [1, 45, 20]], ids=str)
def test_a_clip_s_codes_sound_the_same_in_any_batch(decoder, company):
    codes = draw_codes(31, seed=4)
    alone, *_ = decoder.decode_packed(pack([codes], 4, 45))
    clips = [draw_codes(frames) for frames in company] + [codes]
    among = decoder.decode_packed(pack(clips, 4, 45))[len(company)]
    assert torch.equal(alone, among) and alone.shape == (45 * 960,)
    assert (alone[: 31 * 960] - decoder(codes.T[None])[0]).abs().max() < 1e-5


def test_sound_that_is_not_finite_is_refused():
    ruler = Ruler()
    ruler.decode_span = lambda codes, start, stop: torch.full((1, 960 * (stop - start)), float("nan"))
    _, sound = made(ruler)
    push(sound, draw_codes(90))
    assert "NaN" in str(sound.error)


def test_on_a_cpu_windows_are_decoded_at_once(decoder):
    assert type(made(decoder)[0].windows) is InlineWindows


def test_the_activation_equals_transformers_own(decoder):
    from transformers.models.dac.modeling_dac import Snake1d

    theirs = Snake1d(24)
    theirs.alpha.data.uniform_(0.2, 3.0)
    x = (torch.randn(2, 24, 50) * 4).clamp_(-8, 8)  # a unit in the last place of 16 would be over the bound
    kept = x.clone()
    assert (snake(x, theirs.alpha, None, 1) - theirs(x)).abs().max() < 1e-6
    assert torch.equal(x, kept)
    some = snake(x, theirs.alpha, torch.tensor([7, 3]), 2)
    assert torch.equal(some[0, :, :14], snake(x, theirs.alpha, None, 1)[0, :, :14]) and some[1, :, :6].any()
    assert not some[0, :, 14:].any() and not some[1, :, 6:].any()


def test_the_activation_s_kernel_is_refused_without_a_gpu():
    with pytest.raises(nvrtc.KernelUnavailable, match="NVIDIA"):
        SnakeKernel(torch.device("cpu"))


def test_another_activation_replaces_every_one(decoder):
    codes, calls = draw_codes(3).T[None], []
    expected = decoder(codes)
    decoder.use(lambda x, alpha, *heard: calls.append(alpha) or snake(x, alpha, *heard))
    assert torch.equal(decoder(codes), expected)
    assert len(calls) == len({alpha.data_ptr() for alpha in calls}) == 36
    decoder.use(snake)
    assert torch.equal(decoder(codes), expected) and len(calls) == 36


@pytest.mark.parametrize("frames", [1, 2, 11, 20, 44, 45])
def test_a_window_padded_to_a_fixed_length_is_exact(decoder, frames):
    codes = draw_codes(frames, seed=frames)
    (padded,) = decoder.decode_packed(pack([codes], 1, 45))
    exact = decoder(codes.T[None])[0]
    assert (padded[: 960 * frames] - exact).abs().max() < 1e-5
    assert exact.shape == (960 * frames,)  # and the padding is forgotten
