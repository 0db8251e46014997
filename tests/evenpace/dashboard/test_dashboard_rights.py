"""The page's checks of requests, and the rights of viewers to make changes."""

import contextlib
import json
import ssl
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenpace.dashboard.config import ManagerPageConfig
from evenpace.dashboard.identity import MintedCredentials, from_here
from evenpace.dashboard.request_guard import host_name, own_names
from evenpace.dashboard.rights import rights
from evenpace.job_changes import parse
from idl.errors import InvalidRequestError, UnauthorisedError
from rpc import tokens
from rpc.address import Address
from rpc.certificates import create_authority, issue
from rpc.credentials import Credentials
from rpc.server import Security
from tests.evenpace.dashboard.live_pages import Uneven, managed_page, page_of
from tests.services import MemberWorker, manager_service, serving, with_token

PAUSE = {"paused": True}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A manager that asks for no tokens, with its page on loopback."""
    with managed_page(tmp_path_factory.mktemp("page")) as page:
        yield page


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """A file of keys for tokens."""
    file = tmp_path_factory.mktemp("keys") / "tokens.key"
    tokens.write_new_key(file, add=False)
    return file


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, key):
    """A manager that asks for tokens, with its page, and a job `mine`."""
    with managed_page(tmp_path_factory.mktemp("guarded"), "--token-key", str(key)) as page:
        worker = MemberWorker(page.manager, "mine", with_token(key, "mine"))
        worker.iterate()
        yield page
        worker.close()


HEADERS = {"Content-Type": "application/json", "X-Evenpace": "1"}


@pytest.mark.parametrize("path", ["/", "/api/jobs", "/healthz", "/static/app.js", "/nothing"])
def test_every_answer_protects_the_browser(page, path):
    """Answers allow scripts of the page alone, no frames, and no guessed types."""
    headers = page.ask(path)[2]
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


def test_the_page_answers_to_its_own_names_alone(page, tmp_path):
    """Loopback's and those of the option; a browser that calls it by another gets nothing, not even files."""

    def ask(page, path, host):
        return page.ask(path, headers={"Host": host})[0]

    foreign = ("evil.example", "evil.example:4380", "127.0.0.1.evil.example")
    for host in (*foreign, "", "[::1", "127.0.0.1:4380x"):
        for path in ("/", "/api/jobs", "/static/app.js", "/healthz"):
            assert ask(page, path, host) in (400, 421)
    for host in ("localhost", "LOCALHOST.:4380", "[::1]:4380", "127.0.0.1"):
        assert ask(page, "/healthz", host) == 200
    with page_of(tmp_path, page.manager, "--http-name", "pace.example.org") as other:
        assert ask(other, "/healthz", "Pace.example.org:443") == 200
        assert ask(other, "/healthz", "example.org") == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://localhost:1"])
def test_other_sites_are_refused(page, origin):
    """Requests and changes of another site, or of another port, are refused."""
    assert page.ask("/api/jobs", headers={"Origin": origin})[0] == 403
    assert page.change("mine", PAUSE, Origin=origin)[0] == 403
    assert page.ask("/api/jobs", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Evenpace": "1"}, 415),
        (HEADERS | {"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json"}, 403),
        (HEADERS | {"Content-Length": "5000"}, 413),
        (HEADERS | {"Content-Length": "many"}, 400),
    ],
)
def test_a_change_cannot_look_like_a_form(page, headers, status):
    """A change that another site could have a browser send, or that is too long, is refused unread."""
    body = json.dumps(PAUSE) if "Content-Length" not in headers else "x" * 5000
    assert page.ask("/api/jobs/mine/control", "POST", body, headers)[0] == status


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "exactly one of"),
        ({"paused": True, "drain": {"worker": "w"}}, "exactly one of"),
        ({"paused": 1}, "paused 1"),
        ({"total_batch_size": 0}, "total_batch_size '0'"),
        ({"sizer": {"sizer": "goodput", "most": 64}}, "both of least and most, or none"),
        ({"sizer": {"sizer": "goodput", "least": 0, "most": 64}}, "least '0'"),
        ({"policy": {"policy": "even", "tolerance": "x"}}, "tolerance 'x'"),
        ({"bounds": {"worker": "w", "minimum": 5, "maximum": 1, "granularity": 1}}, "at least the minimum"),
        ({"drain": {}}, "object with worker"),
        ({"resize": {"workers": 0}}, "workers '0'"),
        ({"resize": {"workers": 1, "drain": "w1"}}, "must be a list of workers' names"),
    ],
)
def test_bad_changes_are_refused_with_what_is_allowed(page, change, said):
    """A bad change is refused before the manager is asked, with what is allowed."""
    status, value = page.change("mine", change)
    assert (status, said in value["error"]) == (400, True), value


