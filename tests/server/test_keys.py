"""API keys: who is let in, how often, and what is never said."""

from __future__ import annotations

import hmac
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.config import KeyConfig
from paceline.engine.llm import LLM
from paceline.errors import OptionError
from paceline.server import keys as keys_module
from paceline.server.keys import Caller, Keyring, hash_key, hashed_line
from paceline.server.refusals import Refusal

from .held import Held
from .live import live

ALICE, BOB, ADMIN = "alice-0123456789abcdef", "bob-0123456789abcdefgh", "admin-0123456789abcdef"


def ring(clock=lambda: 0.0, **limits: KeyConfig) -> Keyring:
    configs = {"alice": KeyConfig(hash_key(ALICE)), "bob": KeyConfig(hash_key(BOB))}
    return Keyring(configs | limits, clock=clock)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class TestKeyrings:
    def test_know_their_keys(self):
        keys = ring()
        assert keys.identify(f"Bearer {ALICE}") == Caller("alice", False)
        assert keys.identify(f"bearer  {BOB} ") == Caller("bob", False)

    @pytest.mark.parametrize(
        "shown", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {ALICE}", ALICE, f"Bearer {ALICE}x"]
    )
    def test_know_no_others(self, shown):
        with pytest.raises(Refusal) as caught:
            ring().identify(shown)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")

    def test_a_hash_is_no_key(self):
        with pytest.raises(Refusal):
            ring().identify(f"Bearer {hash_key(ALICE)}")

    def test_compare_all_whatever_is_shown(self, monkeypatch):
        compared: list[str] = []
        plain = hmac.compare_digest
        monkeypatch.setattr(keys_module.hmac, "compare_digest", lambda a, b: compared.append(b) or plain(a, b))
        keys = ring()
        keys.identify(f"Bearer {ALICE}")
        assert compared == [hash_key(ALICE), hash_key(BOB)], "the first fits, and the second is compared as well"

    def test_keep_no_key_as_it_is(self):
        keys = Keyring.load({}, None, {"PACELINE_API_KEY": ALICE})
        assert ALICE not in repr(vars(keys)) + repr([repr(holder) for holder in keys._holders])

    def test_without_keys_everyone_is_the_same(self):
        assert Keyring({}).identify(None) == Caller("", True)
        assert Keyring({}, trusting=False).identify(None) == Caller("", False)
        assert not Keyring({})


class TestLoading:
    def test_from_everywhere(self, tmp_path):
        file = tmp_path / "keys"
        file.write_text(f"# two keys\n\nalice:{ALICE}\nbob:{hashed_line(BOB)}\n")
        keys = Keyring.load({"alice": KeyConfig(admin=True)}, str(file), {"PACELINE_API_KEY": ADMIN})
        assert keys.names == ("alice", "bob", "default")
        assert keys.identify(f"Bearer {ALICE}") == Caller("alice", True), "what the configuration says of her counts"
        assert keys.identify(f"Bearer {BOB}") == Caller("bob", False)
        assert keys.identify(f"Bearer {ADMIN}") == Caller("default", True)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("alice", "line 1 of .* is no NAME:KEY"),
            ("alice:", "line 1 of .* is no NAME:KEY"),
            ("\nalice:short", "line 2 of .* has a key of 5 characters; allowed: 16 or more"),
            ("alice:0123456789 abcdef", "has a key of 17 characters"),
            ("a b:0123456789abcdef", "the name of a key is 'a b'"),
            ("alice:sha256:zz", "is not 64 lower-case hexadecimal digits"),
            (f"alice:{ALICE}\nalice:{BOB}", "key 'alice' is there twice"),
        ],
    )
    def test_what_is_wrong(self, tmp_path, content, message):
        file = tmp_path / "keys"
        file.write_text(content)
        with pytest.raises(OptionError, match=message) as caught:
            Keyring.load({}, str(file), {})
        assert "0123456789" not in str(caught.value)

    def test_what_is_missing(self, tmp_path):
        with pytest.raises(OptionError, match="cannot be read"):
            Keyring.load({}, str(tmp_path / "none"), {})
        with pytest.raises(OptionError, match=r"keys.alice has no sha256"):
            Keyring.load({"alice": KeyConfig()}, None, {})
        with pytest.raises(OptionError, match="PACELINE_API_KEY has a key of 0 characters"):
            Keyring.load({}, None, {"PACELINE_API_KEY": ""})


