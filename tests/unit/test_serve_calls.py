"""Calls to the server: every field, and one sentence that names an error."""

import base64

import pytest
from higgs_tts.engine import SamplingParams
from higgs_tts.engine.serve.calls import BadCall, read_call

CLIP = base64.b64encode(b"sound").decode()
SENT = {"model": "any", "input": "Hello.", "voice": "alloy"}


def read(knows=lambda tag: True, **body):
    return read_call({**SENT, **body}, 100, knows)


def test_omitted_fields_have_defaults():
    call = read_call({"input": "Hello."}, 100, bool)
    assert (call.text, call.voice, call.format, call.stream, call.clip) == ("Hello.", "default", "mp3", "audio", None)
    assert call.params == SamplingParams() and call.ignored == ()


def test_the_index_of_a_part_of_a_text_is_read():
    assert read(index=7).index == 7 and read().index == 0 and read(index=7).ignored == ()
    with pytest.raises(BadCall, match="index is '-1'"):
        read(index=-1)


def test_sampling_is_read_at_top_level_or_in_extra_params():
    """SGLang-Omni and vLLM-Omni accept both. The top level wins."""
    call = read(temperature=0.5, top_k=7.0, seed=9, max_new_tokens=50, extra_params={"temperature": 1, "top_p": 0.9})
    wanted = SamplingParams(temperature=0.5, top_p=0.9, top_k=7, seed=9, max_frames=50)
    assert call.params == wanted and isinstance(call.params.top_k, int)


@pytest.mark.parametrize(
    ("asked", "stream"),
    [
        ({}, "audio"),  # as OpenAI does
        ({"stream": None}, "audio"),
        ({"stream": False}, ""),
        ({"stream": False, "stream_format": "audio"}, ""),
        ({"stream": True}, "audio"),
        ({"stream": True, "stream_format": "audio"}, "audio"),
        ({"stream_format": "audio"}, "audio"),
        ({"stream_format": "sse"}, "sse"),
        ({"stream": False, "stream_format": "sse"}, "sse"),
        ({"stream": True, "stream_format": "sse"}, "sse"),
    ],
)
@pytest.mark.parametrize("sound", ["pcm", "wav", "mp3"])
def test_stream_and_stream_format_select_the_streaming(asked, stream, sound):
    assert read(response_format=sound, **asked).stream == stream


@pytest.mark.parametrize(
    "asked",
    [
        {"ref_audio": f"data:audio/wav;base64,{CLIP}", "ref_text": "It says."},
        {"ref_audio": CLIP, "ref_text": "It says."},
        {"references": [{"audio_path": f"data:audio/wav;base64,{CLIP}", "text": "It says."}]},
        {"references": [{"data": CLIP, "media_type": "audio/wav", "text": "It says."}]},
    ],
)
def test_a_reference_is_read_in_every_form(asked):
    clip = read(**asked).clip
    assert (clip.data, clip.transcript) == (b"sound", "It says.")


def test_several_references_are_read_in_their_order():
    other = base64.b64encode(b"other").decode()
    clip = read(references=[{"audio_path": CLIP, "text": "It says."}, {"data": other}, {"ref_audio": CLIP}]).clip
    assert [(one.data, one.transcript) for one in clip.every] == [
        (b"sound", "It says."),
        (b"other", ""),
        (b"sound", ""),
    ]


def test_pauses_count_as_characters():
    text = "One [pause 4] apple."
    assert read(input=text).text == text
    with pytest.raises(
        BadCall, match="4 s of pauses, which count as 60 more, but this server accepts at most 79"
    ) as caught:
        read_call({"input": text}, 79, bool)
    assert caught.value.code == "input_too_long"


def test_speed_is_mapped_to_tags():
    said = {speed: read(speed=speed).text for speed in (0.5, 0.9, 1, 1.2, 2)}
    assert said[1] == "Hello." and said[0.5] == "<|prosody:speed_very_slow|>Hello."
    assert said[0.9] == "<|prosody:speed_slow|>Hello." and said[1.2] == "<|prosody:speed_fast|>Hello."
    assert said[2] == "<|prosody:speed_very_fast|>Hello."
    with pytest.raises(BadCall, match="only one speed"):
        read(lambda tag: False, speed=2)
    assert read(lambda tag: False, speed=1.0).text == "Hello."
    assert read(speed=2, input="<|emotion:awe|>Hi.").text == "<|prosody:speed_very_fast|><|emotion:awe|>Hi."
    paced = "<|emotion:awe|> <|prosody:speed_slow|>Hi."
    assert read(speed=2, input=paced).text == paced


