"""A fake of the Hugging Face Hub: repositories in memory behind the part of its HTTP interface that is used."""

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TOKEN = "hf_fake"


class Hub(http.server.ThreadingHTTPServer):
    """Repositories as ``{name: {revision: {path: content}}}``; those in ``private`` need the token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.downloads: list[str] = []
        self.sizes: dict[str, int] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def commit(files: dict[str, bytes]) -> str:
    """A hash of the contents, as git has one of a commit."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def answer(self, value: object, status: int = 200, content: bytes | None = None, **headers: str) -> None:
        content = json.dumps(value).encode() if content is None else content
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str = "") -> None:
        self.answer({"error": code}, status, X_Error_Code=code)

    def revision(self, name: str, revision: str) -> dict[str, bytes] | None:
        """The files of a revision; None after an error was answered."""
        revisions = self.server.repositories.get(name)
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if name in self.server.broken:
            self.refuse(403)
        elif revisions is None or (name in self.server.private and not allowed):
            self.refuse(401, "RepoNotFound")
        elif name in self.server.gated:
            self.refuse(403, "GatedRepo")
        else:
            for label, files in revisions.items():
                if revision in (label, commit(files)):
                    return files
            self.refuse(404, "RevisionNotFound")
        return None

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/revision/(\w+)", path):
            files = self.revision(*match.groups())
            if files is not None:
                sizes = {name: self.server.sizes.get(name, len(content)) for name, content in files.items()}
                siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
                self.answer({"id": match[1], "sha": commit(files), "siblings": siblings, "tags": []})
        elif match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/tree/(\w+)", path):
            files = self.revision(*match.groups())
            if files is not None:
                kinds = {"type": "file"}
                self.answer(
                    [
                        {
                            **kinds,
                            "path": name,
                            "size": len(content),
                            "oid": hashlib.sha1(content).hexdigest(),
                        }
                        for name, content in files.items()
                    ]
                )
        elif match := re.fullmatch(r"/(\w+/[\w.-]+)/resolve/(\w+)/(.+)", path):
            files = self.revision(match[1], match[2])
            if files is None:
                return
            if match[3] not in files:
                self.refuse(404, "EntryNotFound")
                return
            content = files[match[3]]
            if self.command == "GET":
                self.server.downloads.append(match[3])
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.answer(None, content=content, ETag=etag, X_Repo_Commit=commit(files))
        else:
            self.refuse(404)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401)
        elif path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about['organization']}/{about['name']}"
            self.server.repositories.setdefault(name, {"main": {}})
            if about.get("private"):
                self.server.private.add(name)
            self.answer({"url": f"{self.server.address}/{name}"})
        elif match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/preupload/main", path):
            wanted = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in wanted]})
        elif match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/commit/main", path):
            files = dict(self.server.repositories[match[1]]["main"])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "deletedFile":
                    del files[entry["value"]["path"]]
            self.server.repositories[match[1]]["main"] = files
            oid = commit(files)
            self.answer(
                {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{match[1]}/commit/{oid}"}
            )
        else:
            self.refuse(404)

    def log_message(self, *args: object) -> None:
        pass
