"""A server between clients and Cloud Storage that fails as the real one does.

Some requests are answered with 503 or 429, and have no effect. Others take effect, but
their answer is cut off in the middle.
"""

import contextlib
import http.client
import json
import random
import socket
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Headers of one connection, which must not be passed on.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
# Status, headers and body.
_Answer = tuple[int, list[tuple[str, str]], bytes]


class FaultyProxy:
    """Passes requests on to another server, or fails them.

    Args:
        target: ``http://host:port`` of the other server.
        refused: Share of requests that are answered with 503 or 429.
        cut: Share of answers that end in the middle.
        delay_s: Delay of every request in seconds.
        seed: Seed of the choice; requests may still come in another order.
    """

    def __init__(
        self,
        target: str,
        *,
        refused: float,
        cut: float,
        delay_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._target = target
        self._refused, self._cut, self._delay_s = refused, cut, delay_s
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.credentials: set[str | None] = set()
        # Answers to the last part of uploads, by the upload's address.
        self._uploaded: dict[str, _Answer] = {}
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator["FaultyProxy"]:
        """Serves until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def fate(self, credentials: str | None) -> str:
        """Draws the outcome of a request: ``503``, ``429``, ``cut`` or ``passed``.

        Args:
            credentials: Authorization header of the request.
        """
        with self._lock:
            drawn = self._random.random()
            if drawn < self._refused:
                fate = "503" if drawn < self._refused / 2 else "429"
            else:
                fate = "cut" if drawn < self._refused + self._cut else "passed"
            self.counts[fate] += 1
            self.credentials.add(credentials)
            return fate

    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> _Answer:
        """Has the target answer a request.

        If a client repeats the last part of an upload, it gets the first answer again,
        because Cloud Storage remembers finished uploads and the target forgets them.
        """
        time.sleep(self._delay_s)
        if path in self._uploaded:
            return self._uploaded[path]
        answer = self._ask(method, path, body, headers)
        if "upload_id=" in path and method in ("POST", "PUT") and answer[0] == 200:
            self._uploaded[path] = answer
        return answer

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> _Answer:
        path, body, headers = _as_multipart(path, body, headers)
        netloc = urllib.parse.urlsplit(self._target).netloc
        connection = http.client.HTTPConnection(netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            with connection.getresponse() as answer:
                data, told = answer.read(), answer.getheaders()
        # Addresses in answers must lead clients to this proxy, not to the target.
        if answer.getheader("Content-Type", "").startswith("application/json"):
            data = data.replace(self._target.encode(), self.url.encode())
        told = [(name, value.replace(self._target, self.url)) for name, value in told]
        return answer.status, told, data


def _as_multipart(
    path: str, body: bytes, headers: dict[str, str]
) -> tuple[str, bytes, dict[str, str]]:
    """Rewrites a conditional upload in the form that the server on loopback checks.

    Cloud Storage checks the required generation in every upload, the server on loopback
    only in multipart uploads.
    """
    if "uploadType=media" not in path or "ifGenerationMatch=" not in path:
        return path, body, headers
    name = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["name"][0]
    edge = "edge-of-a-part"
    head = (
        f"--{edge}\r\nContent-Type: application/json\r\n\r\n"
        f"{json.dumps({'name': name})}\r\n"
        f"--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    kept = {k: v for k, v in headers.items() if k.lower() != "content-type"}
    return (
        path.replace("uploadType=media", "uploadType=multipart"),
        head.encode() + body + f"\r\n--{edge}--\r\n".encode(),
        {**kept, "Content-Type": f"multipart/related; boundary={edge}"},
    )


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Serves one connection; a client may drop it without an error."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    # Headers and body are two writes; Nagle's algorithm would delay the second one.
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        body = self._body()
        fate = self.proxy.fate(self.headers.get("Authorization"))
        if fate in ("503", "429"):
            self._send(int(fate), [], b'{"error": {"code": %b}}' % fate.encode())
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        status, answered, data = self.proxy.ask(self.command, self.path, body, headers)
        self._send(status, answered, data, cut=fate == "cut")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _answer  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _send(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        *,
        cut: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not cut:
            self.wfile.write(data)
            return
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        pass
