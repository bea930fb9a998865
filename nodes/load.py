"""HiggsTTSLoadModel: a checkpoint's folder becomes a HIGGS_TTS_MODEL. Takes no memory on the device."""

from __future__ import annotations

from pathlib import Path

import comfy.utils
from comfy_api.latest import io

from ..engine import DEFAULT_GRAPHS, DTYPES, GRAPHS, Engine, EngineConfig, HiggsError, download_checkpoint
from . import folders, patcher, types

NAME = "Higgs Load Model"
LICENCE = (
    "Licence: the weights of Higgs TTS 3 are for research and non-commercial use; their licence grants creators "
    "some use of what they make. Read the LICENSE file beside the weights before you publish."
)
STEPS = 1000  # of the download's progress bar


class HiggsTTSLoadModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLoadModel",
            display_name=NAME,
            category=types.CATEGORY,
            description="Chooses a Higgs Audio v2 or Higgs TTS 3 checkpoint. Memory is taken when it first speaks. "
            + LICENCE,
            search_aliases=["higgs audio", "tts", "text to speech", "boson", "load higgs"],
            inputs=[
                io.Combo.Input(
                    "model",
                    options=folders.choices(),
                    tooltip="Folder of the checkpoint, in models/higgs_tts and wherever else they are kept, or in "
                    f"Hugging Face's cache. A '{folders.DOWNLOAD}' entry fetches it into models/higgs_tts when it "
                    f"runs. {LICENCE}",
                ),
                *_advanced_inputs(),
            ],
            outputs=[types.Model.Output(display_name="model", tooltip="For Higgs Voice and Higgs Speak.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, model: str | None) -> bool | str:
        """Also what makes ComfyUI accept a name saved on another machine. A linked name (None) is known later."""
        if model is None:
            return True
        if model.startswith(folders.DOWNLOAD):
            return True if model in folders.choices() else f"{NAME}: {model!r} is not in the list of downloads."
        try:
            folders.find(model)
        except HiggsError as error:
            return f"{NAME}: {error}"
        return True

    @classmethod
    def fingerprint_inputs(cls, model: str | None, **settings) -> list:
        """The files' sizes and times. A download is pinned, so its name says it all; a linked name is None here."""
        if model is None or model.startswith(folders.DOWNLOAD):
            return [model]
        return folders.stamp(folders.find(model))

    @classmethod
    def execute(
        cls, model: str, device: str = EngineConfig.device, graphs: str = DEFAULT_GRAPHS, **settings
    ) -> io.NodeOutput:
        with patcher.told_by(NAME):
            is_download = model.startswith(folders.DOWNLOAD)
            folder = fetch(model, cls.hidden.unique_id) if is_download else folders.find(model)
            stamp = folders.stamp(folder)  # before the files are looked at: a later change then counts as one
            settings |= {"device": patcher.device_of(device), "runner": patcher.runner_of(graphs)}
            engine = Engine(EngineConfig(model=str(folder), **settings))
            stamp += folders.stamp(engine.checkpoint.codec_folder)
        return io.NodeOutput(patcher.share_patcher(engine, stamp))


def fetch(choice: str, node_id: str) -> Path:
    """The folder of a '{DOWNLOAD}' choice, fetched if it is not there. Raises HiggsError, or ComfyUI's interrupt."""
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
            tooltip="Where the model runs. auto: where ComfyUI runs its own models.",
        ),
        io.Combo.Input(
            "dtype",
            options=list(DTYPES),
            default=EngineConfig.dtype,
            optional=True,
            advanced=True,
            tooltip="Precision of the weights. auto: bf16 on a GPU, fp32 on a CPU. fp32 takes twice the memory.",
        ),
        io.Int.Input(
            "context",
            default=EngineConfig.context,
            min=512,
            max=8192,
            step=256,
            optional=True,
            advanced=True,
            tooltip="Room for text, reference clip and speech together, 25 positions a second of sound. "
            "Less takes less memory.",
        ),
        io.Combo.Input(
            "graphs",
            options=list(GRAPHS),
            default=DEFAULT_GRAPHS,
            optional=True,
            advanced=True,
            tooltip="CUDA graphs: the GPU records a step of speech once and repeats it by itself, which is "
            "faster and sounds the same. auto: wherever there is an NVIDIA GPU. off: if the driver has "
            "trouble with them.",
        ),
    ]
