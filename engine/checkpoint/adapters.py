"""LoRA adapters in PEFT's format, and the changes they make to a talker's tensors."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..core.config import Adapter
from ..core.errors import HiggsError, shown
from ..files.json_file import number, read_json
from .adapter_files import SETTINGS, adapter_files, left_unread, listed, require_weights, trainer_of
from .places import places_in_pickle
from .talker_layout import Source, TensorPlan, beginnings, is_unused, table_name, untied
from .tensor_file import TensorFile, open_tensors

_PREFIX = "base_model.model."  # PEFT's prefix of all names
_ALPHA = 8  # PEFT's default
_MOST_ALPHA = 1e6
_ROWS_AT_ONCE = 4 << 20  # weights converted to fp32 at a time

# "module.lora_A.weight"; in a raw state dict also with the adapter's name, "module.lora_A.x.weight".
_KEY = re.compile(
    r"(?P<module>.+?)\.lora_(?P<part>(embedding_)?[AB]|magnitude_vector)(\.(?P<adapter>(?!weight$|bias$)\w+))?"
    r"(\.(?P<leaf>weight|bias))?"
)
# Parts of names that wrappers add before the model's own: PEFT, DDP, torch.compile, FSDP, a language model inside.
_WRAPPERS = {"base_model", "model", "module", "_orig_mod", "_fsdp_wrapped_module", "language_model", "transformer"}
# Not trained weights: states of the optimiser, and averages of weights that the file also holds as trained.
_SPARE = re.compile(
    r"(^|\.)(optimizer|optim|exp_avg(_sq)?|momentum_buffer|(ema|swa)(_(model|weights|params|state))?)(\.|$)"
)
_SAVED = re.compile(r"(?P<module>.+?)(\.modules_to_save(\.\w+)?)?\.weight")
# Settings of peft 0.21's LoraConfig with which the trained model is not base + B @ A.
_REFUSED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
)
_WHOLE = ({"A", "B"}, {"A", "B", "magnitude_vector"}, {"embedding_A", "embedding_B"}, {"whole"})
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # values of init_lora_weights


@dataclass(frozen=True)
class Change:
    """Change that one adapter makes to one tensor of the talker."""

    file: TensorFile
    # Part -> key. Parts: "A" and "B", "embedding_A" and "embedding_B", or "whole"; DoRA adds "magnitude_vector".
    keys: Mapping[str, str]
    factor: float  # alpha / rank
    strength: float

    def apply(self, target: torch.Tensor) -> None:
        """Apply the change to `target`, the base's tensor in any float dtype on any device, in place."""
        get = {part: self.file.get(key, target.device) for part, key in self.keys.items()}
        get = {part: tensor if part == "whole" else tensor.float() for part, tensor in get.items()}
        count = max(1, _ROWS_AT_ONCE // math.prod(target.shape[1:]))
        for start in range(0, len(target), count):
            rows = slice(start, start + count)
            wide = target[rows].float()
            if "whole" in get:
                wide = wide.lerp(get["whole"][rows].float(), self.strength)
            elif "magnitude_vector" in get:
                moved = wide + get["B"][rows] @ get["A"] * self.factor
                length = torch.linalg.vector_norm(moved, dim=1)
                wide = wide.lerp((get["magnitude_vector"].flatten()[rows] / length)[:, None] * moved, self.strength)
            elif "B" in get:
                wide = wide + get["B"][rows] @ get["A"] * (self.factor * self.strength)
            else:
                delta = get["embedding_A"][:, rows].T @ get["embedding_B"].T
                wide = wide + delta * (self.factor * self.strength)
            target[rows] = wide

    def misfit(self, source: Source) -> str:
        """Return why the change does not fit this tensor, or empty if it fits."""
        if self.keys.keys() not in _WHOLE:
            return f"{' and '.join(self.keys.values())} cannot be used alone"
        shapes = {part: self.file.shapes[key] for part, key in self.keys.items()}
        rank = next((shapes[part][0] for part in ("A", "embedding_A") if shapes.get(part)), 0)
        rows, *width = source.shape
        wanted = {
            "whole": source.shape,
            "A": (rank, *width),
            "B": (rows, rank),
            "embedding_A": (rank, rows),
            "embedding_B": (*width, rank),
        }
        for part, shape in shapes.items():
            if part == "magnitude_vector":
                if math.prod(shape) != rows:
                    return f"{self.keys[part]} has {math.prod(shape)} entries, but {source.name} has {rows} rows"
            elif shape != wanted[part]:
                return f"{self.keys[part]} has the shape {list(shape)}, but {source.name} has {list(source.shape)}"
        return ""


@dataclass(frozen=True)
class Adapters:
    """Changes of the chosen adapters, in merge order, by table name of the layout."""

    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def change_any(self, sources: Sequence[Source]) -> bool:
        """True if an adapter changes one of the stored tensors."""
        return any(source.name in self.changes for source in sources)

    def merges(self, sources: Sequence[Source], target: torch.Tensor) -> list[Callable[[], None]]:
        """Return functions that merge into `target`, the stacked `sources`, in order. Empty if nothing changes it.

        They are not closures, through which an error would keep the tensors.
        """
        parts = target.split([source.shape[0] for source in sources])
        return [
            functools.partial(change.apply, part)
            for one, part in zip(sources, parts, strict=True)
            for change in self.changes.get(one.name, ())
        ]


def lay_over(adapters: Sequence[Adapter], family: str, plan: TensorPlan) -> tuple[Adapters, TensorPlan]:
    """Return the changes that adapters make to a talker, and its plan.

    The head becomes a separate tensor in the plan if an adapter changes the code embedding or the head tied to it.
    Raises HiggsError if a file is not an adapter, cannot be merged, or was made for another model.
    """
    changes: dict[str, tuple[Change, ...]] = {}
    warnings: list[str] = []
    free = untied(plan, family)
    sources = {source.name: source for parts in free.parts.values() for source in parts}
    for adapter in adapters:
        opened = _Opened(Path(adapter.path).expanduser(), adapter.strength)
        own, unfit = opened.changes(family, sources)
        for name, change in own.items():
            changes[name] = (*changes.get(name, ()), change)
        warnings += opened.warnings
        lost, spare = ([key for key in unfit if _is_spare(key, family) is kind] for kind in (False, True))
        of_all = f"of the {len(opened.file.shapes)} tensors of the LoRA {adapter.path}"
        if lost and not adapter.partial:
            raise HiggsError(
                f"{len(lost)} {of_all} have no place in this model: {listed(lost)}. {trainer_of(opened.file.shapes)}"
                "To load the rest without them, turn on partial in Higgs Load LoRA, or add --partial-lora."
            )
        for keys, why in ((lost, "have no place in this model"), (spare, "are not used for speech")):
            if keys:
                warnings.append(f"{len(keys)} {of_all} {why} and were left out: {listed(keys)}.")
    shared = (source.name for name in ("embed_codes", "head_codes") for source in free.parts[name])
    is_free = plan.tied and any(name in changes for name in shared)
    return Adapters(changes, tuple(warnings)), free if is_free else plan


class _Opened:
    def __init__(self, path: Path, strength: float):
        self.path, self.strength = path, strength
        self.warnings: list[str] = []
        require_weights(path)
        weights, config, *modules = adapter_files(path)
        self.file = open_tensors([weights])
        for extra in filter(Path.is_file, modules):
            places = places_in_pickle(extra, nested=True)
            if both := sorted(places.keys() & self.file.places.keys()):
                raise HiggsError(
                    f"{weights} and {extra} both contain the tensor {both[0]}. Keep only one of them there."
                )
            self.file = TensorFile({**self.file.places, **places})
        if unread := left_unread(path):
            self.warnings.append(f"Files beside the LoRA {path} were not read: {listed(unread)}.")
        self.config: dict = {}
        self._alphas: dict[str, tuple[int, object]] = {}  # end of a module's name -> (index in alpha_pattern, alpha)
        if path.is_dir() or config.is_file():
            self.config = read_json(config)
            self._refuse_unsupported(config)
            self._alphas = self._alphas_by_name()
        else:
            self.warnings.append(
                f"The LoRA {path} has no settings file, so its alpha was assumed to equal its rank. If it sounds too "
                f"strong or too weak, copy its {SETTINGS} to {config}."
            )

    def _alphas_by_name(self) -> dict[str, tuple[int, object]]:
        """Return the alphas in alpha_pattern.

        PEFT treats its keys as regular expressions. Untrusted ones may never terminate, so only names are accepted.
        """
        pattern = self.config.get("alpha_pattern") or {}
        names = pattern if isinstance(pattern, dict) else {}
        plain = {name.removeprefix("^").removesuffix("$").replace("\\.", "."): name for name in names}
        odd = [name for end, name in plain.items() if not re.fullmatch(r"[\w.-]+", end)]
        if odd or names is not pattern:
            raise HiggsError(
                f"The LoRA {self.path}: alpha_pattern contains {shown(odd[0] if odd else pattern)}, which is not a "
                "module name. Write out the full names."
            )
        return {end: (at, names[name]) for at, (end, name) in enumerate(plain.items())}

    def _refuse_unsupported(self, path: Path) -> None:
        kind = self.config.get("peft_type")
        if kind != "LORA":
            raise HiggsError(f"{path}: peft_type is {shown(kind)}. Only LORA is supported.")
        init = self.config.get("init_lora_weights")
        if isinstance(init, str) and init.lower().startswith(_CHANGE_THE_BASE):
            raise HiggsError(
                f"{path}: init_lora_weights is {shown(init)}, which also changes the base model. Convert it to a "
                "plain LoRA: save it with PEFT's path_initial_model_for_weight_conversion."
            )
        for name in _REFUSED:
            if self.config.get(name):
                raise HiggsError(f"{path}: {name} is set, which is not supported. Merge it into the model with PEFT.")

    def changes(self, family: str, sources: Mapping[str, Source]) -> tuple[dict[str, Change], list[str]]:
        """Return (table name -> change, tensors of the file that match nothing)."""
        modules, unfit = self._modules()
        placed = _placed(modules, family, sources)
        changes = {}
        for module, keys in modules.items():
            if module not in placed:
                unfit += keys.values()
                continue
            source = sources[placed[module]]
            change = Change(self.file, keys, self._factor(module, keys), self.strength)
            if odd := next((key for key in keys.values() if not self.file.dtypes[key].is_floating_point), None):
                path, stored = self.file.file_of(odd), shown(self.file.stored_as(odd))
                raise HiggsError(f"{path}: {odd} is stored as {stored}, which is not supported. Use the bf16 files.")
            if misfit := change.misfit(source):
                raise HiggsError(
                    f"The LoRA {self.path} does not fit this model: {misfit}. Choose the model it was trained on."
                )
            changes[source.name] = change
        if not changes:
            raise HiggsError(
                f"{self.path} is not a LoRA for this model: none of its {len(self.file.shapes)} tensors match. Their "
                f"names start with {beginnings(self.file.shapes)}. {trainer_of(self.file.shapes)}Choose a LoRA trained "
                "on this model."
            )
        return changes, unfit

    def _modules(self) -> tuple[dict[str, dict[str, str]], list[str]]:
        """Return (module -> part -> key, keys that are not part of a LoRA)."""
        modules: dict[str, dict[str, str]] = {}
        unfit = []
        parsed = [(_KEY.fullmatch(key.removeprefix(_PREFIX)), key) for key in self.file.shapes]
        # Of several adapters in a raw state dict the default one is taken; the others' keys fit nothing.
        for match, key in sorted(parsed, key=lambda one: bool(one[0] and one[0]["adapter"] not in (None, "default"))):
            if ".base_layer." in key or ".original_module." in key:  # a copy of untrained weights
                continue
            saved = _SAVED.fullmatch(key.removeprefix(_PREFIX))
            if match and match["leaf"] != "bias":
                module, part = match["module"], match["part"]
            elif saved and not match:
                module, part = saved["module"], "whole"
            else:
                unfit.append(key)
                continue
            if modules.setdefault(module, {}).setdefault(part, key) != key:
                unfit.append(key)
        return modules, unfit

    def _factor(self, module: str, keys: Mapping[str, str]) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) with use_rslora."""
        first = keys.get("A") or keys.get("embedding_A")
        if first is None or not self.config:
            return 1.0
        rank = max(1, *self.file.shapes[first][:1])
        words = module.split(".")
        ends = (".".join(words[start:]) for start in range(len(words)))
        own = [self._alphas[end] for end in ends if end in self._alphas]
        alpha = min(own, key=lambda one: one[0])[1] if own else self.config.get("lora_alpha", _ALPHA)
        alpha = number(alpha, f"The LoRA {self.path}: its alpha", -_MOST_ALPHA, _MOST_ALPHA)
        return alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank


def _placed(modules: Iterable[str], family: str, sources: Mapping[str, Source]) -> dict[str, str]:
    """Return an adapter's module -> table name, each at most once.

    A module's place is its name without a wrapper's prefix. An unknown prefix is taken for a wrapper's if it is the
    most common one and no layer has a known one; else it may be another network's, with layers of the same names.
    """
    places: dict[str, tuple[str, str]] = {}
    for module in modules:
        words = module.split(".")
        for start in range(len(words)):
            name = table_name(family, ".".join(words[start:]) + ".weight")
            if name in sources:
                places[module] = ".".join(words[:start]), name
                break
    known = {module: place for module, place in places.items() if not _without_wrappers(place[0])}
    others = {m: place for m, place in places.items() if m not in known and not _is_unused(f"{m}.weight", family)}
    common = Counter(prefix for prefix, _ in others.values()).most_common(1)
    if common and not any(name.startswith("layers.") for _, name in known.values()):
        known |= {module: place for module, place in others.items() if place[0] == common[0][0]}
    first: dict[str, str] = {}
    for module, (_, name) in known.items():
        first.setdefault(name, module)
    return {module: name for name, module in first.items()}


def _without_wrappers(name: str) -> str:
    return ".".join(itertools.dropwhile(_WRAPPERS.__contains__, filter(None, name.split("."))))


def _is_unused(name: str, family: str) -> bool:
    """True if a name is in a part of the published model that speech does not use."""
    return is_unused(family, _without_wrappers(name.removeprefix(_PREFIX)))


def _is_spare(key: str, family: str) -> bool:
    """True if a tensor without a place changes no speech: a state of the training, or of an unused part."""
    return _SPARE.search(key) is not None or _is_unused(key, family)
