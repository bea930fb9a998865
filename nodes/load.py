"""HiggsTTSLoadModel: a checkpoint's folder becomes a HIGGS_TTS_MODEL. Takes no memory on the device."""

from __future__ import annotations

from pathlib import Path

import comfy.utils
from comfy_api.latest import io

from ..engine import DEFAULT_GRAPHS, DTYPES, GRAPHS, Engine, EngineConfig, HiggsError, download_checkpoint
from . import folders, patcher, types, widgets

NAME = "Higgs Load Model"
LICENCE = (
    "Licence: the weights of Higgs TTS 3 are for research and non-commercial use; their licence lets creators use what "
    "they generate, within limits. Read the LICENSE file next to the weights before you publish."
)
STEPS = 1000  # of the download's progress bar


class HiggsTTSLoadModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLoadModel",
            display_name=NAME,
            category=types.CATEGORY,
            description="Chooses a Higgs Audio v2 or Higgs TTS 3 checkpoint. It is loaded when it first speaks. "
            + LICENCE,
            search_aliases=["higgs audio", "tts", "text to speech", "boson", "load higgs"],
            inputs=[
                io.Combo.Input(
                    "model",
                    options=folders.choices(),
                    default=folders.AUTO,
                    tooltip="The checkpoint to use, from models/higgs_tts or the other folders listed under ?. auto "
                    "takes Higgs TTS 3 if it is there, else Higgs Audio v2, else the small embedded one. A "
                    f"'{folders.DOWNLOAD}' entry is downloaded into models/higgs_tts when it runs. {LICENCE}",
                ),
                *_advanced_inputs(),
            ],
            outputs=[types.Model.Output(display_name="model", tooltip="For Higgs Voice and Higgs Speak.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, model: str | None, device: str | None = None) -> bool | str:
        """Makes ComfyUI accept names and devices saved on another machine. A linked name (None) is known later."""
        if model is None:
            return True
        if not isinstance(model, str):
            return f"{NAME}: model is {model!r}. Choose a name from the list."
        if model.startswith(folders.DOWNLOAD):
            return True if model in folders.choices() else f"{NAME}: {model!r} is not in the list of downloads."
        try:
            folders.find(model)
        except HiggsError as error:
            return f"{NAME}: {error}"
        return True

    @classmethod
    def fingerprint_inputs(cls, model: str | None, **settings) -> list:
        """What it takes, and the files' sizes and times. A download is pinned, so its name is enough."""
        if model is None or model.startswith(folders.DOWNLOAD):  # a linked name is None here
            return [model]
        found = folders.find(model)
        return [found.name, *folders.stamp(found.path)]

    @classmethod
    def execute(
        cls, model: str, device: str = EngineConfig.device, graphs: str = DEFAULT_GRAPHS, **settings
    ) -> io.NodeOutput:
        with patcher.told_by(NAME):
            folder, name = _folder_of(model, cls.hidden.unique_id)
            stamp = folders.stamp(folder)  # before the files are looked at: a later change then counts as one
            device, note = patcher.device_of(device)
            settings |= {"device": device, "runner": patcher.runner_of(graphs)}
            engine = Engine(EngineConfig(model=str(folder), **settings))
            stamp += folders.stamp(engine.checkpoint.codec_folder)
        return io.NodeOutput(patcher.share_patcher(engine, stamp, name, note))


def _folder_of(model: str, node_id: str) -> tuple[Path, str]:
    """The folder of a choice, downloaded if need be, and what the checkpoint in it is called."""
    if model.startswith(folders.DOWNLOAD):
        folder = fetch(model, node_id)
        return folder, folder.name
    found = folders.find(model)
    return found.path, found.name


def fetch(choice: str, node_id: str) -> Path:
    """The folder of a download entry, fetched if it is not there. Raises HiggsError, or ComfyUI's interrupt."""
    bar = comfy.utils.ProgressBar(STEPS, node_id=node_id)  # threads fetch, and they know no current node

    def on_progress(fraction: float, text: str) -> None:
        if patcher.is_interrupted():  # left standing, so that it ends every thread
            raise InterruptedError("stopped by the user")
        bar.update_absolute(round(fraction * STEPS))

    try:
        return download_checkpoint(choice.removeprefix(folders.DOWNLOAD), folders.download_root(), on_progress)
    except HiggsError:
        patcher.check_interrupt()
        raise


def _advanced_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "device",
            options=patcher.device_names(),
            default=EngineConfig.device,
            optional=True,
            advanced=True,
            tooltip="Where the model runs. auto: where ComfyUI runs its own models. On Windows ComfyUI shows one GPU "
            "unless it is started with --cuda-device all.",
        ),
        io.Combo.Input(
            "dtype",
            options=list(DTYPES),
            default=EngineConfig.dtype,
            optional=True,
            advanced=True,
            tooltip="Precision of the weights. auto: bf16 on a GPU, fp32 on a CPU. fp32 takes twice the memory.",
        ),
        widgets.number(
            EngineConfig,
            "context",
            advanced=True,
            tooltip="Maximum length of text, reference clip and speech together, in tokens (25 per second of audio). "
            "Lower values use less memory.",
        ),
        io.Combo.Input(
            "graphs",
            options=list(GRAPHS),
            default=DEFAULT_GRAPHS,
            optional=True,
            advanced=True,
            tooltip="CUDA graphs: the GPU records one step of speech and replays it, which is faster and sounds the "
            "same. auto: on every NVIDIA GPU. off: if the driver has trouble with them.",
        ),
    ]
