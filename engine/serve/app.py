"""The HTTP side: routes, OpenAI's error envelope, streams. Texts are not logged."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from aiohttp import web

from ..audio.resample import check_rate
from ..core.errors import HiggsError
from ..prompt.card import ModelCard
from ..speech.result import SpeechResult
from ..voice.clip import check_clip, decode_clip, read_clip, transcript_of
from ..voice.voice import Voice
from .bodies import MOST_BYTES, check_head, parse_form, parse_json
from .calls import STOCK_VOICES, BadCall, Call, Clip, bounded, read_call
from .errors import LOG, described
from .errors import error as error_answer
from .sound import FORMATS, encoded
from .speaker import SpeakerThread, SpeechJob
from .streams import EventStream, RawStream, finish_reason
from .text_session import read_session
from .text_stream import TextStreams
from .voices import VoiceFolder

_ENDS_KEPT = 1024  # of streams, whose body cannot say how they ended
_CLIPS_KEPT = 64
OWNER = "higgs-tts"  # the model's owner as listed; our own clients recognise the server by it
_NO_HEADER = re.compile(r"[^ -~]")  # characters that a header cannot hold
_Said = torch.Tensor | SpeechResult


@dataclass(frozen=True)
class CallLimits:
    """Limits on what a server accepts."""

    characters: int = 20_000  # per text
    calls: int = 256  # at once, including waiting ones


class SpeechServer:
    """Serves one speaker over HTTP.

    model: its public name. knows_tag(tag): True if the model follows a control tag. card: the model's card for callers.
    """

    def __init__(
        self,
        speaker: SpeakerThread,
        voices: VoiceFolder,
        model: str,
        knows_tag: Callable[[str], bool],
        limits: CallLimits | None = None,
        key: str = "",
        card: ModelCard | None = None,
    ):
        self._speaker, self._voices, self._model, self._knows_tag = speaker, voices, model, knows_tag
        self._card = card or ModelCard()
        self._clips: OrderedDict[bytes, asyncio.Future[Voice]] = OrderedDict()  # of callers' clips, by digest
        self._limits, self._key = limits or CallLimits(), key
        self._calls = 0  # not yet answered
        most = self._limits.characters
        read = partial(read_session, most_characters=most, knows_tag=knows_tag)
        self._texts = TextStreams(self._say, self._voice, read, most, speaker.most_reference_frames)
        self._ends: OrderedDict[str, str] = OrderedDict()  # of raw streams, by request id

    def app(self) -> web.Application:
        """Return the application. Run it with handler_cancellation, so that a caller's disconnect frees the row."""
        handling = {"auto_decompress": False, "logger": LOG}
        app = web.Application(middlewares=[self._answer_errors], client_max_size=MOST_BYTES, handler_args=handling)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.post("/v1/audio/speech", self._speech),
                web.get("/v1/audio/speech/stream", self._text_stream),
                web.get("/v1/audio/speech/{id}", self._end_of),
                web.get("/v1/audio/voices", self._list_voices),
                web.post("/v1/audio/voices", self._add_voice),
                web.delete("/v1/audio/voices/{name}", self._delete_voice),
            ]
        )
        app.on_shutdown.append(self._texts.close)
        return app

    @web.middleware
    async def _answer_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if self._key and request.path != "/health" and not self._has_key(request):
                raise BadCall("the key is missing or wrong. Send Authorization: Bearer KEY.", None, 401, "invalid_key")
            check_head(request)
            return await handler(request)
        except web.HTTPException as error:  # aiohttp's own: no such route, a body that is too large
            return error_answer(error.reason, error.status)
        except (HiggsError, torch.OutOfMemoryError) as error:
            return error_answer(*described(error))

    def _has_key(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given, key = (one.encode("utf-8", "surrogateescape") for one in (given, self._key))  # may be any bytes
        return hmac.compare_digest(given, key)

    async def _health(self, request: web.Request) -> web.Response:
        broken = self._speaker.broken is not None
        return web.json_response({"status": "unhealthy" if broken else "healthy"}, status=503 if broken else 200)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": OWNER}
        card = self._card
        model["higgs_tts"] = {"languages": card.languages, "tags": card.tags, "one_voice": card.one_voice}
        return web.json_response({"object": "list", "data": [model]})

    async def _list_voices(self, request: web.Request) -> web.Response:
        return web.json_response({"voices": ["default", *self._voices.names()]})

    async def _add_voice(self, request: web.Request) -> web.Response:
        form = parse_form(await request.read(), request.headers.get("Content-Type", ""))
        if not {"name", "audio_sample"} <= form.keys():
            raise BadCall("send a form with name, audio_sample (a sound file) and, if possible, ref_text.")
        try:
            name, text = form["name"].decode(), form.get("ref_text", b"").decode()
        except UnicodeDecodeError:
            raise BadCall("name and ref_text must be UTF-8.") from None
        bounded("ref_text", text, self._limits.characters)
        with self._one_call():
            voice = await self._made(form["audio_sample"], text, "audio_sample")
            name = await asyncio.to_thread(self._voices.add, name, voice)
        return web.json_response({"name": name, "seconds": voice.seconds})

    async def _delete_voice(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await asyncio.to_thread(self._voices.delete, name)
        return web.json_response({"name": name, "deleted": True})

    async def _end_of(self, request: web.Request) -> web.Response:
        if (end := self._ends.get(request.match_info["id"])) is None:
            raise BadCall("there is no such stream, or it has not ended yet.", "id", 404)
        return web.json_response({"id": request.match_info["id"], "finish_reason": end})

    async def _speech(self, request: web.Request) -> web.StreamResponse:
        call = read_call(parse_json(await request.read()), self._limits.characters, self._knows_tag)
        with self._one_call():
            voice = await self._voice(call)
            headers = {"X-Request-Id": uuid.uuid4().hex, "X-Model": self._model}
            if call.ignored:
                headers["X-Ignored-Fields"] = _NO_HEADER.sub("?", ", ".join(call.ignored))[:400]
            if call.stream:
                return await self._stream(request, call, voice, headers)
            return await self._whole(call, voice, headers)

    async def _text_stream(self, request: web.Request) -> web.StreamResponse:
        with self._one_call():
            return await self._texts.handle(request)

    async def _whole(self, call: Call, voice: Voice | None, headers: dict[str, str]) -> web.Response:
        async with contextlib.aclosing(self._say(call, voice, listens=False)) as speech:
            (said,) = [one async for one in speech]
        assert isinstance(said, SpeechResult)
        body = await asyncio.to_thread(encoded, said.wav, call.format)
        headers |= {"X-Finish-Reason": finish_reason(said), "Content-Type": FORMATS[call.format]}
        return web.Response(body=body, headers=headers)

    async def _stream(
        self, request: web.Request, call: Call, voice: Voice | None, headers: dict[str, str]
    ) -> web.StreamResponse:
        stream = (EventStream if call.stream == "sse" else RawStream)(request, headers, call.format)
        try:
            async with contextlib.aclosing(self._say(call, voice, listens=True)) as speech:
                async for said in speech:
                    if isinstance(said, SpeechResult):
                        self._keep_end(headers, finish_reason(said))
                        await stream.end(said)
                    else:
                        await stream.hear(said)
        except ConnectionResetError:  # the caller disconnected, and this task was not cancelled yet
            self._keep_end(headers, "error")
        except (HiggsError, torch.OutOfMemoryError) as error:
            if not stream.has_begun:
                raise
            self._keep_end(headers, "error")
            await stream.fail(str(error))
        return stream.answer

    def _keep_end(self, headers: Mapping[str, str], reason: str):
        self._ends[headers["X-Request-Id"]] = reason
        while len(self._ends) > _ENDS_KEPT:
            self._ends.popitem(last=False)

    async def _say(self, call: Call, voice: Voice | None, listens: bool) -> AsyncGenerator[_Said, None]:
        """Yield sound as it comes, if `listens`, and then the result. Closing the generator drops the job."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue()

        def tell(what: _Said | BaseException):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nothing waits
                loop.call_soon_threadsafe(told.put_nowait, what)

        voices = {} if voice is None else {"": voice}
        job = SpeechJob(call.text, tell, voices, call.params, call.scene, tell if listens else None, call.index)
        self._speaker.speak(job)
        try:
            while True:
                said = await told.get()
                if isinstance(said, BaseException):
                    raise said if isinstance(said, (HiggsError, torch.OutOfMemoryError)) else HiggsError(str(said))
                yield said
                if isinstance(said, SpeechResult):
                    return
        finally:
            self._speaker.drop(job)

    async def _voice(self, call: Call) -> Voice | None:
        """Return the call's voice. Raises BadCall for an unknown name or an unusable clip."""
        if call.clip:
            return await self._cloned(call.clip)
        if call.voice.casefold() in STOCK_VOICES:
            return None
        path = self._voices.find(call.voice)
        voice = await asyncio.to_thread(self._voices.kept, path)
        if voice is None:
            sound, rate = await asyncio.to_thread(read_clip, path)
            voice = await self._encode((torch.from_numpy(sound), rate), transcript_of(path)[0])
            self._voices.keep(path, voice)
        return voice

    async def _cloned(self, clip: Clip) -> Voice:
        """Return the voice of a clip, encoding it once. A long text often comes as many calls with the same clip."""
        digest = hashlib.sha256(repr(clip.transcript).encode() + clip.data).digest()
        made = self._clips.pop(digest, None)
        if made is None:
            made = asyncio.ensure_future(self._made(clip.data, clip.transcript, "ref_audio"))
        self._clips[digest] = made
        while len(self._clips) > _CLIPS_KEPT:
            self._clips.popitem(last=False)
        try:
            return await asyncio.shield(made)  # a disconnect does not cancel it for other callers
        except (HiggsError, torch.OutOfMemoryError):  # retrying may work
            self._clips.pop(digest, None)
            raise

    async def _made(self, data: bytes, transcript: str, param: str) -> Voice:
        return await self._encode(await asyncio.to_thread(_clip, data, param), transcript)

    async def _encode(self, clip: tuple[torch.Tensor, int], transcript: str) -> Voice:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Voice] = loop.create_future()

        def end(what: Voice | BaseException):
            def settle():
                if made.done():  # no caller waits any more
                    return
                made.set_exception(what) if isinstance(what, BaseException) else made.set_result(what)

            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        self._speaker.encode(*clip, transcript, end)
        return await made

    @contextlib.contextmanager
    def _one_call(self):
        if self._calls >= self._limits.calls:
            raise BadCall("the server has reached its limit of calls. Try again soon.", None, 503, "overloaded")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1


def _clip(data: bytes, param: str) -> tuple[torch.Tensor, int]:
    try:
        clip = decode_clip(data)
        check_clip(*clip)
        check_rate(clip[1], "The clip")
    except HiggsError as error:
        raise BadCall(str(error), param) from error
    except RuntimeError as error:  # soundfile's own
        raise BadCall(f"the clip cannot be read as audio ({error}). Send WAV or FLAC.", param) from error
    return clip
