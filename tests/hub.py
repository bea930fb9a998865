"""A Hugging Face for one repository on this machine, which the client's own downloads reach."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import huggingface_hub

COMMIT = "0123456789" * 4


@contextlib.contextmanager
def hub_of(folder: Path) -> Iterator[None]:
    """Have every download, also of a forked process, get the files of `folder`."""

    files = sorted(folder.iterdir())

    class Files(BaseHTTPRequestHandler):
        def do_GET(self):
            if "/tree/" in self.path:
                told = [{"type": "file", "path": path.name, "size": path.stat().st_size, "oid": ""} for path in files]
                self.answer(json.dumps(told).encode())
            elif self.path.startswith("/api/"):
                told = {"id": "a/b", "sha": COMMIT, "siblings": [{"rfilename": path.name} for path in files]}
                self.answer(json.dumps(told).encode())
            else:
                self.answer((folder / self.path.rpartition("/")[2]).read_bytes())

        do_HEAD = do_GET

        def answer(self, body: bytes):
            start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", hashlib.sha1(body).hexdigest())
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[start:])

        def log_message(self, *_: object):
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        theirs = functools.partial(huggingface_hub.snapshot_download, endpoint=endpoint)
        with mock.patch.object(huggingface_hub, "snapshot_download", theirs):
            yield
        server.shutdown()
