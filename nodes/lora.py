"""HiggsTTSLoadLoRA: adds a LoRA to a HIGGS_TTS_MODEL. Allocates no device memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comfy_api.latest import io

from ..engine import Adapter, Engine, HiggsError
from .comfy import types, widgets
from .comfy.linked import check_linked
from .comfy.node_errors import node_errors, refusal
from .comfy.patcher import HiggsPatcher
from .comfy.remote_model import AnyModel, ServerModel
from .comfy.sharing import share_patchers
from .library.lora_folders import find_lora, lora_fingerprint, loras

NAME = "Higgs Load LoRA"
NONE = "(put one into models/loras)"  # the only entry if there are no LoRAs: an empty list cannot be queued


class HiggsTTSLoadLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLoadLoRA",
            display_name=NAME,
            category=types.CATEGORY,
            description="Adds a LoRA trained for Higgs TTS 3 or Higgs Audio v2: a voice, a language or a style. It is "
            "merged into the weights when they load, so speech is just as fast.",
            search_aliases=["lora", "peft", "adapter", "fine-tune", "higgs audio", "tts"],
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model, or from another Higgs Load LoRA."),
                io.Combo.Input(
                    "name",
                    options=list(loras()) or [NONE],
                    tooltip="A .safetensors file in models/loras, or a folder there saved by PEFT, including its "
                    "adapter_config.json. For a single file anna.safetensors, save those settings as anna.json next "
                    "to it. The list also shows LoRAs for image models, which do not work here.",
                ),
                widgets.number(
                    Adapter,
                    "strength",
                    tooltip="Strength of the LoRA: 0 is the model without it, 1 is the LoRA as trained. Changing it "
                    "reloads the weights.",
                ),
                io.Boolean.Input(
                    "partial",
                    default=Adapter.partial,
                    optional=True,
                    advanced=True,
                    tooltip="Turn this on to load a LoRA even if some of its tensors have no place in the model. They "
                    "are left out, and info names them. Off, such a LoRA is an error.",
                ),
            ],
            outputs=[
                types.Model.Output(display_name="model", tooltip="For Higgs Speak and the other nodes that speak.")
            ],
        )

    @classmethod
    def validate_inputs(cls, name: str | None) -> bool | str:
        """Check the LoRA. A name saved on another machine is accepted; a linked one (None) is checked later."""
        if name is None:
            return True
        return refusal(NAME, lambda: find_lora(name))

    @classmethod
    def fingerprint_inputs(cls, name: str | None, **others: object) -> list:
        return [] if name is None else lora_fingerprint(find_lora(name))

    @classmethod
    def execute(
        cls, model: AnyModel, name: str, strength: float = Adapter.strength, partial: bool = Adapter.partial
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            if not strength:
                return io.NodeOutput(model)
            if isinstance(model, ServerModel):
                raise HiggsError(
                    "a LoRA cannot be added here because the model runs on a server. Start the server with the LoRA "
                    "instead: python -m engine serve --lora FILE."
                )
            return io.NodeOutput(with_lora(model, Adapter(str(find_lora(str(name))), strength, partial)))


def with_lora(model: HiggsPatcher, adapter: Adapter) -> HiggsPatcher:
    """Return a model with one more LoRA."""
    path = Path(adapter.path)
    files = [*model.model.files, *lora_fingerprint(path)]  # before reading, so a later change is noticed
    configs = [patcher.engine.config for patcher in (model, *model.others)]
    engines = [Engine(replace(config, adapters=(*config.adapters, adapter))) for config in configs]
    label = f"{model.model.label} + {path.stem} {adapter.strength:g}"
    return share_patchers(engines, files, label, *model.model.warnings)