class TestLimits:
    def test_so_many_a_minute(self):
        now = [0.0]
        keys = ring(lambda: now[0], alice=KeyConfig(hash_key(ALICE), requests_per_minute=6))
        alice = Caller("alice", False)

        def allowed() -> int:
            for count in range(100):
                try:
                    with keys.counted(alice):
                        pass
                except Refusal as found:
                    refused.append(found)
                    return count
            return 100

        refused: list[Refusal] = []
        assert allowed() == 6
        assert allowed() == 0
        now[0] += 10
        assert allowed() == 1
        now[0] += 1000
        assert allowed() == 6, "no more than a minute's worth is saved up"
        assert {(r.status, r.code) for r in refused} == {(429, "rate_limit_exceeded")}
        assert all(0 < r.retry_after <= 10 for r in refused)
        with keys.counted(Caller("bob")):
            pass

    def test_so_many_at_a_time(self):
        keys = ring(alice=KeyConfig(hash_key(ALICE), concurrency=1))
        alice = Caller("alice", False)
        with keys.counted(alice), pytest.raises(Refusal) as caught, keys.counted(alice):
            pass
        assert (caught.value.status, caught.value.code) == (429, "concurrency_exceeded")
        with pytest.raises(ZeroDivisionError), keys.counted(alice):
            _ = 1 / 0
        with keys.counted(alice):
            pass


@pytest.fixture(scope="module")
def locked(kept):
    tables = {
        "keys": {
            "alice": {"sha256": hash_key(ALICE), "concurrency": 1},
            "bob": {"sha256": hash_key(BOB), "requests_per_minute": 2},
            "admin": {"sha256": hash_key(ADMIN), "admin": True},
        }
    }
    with live(LLM("toy:ngram"), tables) as server:
        yield server


ASKED = {"model": "toy:ngram", "prompt": "ab", "max_tokens": 4, "seed": 1}


class TestServing:
    def test_every_route_but_the_open_ones_needs_a_key(self, locked):
        """Walks the routes that there are, so that a new one cannot be forgotten."""
        with locked.client() as client:
            document = client.get("/openapi.json", headers=bearer(ADMIN)).json()
            paths = {
                *document["paths"],
                "/openapi.json",
                "/admin",
                "/nothing/here",
                "/health/",
                "/ready%2f",
            }
            assert {"/v1/models", "/v1/chat/completions", "/metrics", "/api/state", "/admin/speculation"} <= paths
            for path in paths - {"/health", "/ready"}:
                for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
                    response = client.request(method, re.sub(r"\{.*?\}", "x", path))
                    assert response.status_code == 401, (method, path)
                    assert response.headers["www-authenticate"] == "Bearer"
            for path in ("/", "/health", "/ready"):
                assert client.get(path).status_code == 200

    def test_admin_needs_an_admins_key(self, locked):
        with locked.client() as client:
            for key, status in ((ALICE, 403), (ADMIN, 200)):
                assert client.get("/admin/speculation", headers=bearer(key)).status_code == status
            refused = client.post("/admin/speculation", json={"mode": "off"}, headers=bearer(ALICE))
            assert refused.json()["error"]["type"] == "permission_error"
        assert locked.hub.rollback.switch.ceiling.mode == "always"

    def test_a_rate(self, locked):
        with locked.client(headers=bearer(BOB)) as client:
            found = [client.post("/v1/completions", json=ASKED).status_code for _ in range(3)]
            assert found == [200, 200, 429]
            refused = client.post("/v1/completions", json=ASKED)
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert client.get("/v1/models").status_code == 200, "reading is not counted"

    def test_at_a_time(self, locked):
        hold = Held(locked.llm.engine)
        with locked.client(headers=bearer(ALICE)) as client, ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.post, "/v1/completions", json=ASKED)
            while not locked.llm.engine.scheduler.waiting:  # it is in the engine, which stands still
                time.sleep(0.01)
            refused = client.post("/v1/completions", json=ASKED)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            hold.open()
            assert first.result().status_code == 200
            assert client.post("/v1/completions", json=ASKED).status_code == 200
        hold.close()

    def test_a_key_is_the_tenant_of_drafts(self, locked):
        seen: list[str] = []
        add = locked.llm.engine.add
        locked.llm.engine.add = lambda request: seen.append(request.tenant) or add(request)  # type: ignore[method-assign]
        try:
            with locked.client() as client:
                client.post("/v1/completions", json=ASKED, headers=bearer(ADMIN))
        finally:
            locked.llm.engine.add = add  # type: ignore[method-assign]
        assert seen == ["admin"]
