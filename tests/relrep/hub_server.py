"""Loopback stand-in for the Hub: enough of the protocol for push_to_hub and from_pretrained round trips."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPOS, BLOBS, LOG = {}, {}, []  # repo -> {"refs": {branch: sha}, "commits": {sha: {path: (oid, lfs?)}}}


def commit(repo, branch, files):
    sha = hashlib.sha1(
        json.dumps([repo, branch, sorted(files.items()), len(REPOS[repo]["commits"])]).encode()
    ).hexdigest()
    REPOS[repo]["commits"][sha] = files
    REPOS[repo]["refs"][branch] = sha
    return sha


class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def out(self, code, obj=None, headers=(), data=None):
        data = json.dumps(obj if obj is not None else {}).encode() if data is None else data
        self.send_response(code)
        for k, v in dict(headers).items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def err(self, code, name, msg=""):
        self.out(code, {"error": msg or name}, {"X-Error-Code": name, "X-Error-Message": msg or name})

    def info(self, repo, sha):
        f = REPOS[repo]["commits"][sha]
        return {
            "id": repo,
            "modelId": repo,
            "sha": sha,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": p} for p in sorted(f)],
        }

    def resolve_rev(self, repo, rev):
        r = REPOS[repo]
        return r["refs"].get(rev) or (rev if rev in r["commits"] else None)

    def handle_any(self):
        u = urlsplit(self.path)
        p = [unquote(x) for x in u.path.strip("/").split("/")]
        m = self.command
        body = self.body() if m in ("POST", "PUT", "DELETE") else b""
        LOG.append(f"{m} {u.path}")
        host = f"http://{self.headers['Host']}"
        if p[:2] == ["api", "whoami-v2"]:
            return self.out(200, {"type": "user", "name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}})
        if p[:3] == ["api", "repos", "create"]:
            j = json.loads(body)
            repo = f"{j.get('organization') or 'me'}/{j['name']}"
            if repo in REPOS:
                return self.out(409, {"error": "You already created this model repo", "url": f"{host}/{repo}"})
            REPOS[repo] = {"refs": {}, "commits": {}}
            commit(repo, "main", {})
            return self.out(200, {"url": f"{host}/{repo}", "name": repo, "id": repo})
        if p[:3] == ["api", "repos", "delete"]:
            j = json.loads(body)
            REPOS.pop(f"{j.get('organization') or 'me'}/{j['name']}", None)
            return self.out(200)
        if p[:2] == ["api", "validate-yaml"]:
            return self.out(200, {"errors": [], "warnings": []})
        if p[0] == "__log__":
            return self.out(200, LOG)
        if p[0] == "lfs":
            BLOBS[p[1]] = body
            return self.out(200)
        if p[0] == "api" and p[1] == "models":
            repo = "/".join(p[2:4])
            rest = p[4:]
            if repo not in REPOS:
                return self.err(404, "RepoNotFound", "Repository not found")
            R = REPOS[repo]
            if not rest or rest[0] == "revision":
                sha = self.resolve_rev(repo, "/".join(rest[1:]) or "main")
                return (
                    self.out(200, self.info(repo, sha)) if sha else self.err(404, "RevisionNotFound", "Invalid rev id")
                )
            if rest[0] == "preupload":
                return self.out(
                    200,
                    {
                        "files": [
                            {
                                "path": f["path"],
                                "uploadMode": "lfs" if f["path"].endswith((".safetensors", ".bin")) else "regular",
                                "shouldIgnore": False,
                            }
                            for f in json.loads(body)["files"]
                        ]
                    },
                )
            if rest[0] == "branch":
                b = "/".join(rest[1:])
                if m == "POST" and b in R["refs"]:
                    return self.out(409, {"error": "Reference already exists"})
                if m == "POST":
                    R["refs"][b] = R["refs"]["main"]
                else:
                    R["refs"].pop(b)
                return self.out(200)
            if rest[0] == "refs":
                return self.out(
                    200,
                    {
                        "branches": [
                            {"name": b, "ref": f"refs/heads/{b}", "targetCommit": s} for b, s in R["refs"].items()
                        ],
                        "converts": [],
                        "tags": [],
                    },
                )
            if rest[0] == "commit":
                b = "/".join(rest[1:])
                files = dict(R["commits"][R["refs"][b]])
                for line in body.splitlines():
                    o = json.loads(line)
                    v = o["value"]
                    if o["key"] == "file":
                        d = base64.b64decode(v["content"])
                        k = hashlib.sha256(d).hexdigest()
                        BLOBS[k] = d
                        files[v["path"]] = (k, False)
                    elif o["key"] == "lfsFile":
                        files[v["path"]] = (v["oid"], True)
                    elif o["key"] == "deletedFile":
                        files.pop(v["path"], None)
                sha = commit(repo, b, files)
                return self.out(
                    200,
                    {"success": True, "commitOid": sha, "commitUrl": f"{host}/{repo}/commit/{sha}", "hookOutput": ""},
                )
            if rest[0] in ("tree",):
                sha = self.resolve_rev(repo, rest[1])
                pre = "/".join(rest[2:])
                pre = pre + "/" if pre else ""
                rec = "recursive=True" in u.query or "recursive=true" in u.query
                fs = [(q, v) for q, v in sorted(R["commits"][sha].items()) if q.startswith(pre)]
                out = []
                dirs = set()
                for q, (oid, lfs) in fs:
                    sub = q[len(pre) :]
                    if "/" in sub:
                        d = pre + sub.split("/")[0]
                        if d not in dirs:
                            dirs.add(d)
                            out.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": d})
                        if not rec:
                            continue
                    e = {"type": "file", "oid": oid[:40], "size": len(BLOBS[oid]), "path": q}
                    if lfs:
                        e["lfs"] = {"oid": oid, "size": len(BLOBS[oid]), "pointerSize": 130}
                    out.append(e)
                return self.out(200, out) if out else self.err(404, "EntryNotFound")
        if (len(p) >= 6 and p[1].endswith(".git")) or (len(p) > 2 and p[-1] == "batch"):
            j = json.loads(body)
            objs = []
            for o in j["objects"]:
                e = {"oid": o["oid"], "size": o["size"]}
                if o["oid"] not in BLOBS:
                    e["actions"] = {"upload": {"href": f"{host}/lfs/{o['oid']}"}}
                objs.append(e)
            return self.out(200, {"transfer": "basic", "objects": objs})
        if len(p) >= 5 and p[2] == "resolve":
            repo = "/".join(p[:2])
            if repo not in REPOS:
                return self.err(404, "RepoNotFound", "Repository not found")
            rev, path = p[3], "/".join(p[4:])
            sha = self.resolve_rev(repo, rev)
            if not sha:
                return self.err(404, "RevisionNotFound")
            f = REPOS[repo]["commits"][sha].get(path)
            if f is None:
                return self.out(
                    404,
                    {"error": "Entry not found"},
                    {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": sha},
                )
            return self.out(
                200,
                headers={
                    "X-Repo-Commit": sha,
                    "ETag": f'"{f[0]}"',
                    "X-Linked-Etag": f'"{f[0]}"',
                    "X-Linked-Size": str(len(BLOBS[f[0]])),
                    "Content-Type": "application/octet-stream",
                },
                data=BLOBS[f[0]],
            )
        LOG.append("  ^^ UNHANDLED")
        return self.err(404, "NotFound")

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_any


def serve(port=0):
    s = ThreadingHTTPServer(("127.0.0.1", port), H)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s
