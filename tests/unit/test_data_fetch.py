"""Fetching: a server that breaks off, lies, or changes; a folder in its place; and what is pinned."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data_world import CHECKOUT

from repro.data import fetch as module
from repro.data.fetch import fetch
from repro.data.pins import read_pins
from repro.spec.data import Sources
from repro.spec.errors import BadDataError, CannotWriteError, MissingError, ReproError
from repro.spec.fetching import Encoder, Fetch
from repro.spec.paths import Root
from repro.spec.reading import load

DATA = bytes(range(256)) * 4000  # a megabyte
SHA = hashlib.sha256(DATA).hexdigest()


class Server:
    """Answers for `files`; `breaks` bytes are sent of each answer before the connection is cut, until it is empty."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/data.bin": DATA}
        self.breaks: list[int] = []
        self.status: list[int] = []
        self.ranges: list[str | None] = []
        self.tag: str | None = '"v1"'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        self.ranges.append(to.headers.get("Range"))
        status = self.status.pop(0) if self.status else 200
        data = self.files.get(to.path)
        if data is None or status != 200:
            to.send_error(404 if data is None else status)
            return
        start = 0
        if to.headers.get("Range") and to.headers.get("If-Range") == self.tag:
            start = int(str(to.headers["Range"])[6:].rstrip("-"))
        to.send_response(206 if start else 200)
        if start:
            to.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.tag:
            to.send_header("ETag", self.tag)
        to.send_header("Content-Length", str(len(data) - start))
        to.end_headers()
        rest = data[start:]
        if self.breaks:
            to.wfile.write(rest[: self.breaks.pop(0)])
            to.wfile.flush()
            to.connection.shutdown(socket.SHUT_RDWR)
        else:
            to.wfile.write(rest)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)


def spec_of(sha256: str | None = SHA, size: int | None = len(DATA), name: str = "data.bin") -> Fetch:
    fields = {"name": name, "url": f"https://nowhere.example/{name}", "bytes": size, "sha256": sha256}
    return Fetch.model_validate({"files": [{key: value for key, value in fields.items() if value is not None}]})


def files_of(root: Root) -> list[str]:
    return sorted(path.name for path in (root.scratch / "fetched" / "big").rglob("*"))


def test_a_download_that_breaks_goes_on_where_it_broke(tmp_path: Path, server: Server) -> None:
    server.breaks = [100_000, 300_000, 1]
    done = fetch(Root(tmp_path), "big", spec_of(), server.url, 7)
    assert (done.folder / "data.bin").read_bytes() == DATA
    assert server.ranges == [None, "bytes=100000-", "bytes=400000-", "bytes=400001-"]
    assert files_of(Root(tmp_path)) == ["data.bin", "manifest.json"]
    pins = read_pins(done.folder, "x")
    assert pins is not None
    assert (dict(pins.sha256), pins.documents, pins.fields["pinned_here"]) == ({"data.bin": SHA}, 7, [])
    assert done.pinned_here == ()


def test_a_call_that_gives_up_leaves_what_came_to_the_next(tmp_path: Path, server: Server) -> None:
    server.breaks = [5000] + [0] * 20
    with pytest.raises(MissingError, match="what came is kept: call again"):
        fetch(Root(tmp_path), "big", spec_of(), server.url)
    assert files_of(Root(tmp_path)) == [".data.bin.part", ".data.bin.part.json"]
    server.breaks = []
    fetch(Root(tmp_path), "big", spec_of(), server.url)
    assert server.ranges[-1] == "bytes=5000-"
    assert files_of(Root(tmp_path)) == ["data.bin", "manifest.json"]


@pytest.mark.parametrize("tag", ['"v2"', None, 'W/"v1"'])
def test_halves_of_two_versions_are_never_glued_together(tmp_path: Path, server: Server, tag: str | None) -> None:
    """The file changes while it is fetched: the server says so, or has no way of saying it."""
    root = Root(tmp_path)
    server.tag = tag if tag != '"v2"' else '"v1"'
    server.breaks = [1000] + [0] * 20
    with pytest.raises(MissingError):
        fetch(root, "big", spec_of(None, None), server.url)
    server.breaks, server.tag = [], tag
    server.files["/data.bin"] = DATA[::-1]
    done = fetch(root, "big", spec_of(None, None), server.url)
    assert (done.folder / "data.bin").read_bytes() == DATA[::-1]


