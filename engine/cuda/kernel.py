"""Base class of the kernel launchers: compiles a source for a device, checks arguments, tries a first launch."""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..core.closing import Closable
from .nvrtc import KernelUnavailable, LaunchFailed, Module, compile_cubin, read_source, shared_limit

MIN_CAPABILITY = (7, 5)
ANY = None  # dtype of a pointer to a tensor of any dtype
Kernel = TypeVar("Kernel")


@dataclass(frozen=True)
class Limits:
    """Resources of a device that matter to a kernel."""

    capability: str  # compute capability, such as "90"
    multiprocessors: int
    shared: int  # maximum bytes of shared memory per block

    @property
    def overlapping(self) -> bool:
        """True if a kernel's blocks may start before the previous kernel has ended; see `launch`."""
        return int(self.capability) >= 90

    @classmethod
    def of(cls, device: torch.device) -> Limits:
        """Return the limits of a CUDA device."""
        with torch.cuda.device(device):
            count = torch.cuda.get_device_properties(device).multi_processor_count
            major, minor = torch.cuda.get_device_capability(device)
            return cls(f"{major}{minor}", count, shared_limit(torch.cuda.current_device()))


def first_reason(device: torch.device, own: dict[str, bool]) -> str | None:
    """Return why a kernel cannot run on `device`, or None. own: the kernel's own reasons -> True if they apply."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    for reason, holds in own.items():
        if holds:
            return reason
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the GPU is older than compute capability {}.{}".format(*MIN_CAPABILITY)
    return None


def choose(wanted: str, device: torch.device, make: Callable[[], Kernel]) -> tuple[Kernel | None, str]:
    """Make a kernel. None if torch's ops take its place, and the reason if that was not wanted.

    wanted: `kernels` as in EngineConfig.
    """
    if wanted == "torch" or device.type != "cuda":
        return None, ""
    try:
        return make(), ""
    except KernelUnavailable as error:
        return None, str(error)


Value = torch.Tensor | float | ctypes.Structure | ctypes.Array[Any] | None  # of an argument's field


class Arguments(ctypes.Structure):
    """Base class of kernel arguments. `structure` makes the subclasses."""

    kinds: dict[str, Any] = {}  # field -> dtype of the tensor it points to, or a C type

    @classmethod
    def of(cls, **values: Value) -> Arguments:
        """Return the structure with these values. Tensors must outlive it.

        Raises TypeError if a field is missing or unknown, or if a tensor has another dtype or is not contiguous. The
        kernel itself would not notice.
        """
        if values.keys() != cls.kinds.keys():
            raise TypeError(f"{cls.__name__}: {sorted(values.keys() ^ cls.kinds.keys())} are missing or unknown")
        return cls(**{name: cls._word(name, value) for name, value in values.items()})

    @classmethod
    def _word(cls, name: str, value: Value) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        kind = cls.kinds[name]
        if kind is not ANY and value.dtype != kind:
            raise TypeError(f"{cls.__name__}.{name} is {value.dtype}, not {kind}")
        if not value.is_contiguous():
            raise TypeError(f"{cls.__name__}.{name} is not contiguous")
        return value.data_ptr()


def structure(name: str, alignment: int = 8, **kinds: Any) -> type[Arguments]:
    """Make the class for a source's structure `name`. Fields in order: a tensor's dtype for a pointer, or a C type.

    alignment: of the source's structure, in bytes. The class has its size.
    """
    is_pointer = {field: kind is ANY or isinstance(kind, torch.dtype) for field, kind in kinds.items()}
    fields = [(field, ctypes.c_void_p if is_pointer[field] else kind) for field, kind in kinds.items()]
    size = ctypes.sizeof(type("Fields", (ctypes.Structure,), {"_fields_": fields}))
    fields.append(("padding", ctypes.c_char * (-size % alignment)))
    return type(name, (Arguments,), {"_fields_": fields, "kinds": kinds, "__doc__": f"`{name}` of the source."})


def options(values: Mapping[str, object], *structures: type[ctypes.Structure]) -> tuple[str, ...]:
    """Return compiler options that define `values`, and SIZEOF_<name> for each structure, which the source asserts."""
    sizes = {f"SIZEOF_{kind.__name__}": ctypes.sizeof(kind) for kind in structures}
    return tuple(f"-D{name}={value}" for name, value in {**values, **sizes}.items())


class CudaKernel(Closable):
    """Base class of a CUDA source compiled and loaded on a device. Subclasses launch it; `close` unloads it.

    Raises KernelUnavailable if it cannot be compiled or loaded, or if the driver refuses a first launch.
    """

    scratch: dict[str, torch.Tensor]  # of the kernels that have one

    def __init__(self, path: pathlib.Path, capability: str, defines: tuple[str, ...]) -> None:
        self._module = Module(compile_cubin(read_source(path), capability, defines))

    @contextlib.contextmanager
    def _first_launch(self) -> Iterator[None]:
        """Try the launches inside on idle buffers, so that a refusal by the driver shows here and not in a step."""
        try:
            yield
            torch.cuda.current_stream().synchronize()
        except BaseException as error:
            self.close()
            if isinstance(error, LaunchFailed):
                raise KernelUnavailable(str(error)) from error.with_traceback(None)  # no cycle, see `capturing`
            raise

    def tensors(self) -> list[torch.Tensor]:
        return list(self.scratch.values())

    def _release(self) -> None:
        self._module.close()
