"""A loopback Hub: the part of huggingface.co's protocol that huggingface_hub, transformers and sentence-transformers
use for models, on 127.0.0.1, in a thread, with everything in memory.

Covered: create, delete, private, commits (regular and LFS files, deletions, unchanged files), branches, tags, revisions
by name and by commit, trees, downloads, tokens, validation of a card's metadata. Not covered: Xet, pull requests,
spaces, data sets. Addresses and error codes are those of huggingface_hub 2.4.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN, USER = "hf_loopback_secret", "me"
LFS_ENDINGS = (".safetensors", ".bin", ".npy", ".png", ".model")


@dataclass(frozen=True)
class File:
    """A file in a commit: git's hash of its content, or the sha256 of an LFS object."""

    oid: str
    content: bytes
    lfs: bool


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)  # name -> commit
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, File], title: str) -> str:
        state = [branch, title, len(self.commits), sorted((path, file.oid) for path, file in files.items())]
        sha = hashlib.sha1(json.dumps(state).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        self.titles.append(title)
        return sha

    def resolve(self, revision: str) -> str | None:
        named = self.branches.get(revision) or self.tags.get(revision)
        return named or (revision if revision in self.commits else None)


class Failure(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, code: str, message: str = "", *, body: Any = None, commit: str = "") -> None:
        super().__init__(message or code)
        self.status, self.body = status, {"error": message or code, **(body or {})}
        self.headers = {"X-Error-Code": code, "X-Error-Message": message or code}
        if commit:
            self.headers["X-Repo-Commit"] = commit


@dataclass
class Fault:
    method: str
    path: str
    how: str | int
    times: int


class Hub:
    """The state, and the server that shows it.

    Example:
        hub = Hub()          # serves hub.url until hub.close()
        hub.repos["me/x"]    # what was pushed
        hub.log              # "PUT /lfs/..." of every request
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}  # LFS: sha256 -> content, in no commit yet or in some
        self.log: list[str] = []
        self.faults: list[Fault] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def fail(self, method: str, path: str, *, how: str | int = "cut", times: int = 1) -> None:
        """Let the next requests go wrong: `"cut"` the connection in the middle, or answer with a status.

        Args:
            method, path: which requests; path is a regular expression.
            how: see above.
            times: how many.
        """
        self.faults.append(Fault(method, path, how, times))

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Content of a revision: path -> bytes."""
        repository = self.repos[repo]
        return {path: file.content for path, file in repository.commits[str(repository.resolve(revision))].items()}


Routes = list[tuple[str, re.Pattern[str], Callable[..., Any]]]
ROUTES: Routes = []
REPO = r"(?P<repo>[^/]+/[^/]+)"


def route(methods: str, pattern: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a method of `Handler`; groups of the pattern become its arguments, unquoted."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        ROUTES.append((methods, re.compile(pattern), function))
        return function

    return register


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_request(self) -> None:
        path = urlsplit(self.path).path
        self.query = parse_qs(urlsplit(self.path).query)
        size = int(self.headers.get("Content-Length") or 0)
        self.hub.log.append(f"{self.command} {path}")
        for fault in self.hub.faults:
            if fault.times and fault.method == self.command and re.search(fault.path, path):
                fault.times -= 1
                if fault.how == "cut":
                    self.rfile.read(size // 2)
                    self.close_connection = True
                    self.connection.close()
                    return
                self.rfile.read(size)
                self.answer(int(fault.how), {"error": "fault"})
                return
        self.body = self.rfile.read(size)
        try:
            for methods, pattern, function in ROUTES:
                match = pattern.fullmatch(path)
                if match and self.command in methods.split():
                    self.answer(200, *function(self, **{k: unquote(v or "") for k, v in match.groupdict().items()}))
                    return
            self.hub.log.append(f"UNKNOWN {self.command} {self.path}")
            raise Failure(404, "NotFound", f"this loopback Hub has no {self.command} {path}")
        except Failure as failure:
            self.answer(failure.status, failure.body, failure.headers)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_request

    # Who asks, and for what

    def user(self, *, needed: bool = True) -> str | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token != TOKEN:
            raise Failure(401, "", "Invalid credentials in Authorization header")
        if needed and not token:
            raise Failure(401, "", "Invalid username or password.")
        return USER if token else None

    def repository(self, name: str, *, write: bool = False) -> Repository:
        user = self.user(needed=write)
        found = self.hub.repos.get(name)
        if found is None or (found.private and user is None):
            raise Failure(404 if user else 401, "RepoNotFound", "Repository not found")
        return found

    def revision(self, repository: Repository, name: str) -> str:
        sha = repository.resolve(name)
        if sha is None:
            raise Failure(404, "RevisionNotFound", f"Invalid rev id: {name}")
        return sha

    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    # Accounts, repositories

    @route("GET", "/api/whoami-v2")
    def whoami(self):
        return ({"type": "user", "name": self.user(), "orgs": [], "auth": {"accessToken": {"role": "write"}}},)

    @route("POST", "/api/repos/create")
    def create(self):
        name = f"{self.json().get('organization') or self.user()}/{self.json()['name']}"
        self.user()
        answer = {"url": f"{self.hub.url}/{name}", "name": name, "id": name}
        if name in self.hub.repos:
            raise Failure(409, "", "You already created this model repo", body=answer)
        repository = Repository(private=bool(self.json().get("private")) or self.json().get("visibility") == "private")
        repository.commit("main", {}, "initial commit")
        self.hub.repos[name] = repository
        return (answer,)

    @route("DELETE", "/api/repos/delete")
    def delete(self):
        name = f"{self.json().get('organization') or self.user()}/{self.json()['name']}"
        self.repository(name, write=True)
        del self.hub.repos[name]
        return ()

    @route("GET", "/api/agent-harnesses")
    def agent_harnesses(self):
        return ({"standardEnvVars": [], "harnesses": {}},)

    @route("POST", "/api/validate-yaml")
    def validate(self):
        errors = metadata_errors(self.json()["content"])
        if errors:
            body = {"errors": [{"message": message} for message in errors], "warnings": []}
            raise Failure(400, "", "; ".join(errors), body=body)
        return ({"errors": [], "warnings": []},)

    # Commits and references

    @route("GET", f"/api/models/{REPO}(/revision/(?P<revision>[^/]+))?")
    def info(self, repo, revision):
        repository = self.repository(repo)
        sha = self.revision(repository, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(repository.commits[sha])]
        return ({"id": repo, "sha": sha, "private": repository.private, "tags": [], "siblings": siblings},)

    @route("POST", f"/api/models/{REPO}/preupload/(?P<revision>[^/]+)")
    def preupload(self, repo, revision):
        repository = self.repository(repo, write=True)
        present = repository.commits[self.revision(repository, revision)]
        modes = [
            {
                "path": (path := file["path"]),
                "uploadMode": "lfs" if path.endswith(LFS_ENDINGS) else "regular",
                "shouldIgnore": False,
                "oid": present[path].oid if path in present else None,
            }
            for file in self.json()["files"]
        ]
        return ({"files": modes},)

    @route("POST", f"/api/models/{REPO}/commit/(?P<branch>[^/]+)")
    def commit(self, repo, branch):
        repository = self.repository(repo, write=True)
        if branch not in repository.branches:
            raise Failure(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        files, title = dict(repository.commits[repository.branches[branch]]), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, repository.branches[branch]):
                    raise Failure(412, "", "A commit has happened since.")
            elif entry["key"] == "file":
                content = base64.b64decode(value["content"])
                files[value["path"]] = File(git_hash(content), content, lfs=False)
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise Failure(400, "", f"LFS object {value['oid']} was never uploaded")
                files[value["path"]] = File(value["oid"], self.hub.objects[value["oid"]], lfs=True)
            elif entry["key"] == "deletedFile":
                files.pop(value["path"], None)
            else:
                raise Failure(400, "", f"unknown entry {entry['key']}")
        sha = repository.commit(branch, files, title)
        return ({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{repo}/commit/{sha}"},)

    @route("POST DELETE", f"/api/models/{REPO}/branch/(?P<name>[^/]+)")
    def branch(self, repo, name):
        repository = self.repository(repo, write=True)
        if self.command == "DELETE":
            del repository.branches[name]
        elif name in repository.branches:
            raise Failure(409, "", f"Reference already exists: refs/heads/{name}")
        else:
            start = (self.json() if self.body else {}).get("startingPoint") or "main"
            repository.branches[name] = self.revision(repository, start)
        return ()

    @route("POST DELETE", f"/api/models/{REPO}/tag/(?P<name>[^/]+)")
    def tag(self, repo, name):
        repository = self.repository(repo, write=True)
        if self.command == "DELETE":
            del repository.tags[name]
        elif self.json()["tag"] in repository.tags:
            raise Failure(409, "", "Tag reference exists already")
        else:
            repository.tags[self.json()["tag"]] = self.revision(repository, name)
        return ()

    @route("GET", f"/api/models/{REPO}/refs")
    def refs(self, repo):
        repository = self.repository(repo)
        named = {"branches": ("heads", repository.branches), "tags": ("tags", repository.tags)}
        listed = {
            kind: [{"name": n, "ref": f"refs/{word}/{n}", "targetCommit": sha} for n, sha in table.items()]
            for kind, (word, table) in named.items()
        }
        return ({"converts": [], **listed},)

    @route("GET", f"/api/models/{REPO}/tree/(?P<revision>[^/]+)(/(?P<folder>.*))?")
    def tree(self, repo, revision, folder):
        repository = self.repository(repo)
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, file in sorted(repository.commits[self.revision(repository, revision)].items()):
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                name = prefix + "/".join(parts[:depth])
                entries.setdefault(name, {"type": "directory", "oid": "0" * 40, "size": 0, "path": name})
            entries[path] = file_entry(path, file)
        if not entries and folder:
            raise Failure(404, "EntryNotFound", f"{folder} does not exist")
        deep = self.query.get("recursive", ["false"])[0].lower() == "true"
        return ([entry for name, entry in entries.items() if deep or "/" not in name[len(prefix) :]],)

    @route("POST", f"/api/models/{REPO}/paths-info/(?P<revision>[^/]+)")
    def paths_info(self, repo, revision):
        repository = self.repository(repo)
        files = repository.commits[self.revision(repository, revision)]
        wanted = self.json()["paths"] if self.headers.get("Content-Type", "").endswith("json") else (
            parse_qs(self.body.decode())["paths"])  # fmt: skip
        return ([file_entry(path, files[path]) for path in wanted if path in files],)

    # Content

    @route("POST", rf"/{REPO}\.git/info/lfs/objects/batch")
    def lfs_batch(self, repo):
        self.repository(repo, write=True)
        answers = []
        for wanted in self.json()["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.objects:
                upload = {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}
                answer["actions"] = {"upload": upload, "verify": {"href": f"{self.hub.url}/lfs-verify"}}
            answers.append(answer)
        return ({"transfer": "basic", "objects": answers},)

    @route("PUT", "/lfs/(?P<oid>[0-9a-f]{64})")
    def lfs_upload(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Failure(400, "", "the content does not have the promised hash")
        self.hub.objects[oid] = self.body
        return ()

    @route("POST", "/lfs-verify")
    def lfs_verify(self):
        if len(self.hub.objects.get(self.json()["oid"], b"")) != self.json()["size"]:
            raise Failure(404, "", "object not found")
        return ()

    @route("GET HEAD", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def resolve(self, repo, revision, path):
        repository = self.repository(repo)
        sha = self.revision(repository, revision)
        file = repository.commits[sha].get(path)
        if file is None:
            raise Failure(404, "EntryNotFound", "Entry not found", commit=sha)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{file.oid}"', "Accept-Ranges": "bytes"}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(len(file.content))}
        return file.content, headers


def file_entry(path: str, file: File) -> dict[str, Any]:
    entry = {"type": "file", "oid": file.oid[:40], "size": len(file.content), "path": path}
    if file.lfs:
        entry["lfs"] = {"oid": file.oid, "size": len(file.content), "pointerSize": 130}
    return entry


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def metadata_errors(content: str) -> list[str]:
    """What the Hub would object to in a card's YAML head (hub-docs, modelcard.md)."""
    match = re.match(r"---\n(.*?)\n---(\n|$)", content, re.DOTALL)
    if not match:
        return []  # a card without metadata is legal
    try:
        data = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    if not isinstance(data, dict):
        return ["metadata must be a mapping"]
    errors = []
    for key in ("language", "tags", "datasets", "base_model"):
        values = data.get(key)
        if values is not None and not all(
            isinstance(v, str) for v in (values if isinstance(values, list) else [values])
        ):
            errors.append(f'"{key}" must be a string or a list of strings')
    languages = data.get("language") or []
    for language in [languages] if isinstance(languages, str) else languages:
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]+)?|code|multilingual", str(language)):
            errors.append(f'"language" must be ISO 639 codes, not {language!r}')
    if "license" in data and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", str(data["license"])):
        errors.append('"license" must be an identifier such as apache-2.0')
    for entry in data.get("model-index") or []:
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("results"), list):
            errors.append('"model-index" needs a name and results')
            continue
        for n, result in enumerate(entry["results"]):
            needed = (("task", ("type",)), ("dataset", ("type", "name")))
            errors += [
                f'"model-index[0].results[{n}].{part}.{key}" is required'
                for part, keys in needed
                for key in keys
                if not isinstance(result.get(part, {}).get(key), str)
            ]
            for metric in result.get("metrics") or [{}]:
                if not isinstance(metric.get("type"), str) or not isinstance(metric.get("value"), int | float | str):
                    errors.append(f'"model-index[0].results[{n}].metrics" needs type and value')
    return errors