def test_without_a_public_hash_the_first_download_is_pinned(tmp_path: Path, server: Server) -> None:
    root = Root(tmp_path)
    done = fetch(root, "big", spec_of(None, None), server.url)
    assert done.pinned_here == ("data.bin",)
    assert fetch(root, "big", spec_of(None, None), server.url).brought == 0
    (done.folder / "data.bin").write_bytes(b"spoiled")
    server.files["/data.bin"] = DATA[::-1]
    with pytest.raises(BadDataError, match=f"{SHA} is pinned"):
        fetch(root, "big", spec_of(None, None), server.url)
    server.files["/data.bin"] = DATA
    assert fetch(root, "big", spec_of(None, None), server.url).brought == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of("0" * 64), "0 is pinned"),
        (spec_of(size=len(DATA) - 1), "the server offers 1024000 bytes, 1023999 are expected"),
        (spec_of(size=len(DATA) + 1), "the server offers 1024000 bytes, 1024001 are expected"),
    ],
)
def test_what_is_not_as_pinned_leaves_no_file(tmp_path: Path, server: Server, spec: Fetch, words: str) -> None:
    with pytest.raises(BadDataError, match=words):
        fetch(Root(tmp_path), "big", spec, server.url)
    assert not (tmp_path / "scratch/fetched/big/data.bin").exists()
    assert not (tmp_path / "scratch/fetched/big/manifest.json").exists()


def test_a_file_that_is_not_there_is_not_asked_for_again(tmp_path: Path, server: Server) -> None:
    server.files = {}
    with pytest.raises(MissingError, match=r"the server answers 404 for http://127\.0\.0\.1/data\.bin"):
        fetch(Root(tmp_path), "big", spec_of(), server.url)
    assert len(server.ranges) == 1


def test_a_busy_server_is_asked_again(tmp_path: Path, server: Server) -> None:
    server.status = [503, 429, 500]
    assert fetch(Root(tmp_path), "big", spec_of(), server.url).brought == 1


@pytest.mark.parametrize(
    "origin", ["ftp://x.example/", "http://x.example/", "file:///etc/", "http://127.0.0.1.x.example"]
)
def test_only_https_leaves_this_machine(tmp_path: Path, origin: str) -> None:
    with pytest.raises(MissingError, match="neither a folder nor an https address"):
        fetch(Root(tmp_path), "big", spec_of(), origin)


def test_a_redirect_to_another_place_is_checked_too(tmp_path: Path, server: Server) -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(302)
        to.send_header("Location", "http://x.example/data.bin")
        to.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(MissingError, match=r"x\.example"):
        fetch(Root(tmp_path), "big", spec_of(), server.url)


def test_a_full_disk_is_seen_before_the_first_byte(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.data.space.shutil.disk_usage", lambda path: SimpleNamespace(free=17_000_000))
    with pytest.raises(CannotWriteError, match="scratch/fetched/big: disk: about 18 MB are needed, 17 MB are free"):
        fetch(Root(tmp_path), "big", spec_of(), server.url)
    assert server.ranges == []


# -- a folder in place of the network --------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("packed", [False, True])
def test_from_a_folder(tmp_path: Path, packed: bool) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / ("data.bin.gz" if packed else "data.bin")).write_bytes(gzip.compress(DATA) if packed else DATA)
    done = fetch(Root(tmp_path), "big", spec_of(), str(place))
    assert (done.folder / "data.bin").read_bytes() == DATA
    assert fetch(Root(tmp_path), "big", spec_of(), str(place)).brought == 0


