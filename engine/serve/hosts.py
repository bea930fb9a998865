"""Names by which a server may be called, and pages in a browser, which may not call it."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from ..core.errors import shown_name
from .calls import BadCall

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/@]+))(?::\d{1,5})?")
_OWN_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site; none: a user's own act


class HostNames:
    """The Host headers that a server accepts, so that a page whose name was rebound to it is refused.

    host: the address that the server listens on: a loopback address takes loopback names only, another one any address
    and this machine's names. names: further ones.
    """

    def __init__(self, host: str = "127.0.0.1", names: Iterable[str] = ()):
        self._is_local = is_loopback(host)
        own = socket.gethostname()
        known = ("localhost", *names) if self._is_local else ("localhost", own, f"{own}.local", host, *names)
        self._names = {name.casefold().rstrip(".") for name in known}

    def check(self, headers: Mapping[str, str]) -> None:
        """Check the Host of a request. Raises BadCall."""
        match = _HOST.fullmatch(headers.get("Host", "localhost"))  # programs of HTTP/1.0 send none, browsers always do
        name = (match[1] or match[2]).casefold().rstrip(".") if match else ""
        if name in self._names or (is_loopback(name) if self._is_local else _address_of(name)):
            return
        name_shown = shown_name(headers.get("Host", ""))
        raise BadCall(
            f"this server is not called {name_shown}. Use its address, or start it with --host-name {name_shown}.",
            "Host",
            403,
            "unknown_host",
        )


def check_page(headers: Mapping[str, str]) -> None:
    """Refuse a request that a page of another site makes in a user's browser. Raises BadCall."""
    origin = headers.get("Origin")
    is_foreign = headers.get("Sec-Fetch-Site", "none") not in _OWN_PAGES
    if origin is not None and not is_foreign:
        try:
            is_foreign = urlsplit(origin).netloc != headers.get("Host")
        except ValueError:
            is_foreign = True
    if is_foreign:
        raise BadCall("pages of other sites may not call this server.", "Origin", 403, "foreign_origin")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    address = _address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
