"""Speech of text that arrives while it is written, such as a language model's."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator

import torch

from ..audio.pcm import pcm_bytes
from ..core.config import SamplingParams
from ..core.errors import HiggsError
from ..engines.speech_api import SpeechAPI
from ..files.plain_text import decode_text, tell
from ..prompt.incoming import IncomingText
from ..prompt.script import Turn, read_pauses
from ..prompt.speakers import most_reference_frames
from ..speech.result import SpeechResult
from ..speech.session_voice import SessionVoice
from ..speech.speech_input import Listener
from ..voice.voice import Voice

_BYTES = 4096  # read at a time
_MARK = 4  # bytes of the longest byte order mark


def arriving_sentences(read: Callable[[int], bytes]) -> Iterator[str]:
    """Yield sentences as they become complete. read(most): next bytes of text, as soon as there are any.

    If they are not UTF-8, all that follow are read before more is spoken, and the encoding is logged.
    """
    text, decoder = IncomingText("sentence"), codecs.getincrementaldecoder("utf-8-sig")()
    whole, decoded, is_over = b"", "", False
    while not is_over:
        data = b""
        while not is_over and (not data or len(whole + data) < _MARK):
            is_over = not (more := read(_BYTES))
            data += more
        whole += data
        try:
            if b"\0" in data:  # UTF-16
                raise UnicodeError
            decoded += (piece := decoder.decode(data, final=is_over))
            yield from text.add(piece)
        except UnicodeError:
            while not is_over and (more := read(_BYTES)):
                whole += more
            yield from text.add(stdin_text(whole)[len(decoded) :])  # what was said is ASCII, or UTF-8 with wrong bytes
            break
    yield from text.flush()


def stdin_text(data: bytes) -> str:
    """Decode text from stdin, in any encoding. Doubts about it are logged."""
    text, doubts = decode_text(data, "The text on stdin")
    for doubt in doubts:
        tell(doubt)
    return text


def speak_arriving(
    engine: SpeechAPI,
    texts: Iterable[str],
    voice: Voice | None,
    params: SamplingParams,
    scene: str | None,
    on_audio: Callable[[torch.Tensor], None] | None,
    left_out: list[str],
) -> Iterator[SpeechResult]:
    """Speak texts one after another, each as soon as it is there, in one voice. Yields what was said of each.

    Without a voice, the first 3 seconds of speech become the voice of the rest. on_audio(wav [n]): sound as it comes.
    left_out: gets the reasons why nothing is said of a text.
    """
    following = SessionVoice(voice, most_reference_frames(engine.planner.context))
    for number, text in enumerate(texts):
        reasons: list[str] = []
        if not engine.planner.prompts.is_spoken(read_pauses(text).text, reasons.append):
            left_out += reasons
            continue
        voices = {} if following.current is None else {"": following.current}
        turn = Turn("", text, occurrence=number)
        speech = engine.speak_turns([turn], voices, params, scene, Listener(on_audio=on_audio), reuse=False, even=False)
        following.hear(speech)
        yield speech


def to_stdout(wav: torch.Tensor) -> None:
    """Write samples [n] float32 to stdout, as 16-bit little-endian. Raises HiggsError if its reader has ended."""
    try:
        sys.stdout.buffer.write(pcm_bytes(wav))
        sys.stdout.buffer.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EINVAL):  # EINVAL: a closed pipe on Windows
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        raise HiggsError("The program that reads the sound has ended.") from None