def test_word_timestamps_make_the_answer_whole():
    assert read().stream == "audio" and not read(word_timestamps=False).word_timestamps
    call = read(word_timestamps=True)
    assert call.word_timestamps and call.stream == ""


def test_unknown_fields_are_reported():
    assert read(instructions="gently", language="en").ignored == ("instructions", "language")


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"input": None}, "input", "must be the text"),
        ({"word_timestamps": 1}, "word_timestamps", "true or false"),
        ({"word_timestamps": True, "stream": True}, "word_timestamps", "Omit stream"),
        ({"word_timestamps": True, "stream_format": "sse"}, "word_timestamps", "Omit stream"),
        ({"input": " "}, "input", "must be the text"),
        ({"input": 5}, "input", "must be the text"),
        ({"input": "x" * 101}, "input", "accepts at most 100"),
        ({"voice": 5}, "voice", "must be a string"),
        ({"voice": "anna", "ref_audio": CLIP}, "voice", "not both"),
        ({"response_format": "mid"}, "response_format", "mp3, wav, pcm"),
        ({"input": "One [pause 5] apple, [pause 2 s] please."}, "input", "7 s of pauses, which count as 105 more"),
        ({"scene": "x" * 101}, "scene", "scene has 101 characters, but this server accepts at most 100"),
        ({"ref_audio": CLIP, "ref_text": "x" * 101}, "ref_text", "accepts at most 100"),
        ({"index": []}, "index", "number from 0"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_format": "ws"}, "stream_format", "audio, sse"),
        ({"speed": 5}, "speed", "0.25 to 4"),
        ({"speed": True}, "speed", "0.25 to 4"),
        ({"temperature": "hot"}, "temperature", "number from 0.0 to 2.0"),
        ({"temperature": float("nan")}, "temperature", "number from"),
        ({"top_k": 2.5}, "top_k", "whole number"),
        ({"seed": -1}, "seed", "number from 0"),
        ({"max_new_tokens": 0}, "max_new_tokens", "number from 1"),
        ({"extra_params": []}, "extra_params", "object"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio", "does not open paths or URLs"),
        ({"ref_audio": "https://host/clip.wav"}, "ref_audio", "does not open paths or URLs"),
        ({"ref_audio": "file:///clip.wav"}, "ref_audio", "does not open paths or URLs"),
        ({"ref_audio": "data:audio/wav,abc"}, "ref_audio", "base64"),
        ({"ref_audio": "A" * (16 << 20)}, "ref_audio", "larger than 10 MB"),
        ({"ref_text": "It says."}, "ref_audio", "no clip"),
        ({"references": [1]}, "references", "list of objects"),
        ({"references": [{}, {}]}, "references", "has no clip"),
        ({"references": [{"data": CLIP}, {}]}, "references", "has no clip"),
        ({"references": [{"data": CLIP}, 1]}, "references", "list of objects"),
        ({"references": [{"data": CLIP}, {"text": "It says."}]}, "references", "no clip"),
        ({"references": [{"data": CLIP}, {"data": "/etc/passwd"}]}, "references", "does not open paths or URLs"),
        ({"references": [{"data": CLIP}] * 9}, "references", "has 9 clips, but at most 8"),
        ({"references": [{"data": CLIP, "text": "x" * 51}] * 2}, "ref_text", "has 103 characters"),
        ({"references": [{"text": "It says."}]}, "references", "no clip"),
    ],
)
def test_faults_are_named_by_field(asked, param, says):
    with pytest.raises(BadCall, match=says) as caught:
        read(**asked)
    assert caught.value.param == param and caught.value.status in (400, 413)


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(BadCall, match="JSON object"):
        read_call(body, 100, bool)


def test_a_loudness_needs_a_whole_answer():
    assert read(stream=False, loudness="-19 LUFS").loudness == "-19 LUFS"
    assert read(loudness="as is").loudness == "as is" and read().loudness == ""
    with pytest.raises(BadCall, match="loudness needs a whole answer"):
        read(loudness="-19 LUFS")
    with pytest.raises(BadCall, match="loudness is 'loud'"):
        read(stream=False, loudness="loud")
