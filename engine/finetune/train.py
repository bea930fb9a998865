"""Training of an adapter, from a folder of clips to its file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.adapter_files import adapter_files
from ..checkpoint.talker_layout import port_name
from ..core.config import FRAME_RATE, EngineConfig, TrainParams
from ..core.errors import HiggsError, few
from ..core.threads import one_thread
from ..engines.engine import Engine
from ..files.file_list import sole_writer
from ..speech.result import duration
from ..talker import FAMILIES
from ..words.transcribe import identity_of, load_whisper
from . import lessons
from .adapter_writer import PEFT_PREFIX, check_place, copy_adapter, keep_earlier, write_adapter
from .audition import STRENGTHS, Audition, Trial
from .lessons import Lessons, fits
from .network import Network
from .recordings import find_recordings
from .rows import Utterance
from .run_state import NUMBERS, read_state
from .trained import planned_bytes
from .utterances import utterances_of

LEAST_MINUTES, LEAST_CLIPS = 2.0, 4  # four minutes were already too few for 1,400 steps of VoxCPM's recipe
# Minutes of speech up to which a row holds, passes over the clips and learning rate, after Higgs Audio TTS Easy GUI's
# recipes for Higgs TTS 3. That a narrower model takes the square of its width more is a guess from one run at 5e-4.
RECIPES = ((8.0, 18, 1e-5), (30.0, 15, 1.5e-5), (90.0, 10, 2e-5), (math.inf, 6, 2e-5))
_WIDTH = 2560  # of the model that the rates are for
_FEWEST, _MOST = 200, 2500  # steps
_WARM_UP = 0.03  # share of the steps over which the rate rises
TRIALS, APART = 6, 20  # times that texts are spoken, and the fewest steps between two
_SHIFTS = (0, -2, -1, 1, 2)  # positions
_CODES, _STATE = "codes.safetensors", "state.safetensors"
_TRIED, _BEST = "tried.safetensors", "best.safetensors"  # LoRAs


@dataclass(frozen=True)
class TrainProgress:
    """Where a training is. steps: 0 while clips are read. loss: nats per code; seconds: about, left."""

    stage: str
    step: int = 0
    steps: int = 0
    loss: float = math.nan
    seconds: float = math.nan

    @property
    def share(self) -> float:
        """Part of the steps that is done, 0 to 1."""
        return self.step / self.steps if self.steps else 0.0

    def __str__(self) -> str:
        if not self.steps:
            return self.stage
        loss = "" if math.isnan(self.loss) else f", loss {self.loss:.2f}"
        left = "" if math.isnan(self.seconds) else f", {duration(self.seconds)} left"
        return f"{self.stage}: step {self.step} of {self.steps}{loss}{left}"


OnProgress = Callable[[TrainProgress], None]


@dataclass(frozen=True)
class TrainReport:
    """A finished training. refused: clip -> why it was left out. untouched, history: see `RunState`. trial: of the LoRA
    that was kept, at its best strength. warnings: for its user.
    """

    out: Path
    speech: str
    refused: dict[str, str]
    best_step: int
    untouched: dict[str, Any]
    history: list[dict[str, Any]]
    listened: float
    trial: Trial
    warnings: Sequence[str] = ()

    def __str__(self) -> str:
        return (
            f"Trained on {self.speech}. Kept the LoRA of step {self.best_step}, which is best at a strength of "
            f"{self.trial.strength:g}: {_words(self.trial.entry())}. Without it: {_words(self.untouched)}. The "
            f"{len(self.history)} trials took {duration(self.listened)}."
        )

    def curves(self) -> list[str]:
        """Return a sentence per trial: its losses, and what was heard at each strength."""
        return [
            f"Step {entry['step']}: loss {entry['loss']:.2f} (ends {entry['ends']:.2f}), of held-out clips "
            f"{entry['held_out']:.2f} ({entry['held_out_ends']:.2f}). "
            + "; ".join(f"Strength {one['strength']:g}: {_words(one)}" for one in entry["trials"])
            for entry in self.history
        ]


def _words(entry: Mapping[str, Any]) -> str:
    """Return the figures of a trial in words."""
    if entry["endless"]:
        return "does not end"
    wrong = "{} of {words} words wrong with a clip, {} without".format(*entry["wrong"], words=entry["words"])
    return wrong + (f", likeness {entry['likeness']:.2f}" if "likeness" in entry else "")


def train(
    config: EngineConfig,
    place: Path,
    out: Path,
    params: TrainParams = TrainParams(),  # noqa: B008 - it is immutable
    whisper: Path | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> TrainReport:
    """Train a LoRA on the clips in `place`, and write it to `out`, a .safetensors file or a folder.

    The best LoRA so far is there from the first trial on, so a run that is stopped keeps it. The same call then goes on
    after the last trial, to the same weights. With other clips or settings it starts over, and renames the files that
    its first LoRA replaces.

    Args:
        config: The model. Its device and dtype are those of the training.
        place: A folder of clips, or one recording. See `find_recordings`.
        out: The LoRA's place. A folder beside it, ending in .training, keeps the clips' codes, the state and the LoRA.
        params: Settings. See `TrainParams`.
        whisper: Whisper's folder, for clips without a transcript, and to listen to trials.
        on_progress: Called before each clip and step. May raise to stop.

    Raises:
        HiggsError: there are too few usable clips, the model does not understand them, no LoRA stops speaking in time,
            or a file cannot be written.
    """
    if config.adapters:
        raise HiggsError("A LoRA is trained on the model itself. Remove the other LoRAs from it first.")
    check_place(out)
    work = out.with_name(f"{out.stem}.training")
    engine = Engine(config)
    threads = contextlib.nullcontext() if engine.device.type == "cpu" else one_thread()
    with torch.inference_mode(False), sole_writer(work, ".lock"), threads:
        if params.names == "port" and engine.family != "v3":
            raise HiggsError("The transformers port has names for Higgs TTS 3 alone. Choose the names of the model.")
        if whisper:
            load_whisper(whisper, engine.device)  # a damaged one is refused now, not in the first trial
        learned = learnable(engine, place, work, whisper, on_progress)
        return _Training(engine, *learned, params, out, work, whisper).run(on_progress)


def training_bytes(config: EngineConfig, params: TrainParams) -> int:
    """Return about the bytes that a training takes on its device. Raises HiggsError like `Engine`."""
    engine = Engine(config)
    given = engine.checkpoint, engine.config, engine.device, engine.dtype
    return planned_bytes(*given, params.rank, params.codes_in_full)


def learnable(
    engine: Engine, place: Path, work: Path, whisper: Path | None, on_progress: OnProgress
) -> tuple[list[Utterance], dict[str, str]]:
    """Return the clips that can be learned, and clip -> why it cannot."""

    def on_clip(done: int, count: int) -> None:
        on_progress(TrainProgress(f"Reading clip {done + 1} of {count}"))

    recordings, refused = find_recordings(place)
    codec = engine.checkpoint.codec
    encoded = utterances_of(recordings, codec, engine.device, work / _CODES, whisper, on_clip)
    refused |= encoded.refused
    utterances = []
    for one in encoded.utterances:
        try:
            why = fits(engine.planner.prompts, FAMILIES[engine.family], one)
        except HiggsError as error:
            why = str(error)
        if why:
            refused[one.name] = why
        else:
            utterances.append(one)
    if _minutes(utterances) < LEAST_MINUTES or len(utterances) < LEAST_CLIPS:
        left_out = few((f"{name}: {why}" for name, why in refused.items()), most=5)
        raise HiggsError(
            f"{place} has {_minutes(utterances):.1f} minutes of usable speech in {len(utterances)} clips. A LoRA needs "
            f"{LEAST_MINUTES:g} minutes in {LEAST_CLIPS} clips at least, and becomes good from about 10 minutes on. "
            f"With less, clone the voice instead. {' '.join(left_out)}".rstrip()
        )
    return utterances, refused


def _minutes(utterances: list[Utterance]) -> float:
    return sum(len(one.codes) for one in utterances) / FRAME_RATE / 60


class _Training:
    """One training: its settings, its state, and the turns of learning and listening."""

    def __init__(
        self,
        engine: Engine,
        utterances: list[Utterance],
        refused: dict[str, str],
        params: TrainParams,
        out: Path,
        work: Path,
        whisper: Path | None,
    ):
        self._engine, self._refused, self._out, self._work = engine, refused, out, work
        self._lessons = Lessons(engine.planner.prompts, FAMILIES[engine.family], utterances, params.seed)
        minutes = _minutes(utterances)
        _, passes, rate = next(row for row in RECIPES if minutes < row[0])
        steps = min(max(round(passes * len(self._lessons.learned) / lessons.ROWS), _FEWEST), _MOST)
        rate *= (_WIDTH / engine.checkpoint.config.hidden) ** 2
        self._params = replace(params, steps=params.steps or steps, learning_rate=params.learning_rate or rate)
        self._every = max(APART, math.ceil(self._params.steps / TRIALS))
        self._speech = f"{minutes:.1f} minutes of speech in {len(utterances)} clips"
        digest = hashlib.sha256(f"{engine.fingerprint} {self._params}".encode())
        for one in utterances:
            digest.update(f"\n{one.text}\n".encode() + one.codes.numpy().tobytes())
        self._audition = Audition(engine, self._lessons.learned, self._lessons.held_out, whisper)
        digest.update(f"{self._audition.texts} {whisper and identity_of(whisper)}".encode())  # trials can be compared
        self._state = read_state(work / _STATE, digest.hexdigest())
        self._begun, self._began = time.monotonic(), self._state.step
        self._note = ""

    def run(self, on_progress: OnProgress) -> TrainReport:
        """Learn and listen by turns, from the last state on."""
        state, best, endless = self._state, None, ""
        listen = functools.partial(self._audition, on_frame=lambda *_: on_progress(self._progress("Listening")))
        if not state.untouched:
            state.untouched = listen(None, 0.0).entry()
        while state.step < self._params.steps:
            tensors = self._learn(on_progress)
            self._write(self._work / _TRIED, tensors)
            began, trials, is_first = time.monotonic(), [], not state.best_step
            for strength, loss in zip(STRENGTHS, state.history[-1]["held_out_at"], strict=True):
                trial = listen(self._work / _TRIED, strength)
                trials.append(trial.entry())
                endless = trial.endless or endless
                rank = trial.rank(state.untouched, loss)
                if not trial.endless and state.keep_best(strength, rank):
                    best = trial
                if not trial.endless and not rank[0]:  # it misreads nothing
                    break
            state.listened += time.monotonic() - began
            state.history[-1]["trials"] = trials
            if best is not None and state.best_step == state.step:
                self._write(self._work / _BEST, tensors)
                if is_first:
                    state.renamed = keep_earlier(self._out)
                copy_adapter(self._work / _BEST, self._out)
            state.write(self._work / _STATE)
        if not state.best_step:
            raise HiggsError(
                f"No LoRA was kept, for with each of them speech does not end: {endless}. Check that the "
                "transcripts are those of the clips, or choose a lower learning rate."
            )
        if not adapter_files(self._out)[0].is_file():  # somebody moved it away
            copy_adapter(self._work / _BEST, self._out)
        best = best or listen(self._out, state.best_strength)
        course = state.best_step, state.untouched, state.history, state.listened
        warnings = [*filter(None, [self._note, state.renamed]), *self._audition.warnings(best, state.untouched)]
        return TrainReport(self._out, self._speech, self._refused, *course, best, warnings)

    def _learn(self, on_progress: OnProgress) -> dict[str, torch.Tensor]:
        """Learn until the next trial. Returns the adapter's tensors. Leaves nothing on the device."""
        state, engine, params = self._state, self._engine, self._params
        vocabulary, sharpness = self._lessons.vocabulary(), engine.planner.card.sharpness
        given = engine.checkpoint, engine.config, engine.device, engine.dtype, vocabulary
        with Network(*given, params.rank, self._alpha, sharpness, params.codes_in_full) as network:
            if state.tensors:
                network.restore(*(state.tensors[name] for name in NUMBERS))
            else:
                network.start(params.seed)
                self._check_shift(network)
            losses, stop = [], min(params.steps, state.step + self._every)
            while state.step < stop:
                on_progress(self._progress("Learning", losses[-1].codes if losses else math.nan))
                losses.append(network.learn(self._lessons.step(state.step), self._rate(state.step), state.step + 1))
                if not math.isfinite(losses[-1].codes):
                    raise HiggsError(
                        f"The loss of step {state.step + 1} is not a number. Choose a lower learning rate than "
                        f"{params.learning_rate:.2g}. The best LoRA so far stays."
                    )
                state.step += 1
            rows = self._lessons.test()
            tests = [network.losses(rows, strength) for strength in STRENGTHS]
            codes, ends = (sum(each) / len(losses) for each in zip(*losses, strict=True))
            entry = {"step": state.step, "loss": codes, "ends": ends, "held_out_ends": tests[0].ends}
            state.history.append(entry | {"held_out": tests[0].codes, "held_out_at": [one.codes for one in tests]})
            state.tensors = {name: getattr(network, name).cpu().clone() for name in NUMBERS}
            self._note = network.note
            return network.adapter(state.tensors["numbers"])

    def _check_shift(self, network: Network) -> None:
        """Raise HiggsError unless the untouched model expects the clips' codes where they are."""
        means = [network.shifted(rows, _SHIFTS) for rows in self._lessons.test()]
        totals = [sum(each) for each in zip(*means, strict=True)]
        if min(totals) < totals[0]:
            best = _SHIFTS[totals.index(min(totals))]
            raise HiggsError(
                f"The model expects these clips' codes {abs(best)} positions {'later' if best > 0 else 'earlier'} than "
                "they are, so it was made with another layout of codes or another codec. Choose the published model."
            )

    def _rate(self, step: int) -> float:
        """Return the learning rate: it rises, then falls to zero."""
        rise = max(1, round(_WARM_UP * self._params.steps))
        share = (step + 1) / rise if step < rise else (self._params.steps - step) / max(1, self._params.steps - rise)
        return self._params.learning_rate * share

    @property
    def _alpha(self) -> float:
        return 2.0 * self._params.rank

    def _write(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        params, last = self._params, self._state.history[-1]
        card = {
            "made from": f"{self._speech}, {len(self._lessons.held_out)} of them held out",
            "steps": f"{last['step']} of {params.steps}, {lessons.ROWS} clips each",
            "learning rate": f"{params.learning_rate:.2g}",
            "rank, alpha": f"{params.rank}, {self._alpha:g}",
            "code embedding and head": "trained in full" if params.codes_in_full else "as they were",
            "seed": params.seed,
            "weights while training": self._engine.config.dtype,
            "loss of learned clips, of held-out ones": f"{last['loss']:.3f}, {last['held_out']:.3f}",
            "trial": "; ".join(f"strength {one['strength']:g}: {_words(one)}" for one in last.get("trials", ())),
        }
        if params.names == "port":
            tensors = {PEFT_PREFIX + port_name(name.removeprefix(PEFT_PREFIX)): one for name, one in tensors.items()}
        write_adapter(path, tensors, params.rank, self._alpha, self._engine.planner.model, card)

    def _progress(self, stage: str, loss: float = math.nan) -> TrainProgress:
        done, steps = self._state.step - self._began, self._params.steps
        seconds = (time.monotonic() - self._begun) / done * (steps - self._state.step) if done else math.nan
        return TrainProgress(stage, self._state.step, steps, loss, seconds)
