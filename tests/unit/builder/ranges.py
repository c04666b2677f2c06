"""A wheel like torch's, small, and a server of one file that knows ranges."""

from __future__ import annotations

import contextlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TEXTS = {"torch/a.h": b"// a\n", "torch/sub/b.h": b"// b\n" * 1000}
NOTICE = b"the licence\n"


def make_wheel(path: Path, texts: Mapping[str, bytes] = TEXTS, *, version: str = "2.15.0") -> Path:
    """Headers and a licence beside a large library."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("torch/lib/large.so", bytes(3_000_000), compress_type=zipfile.ZIP_STORED)
        for name, data in texts.items():
            wheel.writestr(f"torch/include/{name}", data)
        info = f"torch-{version}.dist-info"
        wheel.writestr(f"{info}/licenses/LICENSE", NOTICE)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-any\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@dataclass
class Server:
    """What it serves, whether it knows ranges, the Authorization it wants, and the bytes it has sent."""

    path: Path
    url: str = ""
    ranges: bool = True
    password: str | None = None
    sent: int = 0


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Server]:
    """Serve one file."""
    state = Server(path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = state.path.read_bytes()
            if state.password not in (None, self.headers.get("Authorization")):
                self.send_response(401)
                piece = b""
            elif state.ranges and "Range" in self.headers:
                first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
                piece = data[first : last + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{first + len(piece) - 1}/{len(data)}")
            else:
                piece = data[:10]
                self.send_response(200)
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece)
            state.sent += len(piece)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}/torch.whl"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
