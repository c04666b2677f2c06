"""A package index on the loopback interface: static files as any web server gives them, or JSON to those who ask."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

JSON = "application/vnd.pypi.simple.v1+json"


class _Handler(SimpleHTTPRequestHandler):
    """Keeps the paths that were asked for."""

    def __init__(self, *args: object, asked: list[str], json: bool, directory: str) -> None:
        self._asked, self._json = asked, json
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def send_head(self) -> object:  # type: ignore[override]
        self._asked.append(self.path)
        if self._json and self.path.endswith("/") and JSON in self.headers.get("Accept", ""):
            self.path += "index.json"
        return super().send_head()

    def guess_type(self, path: object) -> str:
        name = str(path)
        return JSON if self._json and name.endswith("index.json") else super().guess_type(name)

    def log_message(self, *_: object) -> None:
        """A test shows what it wants to show."""


@contextlib.contextmanager
def served(folder: Path, *, json: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; gives its address and the list, growing, of paths asked for."""
    asked: list[str] = []
    handler = functools.partial(_Handler, asked=asked, json=json, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
