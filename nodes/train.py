"""HiggsTTSTrainVoice: trains a LoRA on recordings of a voice, and adds it to the model."""

from __future__ import annotations

import functools
from pathlib import Path

import comfy.utils
from comfy_api.latest import io

from ..engine import (
    LORA_NAMES,
    SAMPLE_RATE,
    Adapter,
    HiggsError,
    TrainParams,
    TrainProgress,
    TrainReport,
    file_stamp,
    find_whispers,
    train,
    training_bytes,
)
from .comfy import audio, folders, types, widgets
from .comfy.allowed import readable
from .comfy.info import info
from .comfy.linked import check_linked
from .comfy.memory import free_memory
from .comfy.node_errors import check_interrupt, node_errors, refuse
from .comfy.progress_text import NodeText
from .comfy.remote_model import AnyModel, ServerModel
from .comfy.written import Written
from .library.lora_folders import lora_target
from .lora import with_lora

NAME = "Higgs Train Voice"
NO_WHISPER = "none"
BAR_STEPS = 1000
_trained = Written()  # by the LoRA's path
folders.register(folders.WHISPER)


class HiggsTTSTrainVoice(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSTrainVoice",
            display_name=NAME,
            category=types.CATEGORY,
            description="Trains a LoRA on recordings of one person, who agreed to it, and saves it to models/loras. "
            "Stop at any time: the best LoRA so far is kept, and the next run continues.",
            search_aliases=["train", "lora", "fine-tune", "finetune", "peft", "voice", "higgs audio", "tts"],
            is_output_node=True,
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model, without LoRAs."),
                io.String.Input(
                    "recordings",
                    default="my voice",
                    tooltip="A folder in ComfyUI's input folder, or one long recording there: 10 to 30 minutes of one "
                    "voice. Transcripts lie beside the clips as .txt, .srt or .vtt, or in a .csv.",
                ),
                io.String.Input("name", default="my voice", tooltip="The LoRA's name in models/loras."),
                widgets.number(TrainParams, "steps", tooltip="Number of steps. 0 fits the minutes of speech."),
                io.Combo.Input(
                    "whisper",
                    options=whispers(),
                    default=NO_WHISPER,
                    optional=True,
                    tooltip="A Whisper model in models/whisper. It writes down clips that have no transcript, and "
                    "hears which words the LoRA misreads.",
                ),
                *_advanced(),
            ],
            outputs=[
                types.Model.Output(display_name="model", tooltip="The model with the LoRA, for Higgs Speak."),
                io.Audio.Output(
                    display_name="audio",
                    tooltip="Texts spoken with the LoRA, each with a clip as the voice and then without.",
                ),
                io.Custom("LOSS_MAP").Output(display_name="losses", tooltip="For ComfyUI's Loss Graph."),
                io.String.Output(display_name="info", tooltip="What was learned, and which clips were left out."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, recordings: str | None, name: str | None) -> bool:
        """Refuse a folder or a name before the run. Linked inputs are None."""

        def check() -> None:
            if recordings is not None:
                _recordings(recordings)
            if name is not None:
                _target(name)

        return refuse(NAME, check)

    @classmethod
    def fingerprint_inputs(cls, recordings: str | None, name: str | None, **others: object) -> list:
        """Run again if a recording or the LoRA has changed. Linked inputs are None."""
        if recordings is None or name is None:
            return []
        place = _recordings(recordings)
        files = sorted(folders.files_below(place)) if place.is_dir() else [place]
        return [_trained.number(lora_target(name)), *([str(file), *file_stamp(file)] for file in files)]

    @classmethod
    def execute(
        cls,
        model: AnyModel,
        recordings: str,
        name: str,
        steps: int = TrainParams.steps,
        whisper: str = NO_WHISPER,
        learning_rate: float = TrainParams.learning_rate,
        rank: int = TrainParams.rank,
        codes_in_full: bool = TrainParams.codes_in_full,
        names: str = TrainParams.names,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            if isinstance(model, ServerModel):
                raise HiggsError("the model runs on a server. Connect Higgs Load Model to train on this machine.")
            params = TrainParams(steps, learning_rate, rank, codes_in_full=codes_in_full, names=names)
            place, out = _recordings(recordings), _target(name)
            config = model.engine.config
            free_memory(training_bytes(config, params), model.engine.device)
            report = train(config, place, out, params, _whisper(whisper), _teller(cls.hidden.unique_id))
            _trained.leave(out, functools.partial(file_stamp, out))
            adapted = with_lora(model, Adapter(str(out), report.trial.strength))
            assert report.trial.speech is not None
            speech = audio.of_wave(report.trial.speech.wav[None], SAMPLE_RATE)
            losses = {"loss": [entry["loss"] for entry in report.history]}
        return io.NodeOutput(adapted, speech, losses, describe(report, model))


def _advanced() -> list[io.Input]:
    return [
        widgets.number(
            TrainParams,
            "learning_rate",
            advanced=True,
            tooltip="Learning rate. 0 fits the minutes of speech. Lower it if speech does not end.",
        ),
        widgets.number(
            TrainParams,
            "rank",
            advanced=True,
            tooltip="Rank of the LoRA. A higher rank learns more and takes more memory.",
        ),
        io.Boolean.Input(
            "codes_in_full",
            default=TrainParams.codes_in_full,
            optional=True,
            advanced=True,
            tooltip="Also train the code embedding and the head in full. With Higgs TTS 3, training takes "
            "0.9 GB more memory, and the LoRA has 300 MB instead of 130.",
        ),
        io.Combo.Input(
            "names",
            options=list(LORA_NAMES),
            default=TrainParams.names,
            optional=True,
            advanced=True,
            tooltip="Names of the LoRA's tensors: the model's own, or for other programs those of the "
            "transformers port of Higgs TTS 3. Higgs Load LoRA reads both.",
        ),
    ]


def whispers() -> list[str]:
    """Return the choices of Whisper: none, and the local models."""
    return [NO_WHISPER, *find_whispers(folders.registered(folders.WHISPER))]


def _whisper(name: str) -> Path | None:
    installed = find_whispers(folders.registered(folders.WHISPER))
    if name != NO_WHISPER and name not in installed:
        raise HiggsError(f"there is no {str(name)[:80]!r} in models/{folders.WHISPER}. Put it there and press R.")
    return installed.get(name)


def _recordings(name: str) -> Path:
    """Return the folder or file of recordings. Raises HiggsError if it is missing or may not be read."""
    place = readable(name.strip() or ".")
    if not name.strip() or not place.exists():
        raise HiggsError(
            f"there are no recordings at {str(place)[:200]}. Put a folder with clips into ComfyUI's input folder, and "
            "enter its name."
        )
    return place


def _target(name: str) -> Path:
    """Return the LoRA's file. Raises HiggsError if another LoRA has that name."""
    out = lora_target(name)
    if out.exists() and not out.with_name(f"{out.stem}.training").is_dir():
        raise HiggsError(f"{out} exists and was not trained here. Choose another name.")
    return out


def _teller(node_id: str):
    """Return a callback that shows progress, and raises if the user pressed stop."""
    bar, text = comfy.utils.ProgressBar(BAR_STEPS), NodeText(node_id)

    def on_progress(progress: TrainProgress) -> None:
        check_interrupt()
        bar.update_absolute(round(BAR_STEPS * progress.share), BAR_STEPS)
        text.show(str(progress))

    return on_progress


def describe(report: TrainReport, model: AnyModel) -> str:
    left_out = [f"{clip} was left out. {why}" for clip, why in report.refused.items()]
    saved = f"Saved as {report.out}."
    return info([f"{report} {saved}"], [*report.warnings, *left_out], (), report.curves(), model.model.label, "")
