"""Base of the kernel launchers: compile a source for a device, check arguments, try a first launch."""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .nvrtc import KernelUnavailable, LaunchFailed, Module, compile_cubin, read_source, shared_limit

MIN_CAPABILITY = (7, 5)
ANY = None  # the dtype of a pointer whose tensor may have any


@dataclass(frozen=True)
class Limits:
    """Resources that a device offers a kernel."""

    capability: str  # compute capability, such as "90"
    multiprocessors: int
    shared: int  # bytes of shared memory, the most that a block may use

    @property
    def overlapping(self) -> bool:
        """True if a kernel's blocks may begin before the kernel before it has ended; see `launch`."""
        return int(self.capability) >= 90

    @classmethod
    def of(cls, device: torch.device) -> Limits:
        """Those of a CUDA device."""
        with torch.cuda.device(device):
            count = torch.cuda.get_device_properties(device).multi_processor_count
            major, minor = torch.cuda.get_device_capability(device)
            return cls(f"{major}{minor}", count, shared_limit(torch.cuda.current_device()))


def first_reason(device: torch.device, own: dict[str, bool]) -> str | None:
    """Why a kernel cannot serve on `device`, or None. own: the kernel's own reasons, and whether each holds."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    for reason, holds in own.items():
        if holds:
            return reason
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the GPU is older than compute capability {}.{}".format(*MIN_CAPABILITY)
    return None


class Arguments(ctypes.Structure):
    """A kernel's argument; `structure` makes its subclasses."""

    kinds: dict[str, Any] = {}  # field -> the dtype of the tensor whose address it holds, or a C type

    @classmethod
    def of(cls, **values: torch.Tensor | int | None) -> Arguments:
        """The structure with these values; a tensor must outlive it.

        Raises TypeError for a field that is missing or unknown, and for a tensor of another dtype or with gaps: a
        kernel would read it all the same.
        """
        if values.keys() != cls.kinds.keys():
            raise TypeError(f"{cls.__name__}: {sorted(values.keys() ^ cls.kinds.keys())} are missing or unknown")
        return cls(**{name: cls._word(name, value) for name, value in values.items()})

    @classmethod
    def _word(cls, name: str, value: torch.Tensor | int | None) -> int | None:
        if not isinstance(value, torch.Tensor):
            return value
        kind = cls.kinds[name]
        if kind is not ANY and value.dtype != kind:
            raise TypeError(f"{cls.__name__}.{name} is {value.dtype}, not {kind}")
        if not value.is_contiguous():
            raise TypeError(f"{cls.__name__}.{name} is not contiguous")
        return value.data_ptr()


def structure(name: str, **kinds: Any) -> type[Arguments]:
    """The structure `name` of a source, its fields in order: the dtype of a tensor for a pointer, or a C type."""
    is_pointer = {field: kind is ANY or isinstance(kind, torch.dtype) for field, kind in kinds.items()}
    fields = [(field, ctypes.c_void_p if is_pointer[field] else kind) for field, kind in kinds.items()]
    return type(name, (Arguments,), {"_fields_": fields, "kinds": kinds, "__doc__": f"`{name}` of the source."})


def options(values: Mapping[str, object], *structures: type[ctypes.Structure]) -> tuple[str, ...]:
    """Compiler options that define `values`, and SIZEOF_<name> of structures, which the source asserts."""
    sizes = {f"SIZEOF_{kind.__name__}": ctypes.sizeof(kind) for kind in structures}
    return tuple(f"-D{name}={value}" for name, value in {**values, **sizes}.items())


class CudaKernel:
    """A source on a device: compiled, loaded, launched by its subclass, and unloaded by `close`.

    Raises KernelUnavailable where it cannot be compiled or loaded, and where the driver refuses a first launch.
    """

    def __init__(self, path: pathlib.Path, capability: str, defines: tuple[str, ...]) -> None:
        self._module = Module(compile_cubin(read_source(path), capability, defines))

    @contextlib.contextmanager
    def _first_launch(self) -> Iterator[None]:
        """For the launches inside, on idle buffers: a driver that refuses one says so here, not in a step."""
        try:
            yield
            torch.cuda.current_stream().synchronize()
        except BaseException as error:
            self.close()
            if isinstance(error, LaunchFailed):
                raise KernelUnavailable(str(error)) from error
            raise

    def close(self) -> None:
        """Unloads the code, which must not be running; safe to call twice."""
        self._module.close()