@pytest.mark.usefixtures("offline")
def test_from_a_folder_that_lacks_or_spoils_a_file(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        fetch(Root(tmp_path), "big", spec_of(), str(tmp_path / "absent"))
    with pytest.raises(MissingError, match=r"data\.bin: is not there"):
        fetch(Root(tmp_path), "big", spec_of(), str(tmp_path))
    (tmp_path / "data.bin").write_bytes(DATA + b"x")
    with pytest.raises(BadDataError, match="has 1024001 bytes, 1024000 are expected; has sha256"):
        fetch(Root(tmp_path), "big", spec_of(), str(tmp_path))
    (tmp_path / "data.bin").unlink()
    (tmp_path / "data.bin.gz").write_bytes(gzip.compress(DATA)[:-9])
    with pytest.raises(BadDataError, match=r"data\.bin\.gz: cannot be unpacked"):
        fetch(Root(tmp_path), "big", spec_of(), str(tmp_path))
    assert not (tmp_path / "scratch/fetched/big/data.bin").exists()


HUB = {"hub": "a/b", "revision": "0" * 40, "pattern": "en/part-*.parquet", "shards": 2}


@pytest.mark.usefixtures("offline")
def test_a_data_set_of_the_hub_from_a_folder(tmp_path: Path) -> None:
    place = tmp_path / "copy" / "en"
    place.mkdir(parents=True)
    (place / "part-0.parquet").write_bytes(b"0")
    spec = Fetch.model_validate(HUB)
    with pytest.raises(MissingError, match="1 files are there, 2 are needed"):
        fetch(Root(tmp_path), "big", spec, str(tmp_path / "copy"))
    (place / "part-1.parquet").write_bytes(b"1")
    done = fetch(Root(tmp_path), "big", spec, str(tmp_path / "copy"))
    assert done.pinned_here == ("part-0.parquet", "part-1.parquet")
    assert files_of(Root(tmp_path)) == ["manifest.json", "part-0.parquet", "part-1.parquet"]


def hub_listing(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, int, str | None]) -> None:
    """What the hub would say of its files; the files themselves still come from the server."""
    siblings = [
        SimpleNamespace(rfilename=name, size=size, lfs=sha256 and SimpleNamespace(sha256=sha256))
        for name, size, sha256 in entries
    ]

    class Api:
        def __init__(self, endpoint: str) -> None:
            self.endpoint = endpoint

        def dataset_info(self, repo: str, revision: str, files_metadata: bool) -> Any:
            assert (repo, revision, files_metadata) == ("a/b", "0" * 40, True)
            return SimpleNamespace(siblings=siblings)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)


