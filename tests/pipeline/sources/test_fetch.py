import errno
import http.server
import re
import socket
import threading
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.sources import fetch, npz
from pipeline.store.errors import DataFormatError

NAME = "cube-single-play-v0.npz"


class Server(http.server.ThreadingHTTPServer):
    """Serves bytes by name, with ranges; can break off, lie and change files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.breaks = []  # bytes after which coming answers break off
        self.lies = 0  # bytes announced too many
        self.shift = 0  # bytes that a range begins too late
        self.more = b""  # bytes sent too many
        self.tag = '"1"'
        self.ranges = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/data"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        data = self.server.files.get(self.path.removeprefix("/data/"))
        if data is None:
            self.send_error(404)
            return
        first, asked = 0, self.headers.get("Range")
        if body:
            self.server.ranges.append(asked)
        if asked and self.headers.get("If-Range") == self.server.tag:
            first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) + self.server.shift
        self.send_response(206 if first else 200)
        self.send_header("ETag", self.server.tag)
        if first:
            size = len(data) + self.server.lies
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("Content-Length", str(len(data) - first + self.server.lies))
        self.end_headers()
        if body:
            last = first + self.server.breaks.pop(0) if self.server.breaks else None
            self.wfile.write(data[first:last] + self.server.more)


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def data(make_npz):
    return Path(make_npz((200, 200))).read_bytes()


def get(server, path, **options):
    remote = fetch.look_up(f"{server.url}/{NAME}")
    return fetch.fetch(remote, str(path), wait=lambda seconds: None, **options)


def test_both_splits_are_fetched_and_repeating_does_nothing(
    server, data, make_npz, tmp_path, capsys
):
    val = Path(make_npz((5,), name="v.npz")).read_bytes()
    server.files = {NAME: data, "cube-single-play-v0-val.npz": val}
    out = tmp_path / "out"
    command = ["fetch", "cube-single-play", "--mirror", server.url, "--out", str(out)]
    assert main(command) == 0
    assert f"{len(data):,} bytes, fetched and checked" in capsys.readouterr().out
    assert {p.name: p.read_bytes() for p in out.iterdir()} == server.files
    asked = len(server.ranges)
    assert main(command) == 0
    assert "already there" in capsys.readouterr().out
    assert len(server.ranges) == asked
    # What was fetched can be sharded as it is.
    store = str(tmp_path / "store")
    arguments = ["--dataset", "cube-single-play", "--out", store, "--dry-run"]
    assert main(["shard", str(out), *arguments]) == 0
    assert "val: 5 rows" in capsys.readouterr().out


def test_an_interrupted_download_goes_on_where_it_stopped(server, data, tmp_path):
    server.files, server.breaks = {NAME: data}, [1000, 500, 0, 2000]
    seen = []
    assert get(server, tmp_path / NAME, progress=seen.append)
    assert (tmp_path / NAME).read_bytes() == data
    ranges = [None, "bytes=1000-", "bytes=1500-", "bytes=1500-", "bytes=3500-"]
    assert server.ranges == ranges
    assert seen == sorted(seen)
    assert seen[-1] == len(data)
    assert [path.name for path in tmp_path.iterdir() if NAME in path.name] == [NAME]


def test_a_later_command_goes_on_too(server, data, tmp_path):
    server.files, server.breaks = {NAME: data}, [4000, 0, 0, 0, 0, 0]
    with pytest.raises(ConnectionError, match=r"got 4,000 and then nothing in 5"):
        get(server, tmp_path / NAME)
    assert not (tmp_path / NAME).exists()
    server.breaks, server.ranges = [], []
    assert get(server, tmp_path / NAME)
    assert server.ranges == ["bytes=4000-"]
    assert (tmp_path / NAME).read_bytes() == data


def test_a_file_that_changed_meanwhile_is_fetched_whole(server, data, tmp_path):
    server.files, server.breaks = {NAME: data}, [4000, 0, 0, 0, 0, 0]
    with pytest.raises(ConnectionError):
        get(server, tmp_path / NAME)
    server.breaks, server.tag, server.ranges = [], '"2"', []
    assert get(server, tmp_path / NAME)
    assert server.ranges == [None]
    assert (tmp_path / NAME).read_bytes() == data


def test_a_wrong_size_is_an_error(server, data, tmp_path):
    server.files, server.lies = {NAME: data}, 7
    with pytest.raises(ConnectionError, match=f"expected {len(data) + 7:,} bytes"):
        get(server, tmp_path / NAME)
    server.lies = 0
    (tmp_path / NAME).write_bytes(data[:-1])
    with pytest.raises(DataFormatError, match=f"got {len(data) - 1:,}; delete it"):
        get(server, tmp_path / NAME)


def test_a_page_instead_of_a_file_is_an_error(server, tmp_path):
    server.files = {NAME: b"<html>log in first</html>"}
    with pytest.raises(DataFormatError, match="expected an npz archive, got 25 bytes"):
        get(server, tmp_path / NAME)
    assert not (tmp_path / NAME).exists()


def test_a_missing_file_is_one_line(server, tmp_path, capsys):
    command = ["fetch", "cube-single-play", "--mirror", server.url]
    assert main([*command, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "404" in error
    assert "--mirror" in error
    assert error.count("\n") == 1


def test_no_network_is_one_line(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        command = ["fetch", "cube-single-play", "--mirror", url]
        assert main([*command, "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "cannot be reached" in error
    assert error.count("\n") == 1


def test_a_mirror_that_is_no_address_is_one_line(tmp_path, capsys):
    command = ["fetch", "cube-single-play", "--mirror", "rail", "--out", str(tmp_path)]
    assert main(command) == 2
    assert "--mirror: expected an address such as http" in capsys.readouterr().err


def test_an_unknown_data_set_is_one_line(capsys):
    assert main(["fetch", "cube-sngle-play"]) == 2
    assert "nearest known: cube-single-play" in capsys.readouterr().err


def test_a_damaged_file_is_fetched_again(server, data, tmp_path):
    server.files = {NAME: data}
    at = data.index(b"PK", 100) - 50
    spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    (tmp_path / NAME).write_bytes(spoilt)
    with pytest.raises(DataFormatError, match=r"damaged .*fetch the file again"):
        npz.check_sums(str(tmp_path / NAME))
    assert get(server, tmp_path / NAME)
    assert (tmp_path / NAME).read_bytes() == data
    assert not get(server, tmp_path / NAME)


def test_bytes_damaged_on_their_way_are_noticed_and_fetched_anew(
    server, data, tmp_path
):
    at = data.index(b"PK", 100) - 50
    spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    server.files = {NAME: spoilt}
    with pytest.raises(ConnectionError, match="bytes were damaged on their way"):
        get(server, tmp_path / NAME)
    assert not (tmp_path / NAME).exists()
    server.files, server.ranges = {NAME: data}, []
    assert get(server, tmp_path / NAME)
    assert server.ranges == [None]
    assert (tmp_path / NAME).read_bytes() == data


def test_another_range_than_was_asked_for_is_refused(server, data, tmp_path):
    server.files, server.breaks = {NAME: data}, [4000, 0, 0, 0, 0, 0]
    with pytest.raises(ConnectionError):
        get(server, tmp_path / NAME)
    server.breaks, server.shift = [], 3
    with pytest.raises(DataFormatError, match=r"bytes 4,000 on of .*'bytes 4003-"):
        get(server, tmp_path / NAME)
    server.shift = 0
    assert get(server, tmp_path / NAME)
    assert (tmp_path / NAME).read_bytes() == data


def test_no_more_is_taken_than_was_promised(server, data, tmp_path):
    server.files, server.more = {NAME: data}, b"x" * 100_000
    seen = []
    assert get(server, tmp_path / NAME, progress=seen.append)
    assert max(seen) == len(data)
    assert (tmp_path / NAME).read_bytes() == data


def test_of_two_at_once_the_second_is_refused(server, data, tmp_path):
    server.files = {NAME: data}
    refused = []

    def again(size_bytes):
        if not refused:
            with pytest.raises(DataFormatError, match="another fetch of this") as said:
                get(server, tmp_path / NAME)
            refused.append(str(said.value))

    assert get(server, tmp_path / NAME, progress=again)
    assert len(refused) == 1
    assert (tmp_path / NAME).read_bytes() == data
    assert [path.name for path in tmp_path.iterdir() if NAME in path.name] == [NAME]


def test_a_full_disk_is_one_line():
    class Full:
        name = "x.partial"

        def write(self, piece):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"x\.partial: could not be written .*make room"):
        fetch._write(Full(), b"x")
