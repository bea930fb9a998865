"""Reference clips in every form that phones, browsers and sound programs write."""

import io
import re
import sys

import numpy as np
import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, CLIP_SUFFIXES, FILM_SUFFIXES, HiggsError, clip_seconds, read_clip, resample
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.serve.voices import VoiceFolder
from higgs_tts.engine.voice.clip import decode_clip

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
AMBER, RATE = read_clip(BUILT_IN_CLIPS / "amber.flac")

# suffix: (container, encoder, Hz) of FFmpeg, or (format, subtype) of soundfile
PACKED = {
    "m4a": ("ipod", "aac", 44_100),
    "mp4": ("mp4", "aac", 48_000),
    "mov": ("mov", "aac", 48_000),
    "3gp": ("3gp", "aac", 24_000),
    "webm": ("webm", "libopus", 48_000),
    "aac": ("adts", "aac", 24_000),
    "wma": ("asf", "wmav2", 44_100),
}
PLAIN = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_24"),
    "mp3": ("MP3", None),
    "ogg": ("OGG", "VORBIS"),
    "oga": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "aif": ("AIFF", "PCM_16"),
    "aiff": ("AIFF", "FLOAT"),
}


def packed(suffix, wav=AMBER[0], film=False, **options):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    container, encoder, rate = PACKED[suffix]
    made = io.BytesIO()
    with av.open(made, "w", format=container, options=options) as file:
        picture = file.add_stream("mpeg4", rate=1) if film else None
        if picture:
            picture.width = picture.height = 16
        track = file.add_stream(encoder, rate=rate, layout="mono")
        track.bit_rate = 64_000
        if picture:
            file.mux([*picture.encode(av.VideoFrame(16, 16, "yuv420p")), *picture.encode(None)])
        samples = resample(torch.from_numpy(wav), RATE, rate).numpy()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), "flt", "mono")
        frame.sample_rate = rate
        file.mux([*track.encode(frame), *track.encode(None)])
    return made.getvalue()


def data_of(suffix):
    if suffix in PACKED:
        return packed(suffix)
    made = io.BytesIO()
    soundfile.write(made, AMBER[0], RATE, format=PLAIN[suffix][0], subtype=PLAIN[suffix][1])
    return made.getvalue()


def test_every_listed_form_is_tried():
    assert {*CLIP_SUFFIXES, *FILM_SUFFIXES} == {f".{suffix}" for suffix in (*PACKED, *PLAIN)}


@pytest.mark.parametrize("suffix", [*PACKED, *PLAIN])
def test_clips_of_every_form_are_read_and_listed(suffix, tmp_path):
    path = tmp_path / f"Memo.{suffix}"
    path.write_bytes(data_of(suffix))
    wav, rate = read_clip(path)
    sent, sent_rate = decode_clip(path.read_bytes())
    assert sent_rate == rate and np.array_equal(sent.numpy(), wav) and wav.dtype == np.float32
    assert wav.shape[1] / rate == pytest.approx(AMBER.shape[1] / RATE, abs=0.1)
    assert clip_seconds(path) == pytest.approx(AMBER.shape[1] / RATE, abs=0.1)
    heard = resample(torch.from_numpy(wav[0]), rate, RATE)
    assert integrated_loudness(heard) == pytest.approx(integrated_loudness(torch.from_numpy(AMBER[0])), abs=0.5)
    assert VoiceFolder(tmp_path).find("memo") == path


def test_the_sound_of_a_film_is_a_clip(tmp_path):
    (tmp_path / "a.mp4").write_bytes(packed("mp4", film=True))
    wav, rate = read_clip(tmp_path / "a.mp4")
    assert wav.shape[1] / rate == pytest.approx(AMBER.shape[1] / RATE, abs=0.1)