def test_a_data_set_of_the_hub(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        server.files[f"/datasets/a/b/resolve/{'0' * 40}/en/part-{number}.parquet"] = DATA[number:]
    other = hashlib.sha256(DATA[1:]).hexdigest()
    entries = [
        ("README.md", 3, None),
        ("en/part-0.parquet", len(DATA), SHA),
        ("en/part-1.parquet", len(DATA) - 1, other),
    ]
    hub_listing(monkeypatch, *entries)
    server.breaks = [1000]
    done = fetch(Root(tmp_path), "big", Fetch.model_validate(HUB), server.url)
    assert done.brought == 2
    assert files_of(Root(tmp_path)) == ["manifest.json", "part-0.parquet", "part-1.parquet"]
    assert (done.folder / "part-1.parquet").read_bytes() == DATA[1:]
    hub_listing(monkeypatch, ("en/part-0.parquet", len(DATA), SHA))
    with pytest.raises(BadDataError, match=r"1 files of a/b fit en/part-\*\.parquet, 2 are pinned"):
        fetch(Root(tmp_path), "big", Fetch.model_validate(HUB), server.url)


def test_names_of_the_hub_lead_nowhere(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_listing(monkeypatch, ("en/part-/../../x.parquet", 1, None), ("en/part-0.parquet", 1, None))
    with pytest.raises(BadDataError, match="is no name for a file"):
        fetch(Root(tmp_path), "big", Fetch.model_validate(HUB), server.url)


def test_a_hub_that_cannot_be_reached_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="a/b cannot be asked for its files"):
        fetch(Root(tmp_path), "big", Fetch.model_validate(HUB), "http://127.0.0.1:9")


# -- the verb --------------------------------------------------------------------------------------


def test_every_text_source_says_where_it_comes_from_and_in_which_version() -> None:
    sources = load(Sources, CHECKOUT / "config" / "data.yaml").root
    for name in ("openwebtext", "c4_en", "c4_en_part", "wikipedia_en", "webtext", "tiny_shakespeare"):
        spec = sources[name].fetch
        assert spec is not None
        assert spec.revision or all(file.sha256 and file.bytes for file in spec.files)
        assert spec.total_bytes


def test_the_verb_tells_what_it_did_and_what_it_cannot_do(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from repro.verbs import data

    source = SimpleNamespace(fetch=spec_of(None), pinned={}, kind="fetched")
    monkeypatch.setattr(data, "_source", lambda name: (Root(tmp_path), source))
    monkeypatch.setattr(data, "find_root", lambda: Root(tmp_path))  # else the checkout keeps what came
    monkeypatch.setattr(data, "load_configuration", lambda root: SimpleNamespace(encoders={}))
    data.fetch_source("big", server.url)
    out, err = capsys.readouterr()
    assert out == ""
    assert "nobody has published a hash of data.bin" in err
    assert "1 files in scratch/fetched/big, 1 of them brought now, all verified" in err
    source.fetch = None
    with pytest.raises(ReproError, match="no place to fetch it from") as caught:
        data.fetch_source("big", None)
    assert caught.value.exit_code == 64


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"name": "../x", "url": "https://a.example/x"}]},
        {"files": [{"name": "x", "url": "http://a.example/x"}]},
        {"files": [{"name": "x", "url": "https://a.example/x"}] * 2},
        {"hub": "a/b"},
        HUB | {"files": [{"name": "x", "url": "https://a.example/x"}]},
        HUB | {"revision": "main"},
        HUB | {"trust_remote_code": True},
        HUB | {"pattern": "../*.parquet"},
        HUB | {"pattern": "en/../*.parquet"},
        HUB | {"pattern": "/etc/*.parquet"},
        {},
    ],
)
def test_what_cannot_be_fetched_cannot_be_configured(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Fetch.model_validate(change)


@pytest.mark.parametrize("name", ["openwebtext.py", "README.md", "x.jsonl.xz"])
def test_d01_a_source_fetches_what_it_can_read_and_no_script(name: str) -> None:
    words = {"title": "t", "licence": "l"}
    text = words | {"kind": "fetched", "tokenizer": "bytes", "validation": 0.1, "curve_tokens": 2, "final_tokens": 2}
    for origin in ({"files": [{"name": name, "url": f"https://a.example/{name}"}]}, HUB | {"pattern": name}):
        for kind in (text, words | {"kind": "jena"}):
            with pytest.raises(ValueError, match=re.escape(f"fetch brings {name}; only files of ")):
                Sources.model_validate({"mine": kind | {"pinned": {"hub": "a/b"}, "fetch": origin}})
        with pytest.raises(ValueError, match=re.escape(f"fetch brings {name}; only files of .json")):
            Encoder.model_validate(words | {"fetch": origin})
    Sources.model_validate({"mine": text | {"pinned": {"hub": "a/b"}, "fetch": HUB | {"pattern": "data/part-*"}}})


def altered(change: Callable[[dict[str, Any]], Any]) -> str:
    fields: dict[str, Any] = {"sha256": {"a.jsonl": "0" * 64}, "shards": 1, "documents": 2}
    change(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        altered(lambda fields: fields.update(shards=2)),
        altered(lambda fields: fields.update(shards=0, sha256={})),
        altered(lambda fields: fields.update(documents=-1.5)),
        altered(lambda fields: fields.update(seal="0" * 64)),
        altered(lambda fields: fields["sha256"].update({"../b": "0" * 64})),
        altered(lambda fields: fields["sha256"].update(b="zz")),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, "utf-8")
    with pytest.raises(BadDataError, match=r"texts/manifest\.json"):
        read_pins(tmp_path, "texts")
