"""Settings from flags, the environment and files: which one counts, and what is refused."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError
from penstock.cli._serve import configure
from penstock.cli._settings import PREFIX, Settings
from penstock.cli._store import add_store, store_url
from tests.cli.shell import Run
from tests.servers.process import REPO, NotReady, environment, eventually
from tests.service.http.serving import PENSTOCK, Client, Penstock
from tests.stores.redis.live import url_of

TOKEN = "0123456789abcdef0123456789abcdef"
SECRET = "fedcba9876543210fedcba9876543210"


def resolved(*words: str, **environ: str) -> argparse.Namespace:
    """What a small command makes of its command line and environment."""
    parser = argparse.ArgumentParser()
    settings = Settings(parser)
    add_store(settings, default="memory://", help="where")
    settings.add("--workers", type=int, default=1, help="how many (%(default)s)")
    settings.add("--fail", choices=("open", "closed"), default="open")
    settings.add("--quiet", action="store_true")
    settings.add("--token-file")
    settings.exclude("token_file", variables=("token",))
    args = parser.parse_args(words)
    named = {PREFIX + name.upper(): text for name, text in environ.items()}
    settings.refuse_near_misses(named)
    settings.resolve(args, named)
    return args


def test_a_flag_beats_the_environment_and_that_beats_the_default() -> None:
    """For numbers and choices, too; a switch has no variable."""
    assert resolved().workers == 1
    assert resolved(workers="3").workers == 3
    assert resolved("--workers", "5", workers="3").workers == 5
    assert resolved(fail="closed").fail == "closed"
    assert resolved("--quiet").quiet


def test_of_the_ways_to_give_one_setting_a_flag_beats_all_variables() -> None:
    """Whichever way it is; the others are then as if they were not there."""
    args = resolved("--store", "redis://a", store_file="/b")
    assert (args.store, args.store_file) == ("redis://a", None)
    args = resolved("--store-file", "/b", store="redis://a")
    assert (args.store, args.store_file) == (None, "/b")
    args = resolved("--token-file", "/t", token=TOKEN)
    assert (args.token_file, args.token) == ("/t", None)
    assert resolved(store="redis://a").store == "redis://a"
    assert resolved().store == "memory://"


@pytest.mark.parametrize(
    ("words", "environ", "told"),
    [
        (
            ["--store", "a://", "--store-file", "b"],
            {},
            "--store and --store-file exclude each other",
        ),
        (
            [],
            {"store": "a://", "store_file": "b"},
            "PENSTOCK_STORE and PENSTOCK_STORE_FILE exclude",
        ),
        ([], {"token": TOKEN, "token_file": "t"}, "PENSTOCK_TOKEN_FILE and PENSTOCK_TOKEN exclude"),
        ([], {"token": ""}, "PENSTOCK_TOKEN is empty"),
        ([], {"store": "  "}, "PENSTOCK_STORE is empty"),
        ([], {"workers": "many"}, "PENSTOCK_WORKERS must be a whole number, not 'many'"),
        ([], {"workers": "tcp://10.0.0.1:80"}, "enableServiceLinks: false"),
        ([], {"fail": "ajar"}, "PENSTOCK_FAIL must be open or closed, not 'ajar'"),
        ([], {"stroe": "a://"}, "PENSTOCK_STROE is not a setting; did you mean PENSTOCK_STORE?"),
        ([], {"tokens": TOKEN}, "did you mean PENSTOCK_TOKEN?"),
        ([], {"quiet": "1"}, "PENSTOCK_QUIET has no effect; use --quiet on the command line"),
    ],
)
def test_what_is_ambiguous_or_misspelt_is_refused(
    words: list[str], environ: dict[str, str], told: str
) -> None:
    """With the names that were used, and without the secrets in them."""
    with pytest.raises(ConfigInvalidError) as refused:
        resolved(*words, **environ)
    assert told in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_variables_of_others_are_left_alone() -> None:
    """Ours that are no settings, and those that Kubernetes makes up for a service of this name."""
    others = {"pure": "1", "service_host": "10.0.0.1", "port": "tcp://10.0.0.1:80", "kv_path": "x"}
    others = {**others, "port_8080_tcp_addr": "10.0.0.1", "service_port": "80"}
    assert resolved(**others).workers == 1
    parser = argparse.ArgumentParser()
    configure(parser)
    settings: Settings = parser.get_default("settings")
    settings.refuse_near_misses({PREFIX + name.upper(): text for name, text in others.items()})


def test_a_stores_url_may_lie_in_a_file(tmp_path: Path) -> None:
    """Alone; the space around it does not count."""
    file = tmp_path / "store"
    file.write_text(" redis://:secret@host\n")
    assert store_url(resolved("--store-file", str(file))) == "redis://:secret@host"
    for text in ("", "redis://:secret@host and more"):
        file.write_text(text)
        with pytest.raises(ConfigInvalidError, match="must contain one URL") as refused:
            store_url(resolved("--store-file", str(file)))
        assert "secret" not in str(refused.value)
    for path in (tmp_path / "none", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigInvalidError, match="cannot be read"):
            store_url(resolved("--store-file", str(path)))
    file.write_bytes(b"redis://\xff")
    with pytest.raises(ConfigInvalidError, match="not a text in UTF-8"):
        store_url(resolved("--store-file", str(file)))


def test_the_help_of_serve_shows_its_defaults() -> None:
    """Although they are not the parser's own."""
    parser = argparse.ArgumentParser()
    configure(parser)
    text = " ".join(parser.format_help().split())
    assert "such as redis://HOST:6379 (memory://)" in text
    assert "(8080)" in text
    assert "None" not in text
    assert "SUPPRESS" not in text