def test_a_body_that_is_no_json_is_refused(page):
    """A body that is no JSON, or nested too deeply, is the caller's mistake."""
    for body in ("", "{", "[" * 4000, '{"paused": NaN}', "\ud800".encode("utf-8", "surrogatepass")):
        assert page.ask("/api/jobs/mine/control", "POST", body, HEADERS)[0] == 400


_names = st.sampled_from(
    [
        "policy",
        "total_batch_size",
        "sizer",
        "bounds",
        "drain",
        "remove",
        "resize",
        "paused",
        "worker",
        "minimum",
        "maximum",
        "granularity",
        "predictor",
        "tolerance",
        "least",
        "most",
        "workers",
        "promise",
        "similarity",
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | _names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=8,
)


@given(_json)
def test_any_body_is_a_change_or_a_clear_mistake(body):
    """Any JSON is either a change or refused as the caller's mistake."""
    with contextlib.suppress(ValueError):
        assert callable(parse(body))


@given(st.text(max_size=30))
def test_a_host_header_is_never_taken_for_a_shorter_name(text):
    """The name taken from any `Host` header is compared without a port."""
    name = host_name(text)
    assert name == "" or text.lower().removeprefix("[").startswith(name)
    if not text.startswith("["):
        assert ":" not in name


def test_names_of_pages():
    """A page on loopback has its names; one on all addresses those of the machine; others their own."""
    assert own_names(Address("127.0.0.1", 1), ()) == {"127.0.0.1", "localhost", "::1"}
    assert own_names(Address("192.0.2.7", 1), ("Pace.",)) == {"192.0.2.7", "pace"}
    assert {"127.0.0.1", "::1", "localhost"} <= own_names(Address("0.0.0.0", 1), ())


# -- who may change what


def test_without_tokens_this_machine_may_change_its_jobs(page, wait_until):
    """A change on loopback reaches the manager; one passed on by a proxy does not."""
    with Uneven(page.manager, "local", (100,)):
        assert wait_until(lambda: _rights(page), "the manager's answer")["change"] == "open"
        status, value = page.change("nobody", PAUSE)
        assert (status, "nobody" in value["error"]) == (400, True), value
        status, value = page.change("nobody", PAUSE, **{"X-Forwarded-For": "127.0.0.1"})
        assert (status, "Read-only" in value["error"]) == (403, True)
        assert page.ask("/api/page", headers={"X-Forwarded-For": "::1"})[1]["change"] == "none"


def test_changes_from_the_page_reach_the_manager(page, wait_until):
    """It makes them, as `evenpace job` has it do, or says why it does not; the page shows the job changed."""
    with Uneven(page.manager, "steered", (200, 100, 25)):
        wait_until(lambda: _shows(page, "steered", members_text="3 workers"), "all workers")
        wait_until(lambda: len(page.get("/api/jobs/steered/workers")["rows"]) == 3, "their iterations")
        assert _shows(page, "steered", sizer="fixed", exchange="parameter server", group_changes=[])
        for change, status, said, shown in (
            ({"policy": {"policy": "even"}}, 200, "even", {"policy": "even"}),
            ({"sizer": {"sizer": "schedule"}}, 400, "the script has none", {"sizer": "fixed"}),
            ({"total_batch_size": 128}, 200, "128", {"sizer": "fixed"}),
            (
                {"sizer": {"sizer": "goodput", "least": 32, "most": 640}},
                *(200, "from fixed to goodput, for batches of 32 to 640 samples", {"sizer": "goodput"}),
            ),
            ({"total_batch_size": 64}, 400, "the sizer goodput chooses it", {"sizer": "goodput"}),
            ({"resize": {"workers": 1, "drain": ["x"]}}, 400, "no worker 'x'", {}),
            (
                {"resize": {"workers": 4}},
                *(200, "of whom 1 is awaited", {"members_text": "3 of 4 workers, 1 awaited"}),
            ),
            ({"resize": {"workers": 2}}, 200, "drained worker-2", {"members_text": "2 workers"}),
        ):
            answer = page.change("steered", change)
            assert (answer[0], said in str(answer[1])) == (status, True), answer
            wait_until(lambda shown=shown: _shows(page, "steered", **shown), f"the job after {change}")


def test_a_worker_that_is_gone_is_taken_out_from_the_page(page, wait_until):
    """The manager takes it out, as `evenpace job remove` has it do."""
    worker = MemberWorker(page.manager, "left-behind")
    wait_until(lambda: _shows(page, "left-behind", members_text="1 worker"), "the job")
    status, value = page.change("left-behind", {"remove": {"worker": "good"}})
    assert (status, "an operator has taken good out" in str(value)) == (200, True), value
    wait_until(lambda: not page.get("/api/jobs/left-behind")["members"], "the job without it")
    worker.client.close()


@pytest.mark.parametrize(
    ("tokens_asked", "http", "client", "forwarded", "change"),
    [
        (True, "192.0.2.1", "192.0.2.9", False, "token"),
        (True, "127.0.0.1", "127.0.0.1", True, "token"),
        (False, "127.0.0.1", "127.0.0.1", False, "open"),
        (False, "127.0.0.1", "::ffff:127.0.0.1", False, "open"),
        (False, "127.0.0.1", "192.0.2.9", False, "none"),
        (False, "127.0.0.1", "", False, "none"),
        (False, "127.0.0.1", "127.0.0.1", True, "none"),
        (False, "192.0.2.1", "127.0.0.1", False, "none"),
    ],
)
def test_rights(tokens_asked, http, client, forwarded, change):
    """Tokens decide if the manager asks for them; otherwise both ends must be on this machine."""
    config = ManagerPageConfig(Address(http, 2), manager=Address("127.0.0.1", 1), insecure=True)
    assert rights(config, tokens_asked, client, forwarded).change == change


def test_a_change_needs_a_token_that_the_manager_takes(guarded, key, tmp_path):
    """No token, and one of another job, an expired one, or one of other keys, is refused."""
    other = tmp_path / "other.key"
    tokens.write_new_key(other, add=False)
    keys = tokens.TokenKeys(key)
    for token, said in (
        (None, "needs a token"),
        ("evenpace1.nothing", "not a token"),
        (tokens.issue(keys, "theirs", 0), "for job 'theirs'"),
        (tokens.issue(keys, "mine", int(time.time()) - 1), "expired"),
        (tokens.issue(tokens.TokenKeys(other), "mine", 0), "not signed"),
    ):
        status, value = guarded.change("mine", PAUSE, token)
        assert (status, said in value["error"]) == (403, True), value
        assert token is None or token not in value["error"]
    for job in ("mine", tokens.ALL_JOBS):
        status, value = guarded.change("mine", {"total_batch_size": 10**9}, tokens.issue(keys, job, 0))
        assert status == 400, value  # the manager's own word on the batch: the token was good
    assert "evenpace1." not in guarded.log.read_text()


def test_a_page_with_a_jobs_token_shows_that_job(tmp_path, key, wait_until):
    """A page started by hand with the token of a job shows that job."""
    file = tmp_path / "mine.token"
    file.write_text(tokens.issue(tokens.TokenKeys(key), "mine", 0))
    with serving(manager_service(), security=Security(token_keys=key)) as manager:
        workers = [MemberWorker(manager, job, with_token(key, job)) for job in ("mine", "theirs")]
        with page_of(tmp_path, manager, "--token-file", str(file)) as page:
            wait_until(lambda: page.shows("mine"), "the job")
            assert [job["job"] for job in page.get("/api/jobs")["jobs"]] == ["mine"]
            assert page.ask("/api/jobs/theirs")[0] == 404
        for worker in workers:
            worker.close()


def test_tokens_follow_the_keys(tmp_path):
    """The page's next token is signed with the new key after the keys' file has changed."""
    file = tmp_path / "tokens.key"
    tokens.write_new_key(file, add=False)
    credentials = MintedCredentials.of(None, file)
    before = credentials.read_token()
    file.rename(tmp_path / "old.key")  # its inode stays taken: another file's tells that it is new
    tokens.write_new_key(file, add=False)
    keys = tokens.TokenKeys(file)
    keys.check(credentials.read_token(), tokens.ALL_JOBS, time.time())
    with pytest.raises(UnauthorisedError):
        keys.check(before, tokens.ALL_JOBS, time.time())
    assert before not in repr(credentials)


@pytest.mark.slow
def test_tls_and_tokens_together(tmp_path, key, wait_until):
    """A manager with both has a page by HTTPS with its certificate, which needs none of the viewer."""
    create_authority(tmp_path, 1)
    issue(tmp_path, "manager", ("127.0.0.1",), 1)
    files = tmp_path / "manager"
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    options = ("--tls", str(files), "--token-key", str(key))
    with managed_page(tmp_path, *options, context=context) as page:
        assert page.url.startswith("https://")
        own = Credentials.of_folder(files)
        text = tokens.issue(tokens.TokenKeys(key), "mine", 0)
        worker = MemberWorker(
            page.manager, "mine", Credentials(own.ca, own.certificate, own.key, token_text=text)
        )
        assert wait_until(lambda: _known(page, "mine"), "the job")["members"] == 1
        assert wait_until(lambda: _rights(page), "the manager's answer")["change"] == "token"
        assert page.change("mine", PAUSE)[0] == 403
        status, value = page.change("mine", {"total_batch_size": 10**9}, text)
        assert status == 400, value
        worker.close()


def test_how_a_manager_on_all_addresses_is_called(tmp_path):
    """A manager on all addresses is called by loopback, or by a name in its certificate."""
    create_authority(tmp_path, 1)
    named = issue(tmp_path, "named", ("10.0.0.1", "manager.example.org"), 1)
    local = issue(tmp_path, "local", ("10.0.0.1", "localhost"), 1)
    everywhere = Address("0.0.0.0", 4300)
    assert from_here(everywhere, None) == Address("127.0.0.1", 4300)
    assert from_here(Address("::", 4300), None) == Address("::1", 4300)
    assert from_here(everywhere, named) == Address("10.0.0.1", 4300)
    assert from_here(everywhere, local) == Address("localhost", 4300)
    assert from_here(Address("10.0.0.9", 4300), named) == Address("10.0.0.9", 4300)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": ("a/b",)}, "name 'a/b'"),
        ({"names": ("pace:4380",)}, "without a port"),
        ({"viewers": 0}, "viewers 0"),
        ({"http": Address("0.0.0.0", 4380)}, "without TLS"),
    ],
)
def test_bad_settings(changes, said):
    """The error names the value."""
    settings = {"manager": Address("127.0.0.1", 1), "http": Address("127.0.0.1", 2)}
    with pytest.raises(InvalidRequestError, match=said):
        ManagerPageConfig(**settings | changes).check()


def _shows(page, job, **shown):
    """Return whether the page shows a job with these values."""
    told = page.shows(job)
    return told and shown.items() <= told.items()


def _rights(page, headers=None):
    """Return the rights that the page reports; None before the manager has said if it asks for tokens."""
    told = page.ask("/api/page", headers=headers)[1]
    return None if told["reason"].startswith("Read-only for now") else told


def _known(page, job):
    status, value, _ = page.ask(f"/api/jobs/{job}")
    return value if status == 200 and value["members"] else None
