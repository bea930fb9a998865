"""WebSocket /v1/audio/speech/stream: text comes in pieces, and each sentence is spoken once it is complete.

The messages are those of SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0. input.cancel is ours. Texts are not logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import torch
from aiohttp import WSCloseCode, WSMsgType, web

from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..prompt.incoming import IncomingText
from ..speech.result import SpeechResult
from ..speech.session_voice import SessionVoice
from ..voice.voice import Voice
from .bodies import MOST_BYTES, beside, parse_json
from .calls import BadCall, Call
from .connections import Connection
from .errors import LOG, failure
from .sound import encoded, encoder_of
from .streams import check_of, finish_reason
from .text_session import TextSession, Unit
from .timestamps import AudioChunks

CONFIG_SECONDS = 10.0  # until the first message
IDLE_SECONDS = 30.0  # without a message, while nothing is spoken
MOST_WAITING = 512  # answers to input.commit and input.done that wait for speech
MOST_ERRORS = 1000  # refused messages, after which a connection ends
_PIECE = 600  # characters that are cut in one turn of the event loop


@dataclass(eq=False)
class TextStreams:
    """All open streams of text.

    say(connection, call, voice, listens), find_voice(call): as in SpeechServer. most_reference: frames of a
    generated voice. count(kind): counts an error. word_times(call, speech): see there.
    """

    say: Callable[[Connection, Call, Voice | None, bool], AsyncGenerator[torch.Tensor | SpeechResult, None]]
    find_voice: Callable[[Call], Awaitable[Voice | None]]
    read: Callable[[Mapping], TextSession]
    most_characters: int
    most_reference: int
    count: Callable[[str], None]
    word_times: Callable[[Call, SpeechResult], Awaitable[list[dict] | None]]
    _open: set[TextStream] = field(default_factory=set, init=False)

    async def handle(self, request: web.Request, connection: Connection) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=MOST_BYTES, compress=False)
        await socket.prepare(request)
        self._open.add(stream := TextStream(socket, connection, self))
        connection.on_excess = stream.refuse
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
        return socket

    async def close(self, app: web.Application) -> None:
        """Close all connections once their complete sentences are spoken, because the server stops."""
        for stream in self._open:
            stream.finish()


def _parse(data: str | bytes) -> object:
    return parse_json(data.encode() if isinstance(data, str) else data)


class TextStream:
    """One connection: reads messages, while a task speaks what they ask for, in order."""

    def __init__(self, socket: web.WebSocketResponse, connection: Connection, streams: TextStreams):
        self._socket, self._connection, self._streams, self._code = socket, connection, streams, WSCloseCode.OK
        self._id = f"speech_ws_{uuid.uuid4().hex}"
        self._session: TextSession | None = None
        self._text = IncomingText("none")
        self._queue: asyncio.Queue[Unit | dict | None] = asyncio.Queue()  # None closes the connection
        self._now: Unit | None = None  # the unit that is spoken
        self._waiting = self._answers = self._errors = 0  # characters, and answers, in the queue; refused messages
        self._is_open = self._is_closing = False  # there was text since input.done; session.close has come
        self._utterance = self._sentences = self._segment = self._committed = self._units = 0

    def finish(self) -> None:
        """Take no more text, and close the connection once all complete sentences are spoken."""
        self._is_closing, self._code = True, WSCloseCode.GOING_AWAY
        self._queue.put_nowait(None)

    def refuse(self) -> None:
        """Close the connection, because callers send too much at once."""
        closing = self._socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"callers are sending too much at once")
        self._closing = asyncio.create_task(closing)

    async def run(self) -> None:
        """Serve the connection. Whatever ends it also drops what is spoken."""
        self._start()
        try:
            with contextlib.suppress(ConnectionResetError):
                await self._listen()
        finally:
            await self._stop()
            await self._socket.close()

    async def _listen(self):
        while True:
            await asyncio.sleep(0)  # others go on, however many messages have come
            try:
                if (message := await self._receive()) is None:
                    return
                await self._take(message)
            except (HiggsError, torch.OutOfMemoryError) as error:
                await self._tell_error(error)
                self._errors += 1
                if self._session is None or self._errors >= MOST_ERRORS:
                    return

    async def _receive(self) -> Mapping | None:
        """Return the next message, or None at the end of the connection."""
        self._connection.release()  # what the last message held
        while True:
            try:
                limit = CONFIG_SECONDS if self._session is None else IDLE_SECONDS
                got = await asyncio.wait_for(self._socket.receive(), limit)  # of all, also if pings come
                break
            except asyncio.TimeoutError:
                if self._now is None and self._queue.empty():
                    waited = "session.config" if self._session is None else "a message"
                    await self._tell_error(BadCall(f"{waited} did not arrive in time.", None, 408, "timeout"))
                    return None
        if got.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return None
        message = await beside(len(got.data), _parse, got.data)
        if not isinstance(message, Mapping):
            raise BadCall("a message must be a JSON object.")
        return message

    async def _take(self, message: Mapping):
        kind = message.get("type")
        if self._session is None and kind != "session.config":
            raise BadCall("the first message must be session.config.", "type")
        if self._is_closing and kind != "input.cancel":
            raise BadCall("session.close was already sent, or the server is stopping.", "type")
        if kind == "session.config":
            await self._configure(message)
        elif kind == "input.text":
            await self._add(message.get("text"))
        elif kind in ("input.commit", "input.done") and self._answers >= MOST_WAITING:
            raise BadCall(
                f"{MOST_WAITING} answers wait for speech. Send this again later.", "type", 429, "too_many_messages"
            )
        elif kind == "input.commit":
            self._commit()
        elif kind == "input.done":
            self._put(self._text.flush())
            self._later("session.done", **self._totals())
            self._next_utterance()
        elif kind == "input.cancel":
            await self._cancel()
        elif kind == "session.close":
            self._is_closing = True
            self._queue.put_nowait(None)
        else:
            raise BadCall(f"type is {str(kind)[:40]!r}, which this server does not know.", "type")

    async def _configure(self, message: Mapping):
        if self._is_open:
            raise BadCall("send input.done or input.cancel before another session.config.", "type")
        session = await asyncio.to_thread(self._streams.read, message)
        call = await asyncio.to_thread(session.call_for, "A word.")
        voice = await self._streams.find_voice(call)
        self._voice = SessionVoice(voice, self._streams.most_reference)
        self._session, self._text = session.without_clip(), IncomingText(session.granularity)
        own = {"stream_audio": session.streams, "split_granularity": session.granularity, "ignored": call.ignored}
        own |= {"warnings": voice.warnings} if voice and voice.warnings else {}
        await self._tell("session.configured", session_id=self._id, response_format=call.format, **own)

    async def _add(self, text: object):
        if not isinstance(text, str):
            raise BadCall("text must be a string.", "text")
        most = self._streams.most_characters
        if self._waiting + len(self._text) + len(text) > most:
            raise BadCall(
                f"more than {most} characters would wait to be spoken. Send this text again later.",
                "text",
                413,
                "input_too_long",
            )
        self._is_open = self._is_open or bool(text)
        for at in range(0, len(text), _PIECE):
            self._put(self._text.add(text[at : at + _PIECE]))
            await asyncio.sleep(0)

    def _commit(self):
        self._put(self._text.flush())
        counts = {"segment_index": self._segment, "segment_sentences": self._sentences - self._committed}
        self._later("input.committed", **counts, **self._totals())
        self._segment, self._committed = self._segment + 1, self._sentences

    def _put(self, units: list[str]):
        assert self._session
        for text in units:
            utterance, sentence = self._utterance, self._sentences
            unit = Unit(self._session, self._voice, text, self._units, self._id, utterance, sentence)
            self._queue.put_nowait(unit)
            self._waiting += len(text)
            self._sentences, self._units = self._sentences + 1, self._units + 1

    def _later(self, kind: str, **content: object):
        self._answers += 1
        self._queue.put_nowait({"type": kind, **content})

    def _totals(self) -> dict[str, object]:
        return {"session_id": self._id, "utterance_index": self._utterance, "total_sentences": self._sentences}

    def _next_utterance(self):
        self._utterance, self._sentences, self._committed, self._is_open = self._utterance + 1, 0, 0, False

    async def _cancel(self):
        """Drop what is spoken and what waits. Its row is free at the next step."""
        assert self._session
        await self._stop()
        cut, self._now, self._queue = self._now, None, asyncio.Queue()
        self._waiting = self._answers = 0
        self._text = IncomingText(self._session.granularity)
        if cut is not None:
            await self._tell("audio.done", **cut.where, total_bytes=cut.total_bytes, error=False, cancelled=True)
        await self._tell("input.cancelled", session_id=self._id, utterance_index=self._utterance)
        self._next_utterance()
        if self._is_closing:
            self._queue.put_nowait(None)
        self._start()

    def _start(self):
        self._speaking = asyncio.create_task(self._speak_all())
        self._speaking.add_done_callback(self._after_speaking)

    async def _stop(self):
        self._speaking.cancel()
        await asyncio.gather(self._speaking, return_exceptions=True)

    async def _speak_all(self):
        with contextlib.suppress(ConnectionResetError):  # the caller disconnected
            while (item := await self._queue.get()) is not None:
                if isinstance(item, Unit):
                    self._waiting -= len(item.text)
                    self._now = item
                    await self._speak(item)
                else:
                    self._answers -= 1
                    await self._socket.send_json(item)
            await self._socket.close(code=self._code)

    def _after_speaking(self, speaking: asyncio.Task):
        if not speaking.cancelled() and (error := speaking.exception()) is not None:
            LOG.error("A stream of text failed.", exc_info=error)
            self._closing = asyncio.create_task(self._socket.close(code=WSCloseCode.INTERNAL_ERROR))

    async def _speak(self, unit: Unit):
        end: dict[str, object] = {"error": False, "finish_reason": "error"}
        try:
            call = unit.session.call_for(unit.text, unit.index)
            start = {"sentence_text": unit.text, "format": call.format, "sample_rate": SAMPLE_RATE}
            start |= {"word_timestamps": True} if call.word_timestamps else {}
            await self._tell("audio.start", **unit.where, **start)
            speech = await self._send_sound(unit, call)
            unit.voice.hear(speech)
            end |= {"finish_reason": finish_reason(speech), "check": check_of(speech)}
        except (HiggsError, torch.OutOfMemoryError) as error:
            end["error"] = True
            partial = {"partial_audio": True, "action": "discard"} if unit.total_bytes else {}
            await self._tell_error(error, **unit.where, **partial)
        self._now = None
        await self._tell("audio.done", **unit.where, total_bytes=unit.total_bytes, **end)

    async def _send_sound(self, unit: Unit, call: Call) -> SpeechResult:
        chunks = AudioChunks(self._tell, unit.where) if call.word_timestamps else None
        deliver = chunks.sound if chunks else self._socket.send_bytes

        async def send(encode: Callable[..., bytes], *given: object):
            data = await asyncio.to_thread(encode, *given) if is_slow else encode(*given)
            if data:
                unit.total_bytes += len(data)
                await deliver(data)

        encoder = encoder_of(call.format)
        is_slow = encoder.is_slow or not unit.session.streams
        voice, streams = unit.voice.current, unit.session.streams
        async with contextlib.aclosing(self._streams.say(self._connection, call, voice, streams)) as speech:
            async for piece in speech:
                if isinstance(piece, SpeechResult):
                    await (send(encoder.end) if streams else send(encoded, piece.wav, call.format))
                    if chunks:
                        await chunks.words(await self._streams.word_times(call, piece))
                    return piece
                for part in piece.split(SAMPLE_RATE):
                    await send(encoder.encode, part)
                    await asyncio.sleep(0)
        raise HiggsError("The speech ended early.")

    async def _tell(self, kind: str, **content: object):
        await self._socket.send_json({"type": kind, **content})

    async def _tell_error(self, error: BaseException, **where: object):
        """Send OpenAI's envelope in `error`, and its fields beside it, as the other servers have them."""
        problem = failure(error)
        if problem.param == "input" and where:
            problem = problem._replace(param="text")
        self._streams.count(problem.kind)
        body = problem.envelope()
        beside = {"message": body["message"], "error_type": body["type"], "param": body["param"], "code": body["code"]}
        await self._tell("error", **where, **beside, error=body)