class Serving(Penstock):
    """`penstock serve`, with variables."""

    def __init__(self, *flags: str, **environ: str) -> None:
        super().__init__(*flags)
        self.environ = {PREFIX + name.upper(): text for name, text in environ.items()}

    def popen_options(self) -> dict[str, Any]:
        options = super().popen_options()
        return {"env": {**options["env"], **self.environ}}

    def banner(self) -> str:
        def said() -> str:
            text = self.log_path.read_text()
            if "try:" not in text:
                raise NotReady(text)
            return text

        return eventually(said, within=20, what="the banner")


def refused(*flags: str, **environ: str) -> str:
    """What `penstock serve` says on its way out."""
    named = {PREFIX + name.upper(): text for name, text in environ.items()}
    done = subprocess.run(
        [*PENSTOCK, "serve", "--no-grpc", *flags],
        env=environment(PYTHONPATH=str(REPO / "src"), **named),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_takes_its_secrets_from_the_environment(workers: str) -> None:
    """It asks for the token, counts on the store, says where both came from, and shows neither."""
    store = url_of("valkey").replace("redis://", "redis://default:@")
    given = {"store": f"{store}?client_name=hidden", "token": TOKEN, "workers": workers}
    with Serving("--host", "0.0.0.0", **given) as server:
        said = server.banner()
        assert "store from PENSTOCK_STORE" in said
        assert "token from PENSTOCK_TOKEN" in said
        assert TOKEN not in said
        assert "hidden" not in said
        client = Client(server.port)
        assert client.get("/check/env").status == 401
        client.close()
        line = said.partition("try:")[2].splitlines()[0]
        assert '"Authorization: Bearer $PENSTOCK_TOKEN"' in line
        env = environment(**server.environ)
        done = subprocess.run(line, shell=True, env=env, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["allowed"] is not None


def test_serve_takes_its_secrets_from_files(tmp_path: Path) -> None:
    """Which flags or variables name."""
    (tmp_path / "store").write_text(f"{url_of('valkey')}?client_name=hidden\n")
    (tmp_path / "token").write_text(TOKEN)
    flags = ("--store-file", str(tmp_path / "store"))
    with Serving(*flags, token_file=str(tmp_path / "token")) as server:
        said = server.banner()
        assert f"store from {tmp_path / 'store'}" in said
        assert f"token from {tmp_path / 'token'}" in said
        assert "hidden" not in said
        client = Client(server.port)
        assert client.get("/check/files").status == 401
        assert client.get("/check/files", Authorization=f"Bearer {TOKEN}").status == 200
        client.close()


def test_a_flag_of_serve_beats_its_variable() -> None:
    """Seen in what it serves."""
    with Serving("--store", "memory://", store="redis://nowhere.invalid", fail="closed") as server:
        said = server.banner()
    assert "on memory://, fail closed" in said
    assert "fail from PENSTOCK_FAIL" in said
    assert "PENSTOCK_STORE" not in said


@pytest.mark.parametrize(
    ("flags", "environ", "told"),
    [
        ([], {"workers": "0"}, "(--workers is PENSTOCK_WORKERS here)"),
        (
            [],
            {"token": "short"},
            "the variable PENSTOCK_TOKEN must contain one token of at least 16",
        ),
        ([], {"token": "é" * 20}, "the variable PENSTOCK_TOKEN must contain one token"),
        (["--tls-key", "k"], {"tls_cert": "c", "tls_ca": ""}, "PENSTOCK_TLS_CA is empty"),
        ([], {"stor": "redis://host"}, "did you mean PENSTOCK_STORE?"),
        (
            ["--store", "deno-kv+https://records.example.com"],
            {"token": TOKEN},
            "PENSTOCK_TOKEN would be the token of both the service and its store",
        ),
        (
            ["--store", "d1://a/b?token_env=PENSTOCK_TOKEN"],
            {"token": TOKEN},
            "name another variable for the store with ?token_env=",
        ),
    ],
)
def test_serve_refuses_what_makes_no_sense(
    flags: list[str], environ: dict[str, str], told: str
) -> None:
    """In one line that names the variable."""
    assert told in refused(*flags, **environ)


def test_a_fleet_secret_may_be_a_variable() -> None:
    """And a bad one is found before a port is opened."""
    with Serving(fleet_secret=SECRET) as server:
        said = server.banner()
    assert "fleet secret from PENSTOCK_FLEET_SECRET" in said
    assert SECRET not in said
    assert "the variable PENSTOCK_FLEET_SECRET must contain" in refused(fleet_secret="short")


def test_other_commands_find_the_store_of_the_service(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same variable or file."""
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    assert run("check", "alice", "--rate", "1/hour")[0] == 2
    monkeypatch.setenv("PENSTOCK_STORE", url)
    assert run("check", "alice", "--rate", "1/hour")[0] == 0
    assert run("check", "alice", "--rate", "1/hour")[0] == 3
    assert "store: sqlite://" in run("doctor")[1]
    assert run("store", "init")[0] == 0
    monkeypatch.delenv("PENSTOCK_STORE")
    (tmp_path / "store").write_text(url)
    file = str(tmp_path / "store")
    assert run("check", "alice", "--rate", "1/hour", "--store-file", file)[0] == 3
    assert run("store", "sweep", "--store-file", file)[0] == 0
    code, _, told = run("store", "sweep", url, "--store-file", file)
    assert (code, "exclude each other" in told) == (2, True)
    assert "a store is needed" in run("store", "init")[2]