@pytest.mark.parametrize(
    ("suffix", "options"), [("webm", {"live": "1"}), ("mp4", {"movflags": "frag_keyframe+empty_moov"})]
)
def test_what_browsers_record_without_a_length_is_read(suffix, options, tmp_path):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(packed(suffix, **options))
    wav, rate = read_clip(path)
    assert wav.shape[1] / rate == pytest.approx(AMBER.shape[1] / RATE, abs=0.1)
    assert clip_seconds(path) == pytest.approx(AMBER.shape[1] / RATE, abs=0.1)
    path.write_bytes(packed(suffix, np.tile(AMBER[0], 6), **options))
    with pytest.raises(HiggsError, match=r"is 3\d\.\d s long; more than 30 s"):
        read_clip(path)


def test_a_flac_stream_without_a_length_is_read(tmp_path):
    """As FFmpeg writes into a pipe: its header has no number of samples."""
    pytest.importorskip("av", reason="PyAV is not installed")
    data = bytearray(data_of("flac"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    (tmp_path / "a.flac").write_bytes(data)
    wav, rate = read_clip(tmp_path / "a.flac")
    assert wav.shape[1] == AMBER.shape[1] and rate == RATE
    assert clip_seconds(tmp_path / "a.flac") == pytest.approx(AMBER.shape[1] / RATE)
    assert decode_clip(bytes(data))[0].shape == wav.shape


@pytest.mark.parametrize("suffix", PACKED)
def test_a_long_clip_is_refused_before_all_of_it_is_decoded(suffix, tmp_path):
    (tmp_path / f"a.{suffix}").write_bytes(packed(suffix, np.tile(AMBER[0], 6)))
    with pytest.raises(HiggsError, match=rf"a\.{suffix} is 3\d\.\d s long; more than 30 s makes cloning unstable"):
        read_clip(tmp_path / f"a.{suffix}")


BAD = {  # name: bytes
    "text.m4a": lambda: b"This is not sound. " * 100,
    "empty.webm": lambda: b"",
    "cut.m4a": lambda: packed("m4a")[:3000],
    "page.3gp": lambda: b"<!DOCTYPE html><title>Not found</title>" * 50,
    "zeros.mp4": lambda: bytes(5000),
    "pointer.m4a": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "list.m4a": lambda: b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///%s\n#EXT-X-ENDLIST\n",
    "concat.mp4": lambda: b"ffconcat version 1.0\nfile %s\n",
    "damaged.webm": lambda: packed("webm")[:200] + bytes(4000),
    "flac.aac": lambda: data_of("flac")[:60],
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_is_refused_in_a_sentence_without_an_address(name, tmp_path):
    (tmp_path / "secret.aac").write_bytes(data_of("aac"))
    data = BAD[name]().replace(b"%s", str(tmp_path / "secret.aac").encode())
    (tmp_path / name).write_bytes(data)
    for read in (read_clip, clip_seconds):
        with pytest.raises(HiggsError, match=rf"{re.escape(name)} cannot be read as audio \(.+\)\. Save it") as told:
            read(tmp_path / name)
        assert "0x" not in str(told.value) and "secret" not in str(told.value)
    with pytest.raises(RuntimeError) as told:
        decode_clip(data)
    assert str(told.value) and "0x" not in str(told.value) and "object" not in str(told.value)


def test_a_film_without_sound_is_named(tmp_path):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        picture = file.add_stream("mpeg4", rate=1)
        picture.width = picture.height = 16
        file.mux([*picture.encode(av.VideoFrame(16, 16, "yuv420p")), *picture.encode(None)])
    with pytest.raises(HiggsError, match=r"a\.mp4 cannot be read as audio \(it has no sound\)"):
        read_clip(tmp_path / "a.mp4")


@pytest.mark.parametrize("suffix", PACKED)
def test_without_pyav_one_sentence_says_so(suffix, tmp_path, monkeypatch):
    (tmp_path / f"a.{suffix}").write_bytes(packed(suffix))
    (tmp_path / "b.opus").write_bytes(data_of("opus"))
    monkeypatch.setitem(sys.modules, "av", None)
    for read in (read_clip, clip_seconds):
        with pytest.raises(HiggsError, match=r"\(for all but .* it takes PyAV: pip install av\)\. Save it as \.wav"):
            read(tmp_path / f"a.{suffix}")
    assert read_clip(tmp_path / "b.opus")[0].size
