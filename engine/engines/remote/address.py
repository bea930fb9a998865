"""Server addresses as users write them, and the environment variables of their keys."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from ...core.errors import HiggsError

HOSTED = "api.boson.ai"
_VARIABLE = re.compile(r"HIGGS_TTS_[A-Z0-9_]+")
_HOST = re.compile(r"(?!https?$)[\w.:%-]+")  # excludes the remains of a mistyped http://
_ENDINGS = ("/", "/audio/speech", "/v1", "/")


@dataclass(frozen=True)
class Address:
    """Address of a server. path: prefix before /v1. variable: environment variable that holds its key.

    own_key: of a server that this process had started, in place of a variable.
    """

    host: str
    port: int
    secure: bool
    path: str
    variable: str
    own_key: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.secure else 80)
        return f"{host}{'' if usual else f':{self.port}'}{self.path}"

    @property
    def line(self) -> str:
        """Line that `read_addresses` parses back."""
        return f"{'https' if self.secure else 'http'}://{self.label} {self.variable}"

    @property
    def is_hosted(self) -> bool:
        return self.host == HOSTED

    @property
    def key(self) -> str:
        """Key, read on each use so that no workflow stores it. Empty if there is none.

        Raises HiggsError if it has invalid characters; the message continues the server's name.
        """
        key = self.own_key or os.environ.get(self.variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise HiggsError(f"cannot be called: the key in {self.variable} contains invalid characters.")
        return key


def read_addresses(text: str, variable: str) -> list[Address]:
    """Parse addresses, separated by lines or commas, each optionally followed by its own variable.

    Raises HiggsError if an address is invalid, or a variable does not begin with HIGGS_TTS_.
    """
    addresses = [_read(line, variable) for line in re.split(r"[\n,]", text) if line.strip()]
    if not addresses:
        raise HiggsError("there is no address. Enter one per line, such as 127.0.0.1:8000.")
    return list(dict.fromkeys(addresses))


def _read(line: str, variable: str) -> Address:
    written, *own = line.split()
    # The errors do not quote these two, since a user may have entered the key itself.
    if own and not (len(own) == 1 and _VARIABLE.fullmatch(own[0])):
        raise HiggsError(
            "An address contains no spaces. Only the name of its key's environment variable may follow it, as in "
            "127.0.0.1:8000 HIGGS_TTS_BOSON_KEY."
        )
    url, variable = _split(written), own[0] if own else variable
    if not _VARIABLE.fullmatch(variable):
        raise HiggsError(
            "Put the key into an environment variable whose name begins with HIGGS_TTS_, and enter only that name "
            "here: HIGGS_TTS_API_KEY, for example. Other variables are never read, so no workflow can send another "
            "program's key away."
        )
    host, is_hosted = url.hostname or "", url.hostname == HOSTED
    secure = is_hosted or url.scheme == "https"
    path = url.path
    for ending in _ENDINGS:
        path = path.removesuffix(ending)
    return Address(host, url.port or (443 if secure else 80), secure, path, variable)


def _split(written: str) -> SplitResult:
    if "@" in written:
        raise HiggsError(
            "The address contains a name or a password, and workflows get shared. Put the key into an environment "
            "variable."
        )
    try:
        url = urlsplit(written if "://" in written else f"http://{written}")
        host = url.hostname or ""
        is_good = url.scheme in ("http", "https") and _HOST.fullmatch(host) and not (url.query or url.fragment)
        host.encode("idna")
        is_good = is_good and (url.port is None or url.port > 0) and url.path.isascii() and url.path.isprintable()
    except ValueError:  # bad port, brackets or host
        is_good = False
    if not is_good:
        raise HiggsError(f"{written[:80]!r} is not the address of a server. Write it as http://127.0.0.1:8000.")
    return url
