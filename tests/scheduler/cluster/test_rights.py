"""Who may do what on a shared cluster, by real keys and tokens, and what each caller sees."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import EvenpaceError, InvalidRequestError, UnauthorisedError
from rpc.tokens import ALL_JOBS, OPERATOR, Purpose, TokenKeys, issue, new_key
from scheduler.cluster.events import (
    Add,
    Cancelled,
    Decide,
    Decided,
    Drain,
    End,
    Ended,
    Held,
    JobRequest,
    NodeJoined,
    Submitted,
    Suspend,
    Suspended,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.history import History, account, reasons
from scheduler.cluster.machine import ClusterMachine
from scheduler.cluster.rights import (
    OPERATORS_CALLS,
    USERS_CALLS,
    Rights,
    check_job,
    owner_of,
    visible_record,
    visible_status,
)
from scheduler.cluster.status import status_of
from scheduler.nodes import Node

NOW = 1_700_000_000.0
KEYS = TokenKeys(new_key())
USERS = ("anna", "benno", "clara")
JOBS = ("alpha", "beta", "gamma", "delta")


def token(user, expires=0, keys=KEYS):
    """A user's token, or an operator's for `OPERATOR`."""
    return issue(keys, user, expires, Purpose.CLUSTER)


def owner(user):
    """The owner of what a user brings."""
    return "" if user == OPERATOR else user


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for records."""
    return tmp_path_factory.mktemp("records")


class Shared:
    """A cluster that users share: its rights, its machine and its record, restored from what is kept.

    Args:
        file: Where the record is.
    """

    def __init__(self, file):
        file.unlink(missing_ok=True)
        self._file = file
        self._now, self._log = NOW, []
        self.machine, self.history = ClusterMachine(), History(file)
        self.rights = Rights(KEYS)
        self.tell(NodeJoined(Node("node", "CPU", 2)))

    def restart(self):
        """Start it again from what is kept."""
        self.machine = ClusterMachine.restored(json.loads(json.dumps(self.machine.saved())))
        self.history = History(self._file)

    def tell(self, event):
        """Let something happen, and all that follows at once; the first job that waits has a device."""
        self._now += 1
        why = reasons(event, self.machine.jobs, {})
        actions = self.machine.handle(self._now, event)
        while actions:
            answers = [answer for action in actions if (answer := self._answer(action))]
            actions = [action for answer in answers for action in self.machine.handle(self._now, answer)]
        whys = {name: f"{why.get(name)} for {name}" for name in self.machine.jobs}
        nodes = {name: ("", node.devices) for name, node in self.machine.nodes.items()}
        for line in self.history.note(self._now, self.machine.jobs, nodes, whys):
            self._log.append((line.owner, f"{line.job} is {line.state}"))
        self.history.write()

    def _answer(self, action):
        match action:
            case Decide(number, at):
                return Decided(number, {job.name: (("node", 1),) for job in at.jobs[:1]})
            case Add(job, attempt, worker):
                return WorkerJoined(job, attempt, worker)
            case Drain(job, attempt, worker):
                return WorkerGone(job, attempt, worker)
            case Suspend(job, attempt):
                return Suspended(job, attempt)
            case End(job, attempt):
                return Ended(job, attempt, "cancelled")
        return None

    def submit(self, shown, name):
        """Submit a job."""
        caller = self.rights.admit(shown, "submit", NOW)
        known = self.machine.jobs.get(name)
        whose = owner_of(name, known and known.request.owner, caller)
        self.tell(Submitted(JobRequest(name, 2, work={"once": str(self._now)}, owner=whose)))

    def change(self, shown, call, event):
        """Cancel, pause or resume a job."""
        check_job(self.machine.jobs, event.job, self.rights.admit(shown, call, NOW))
        self.tell(event)

    def status(self, shown):
        """What a caller sees of the cluster's status."""
        now = status_of(self.machine, account(self.history.lines, self._now), {})
        return visible_status(
            {**now, "trouble": f"{[*self.machine.jobs]}", "log": self._log},
            self.history.lines,
            self.rights.admit(shown, "status", NOW),
        )

    def record(self, shown):
        """What a caller sees of the record."""
        return visible_record(self.history.lines, self.rights.admit(shown, "record", NOW))

    def of_others(self, user):
        """What users decide about jobs that are not this user's."""
        return {
            name: (job.request, job.held, job.how)
            for name, job in self.machine.jobs.items()
            if job.request.owner != owner(user)
        }


CALLS = st.lists(
    st.tuples(
        st.sampled_from([*USERS, OPERATOR]),
        st.sampled_from(["submit", "cancel", "pause", "resume", "restart"]),
        st.sampled_from(JOBS),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(calls=CALLS)
def test_nobody_changes_or_sees_by_name_what_is_anothers(folder, calls):
    """Whatever users call, over restarts; what others use still adds up. Operators may do and see all."""
    shared = Shared(folder / "any.jsonl")
    shown = {user: token(user) for user in (*USERS, OPERATOR)}
    had = {}  # owner of each job, which it keeps
    for user, call, name in calls:
        before = shared.of_others(user)
        known = shared.machine.jobs.get(name)
        may = known is None or user == OPERATOR or known.request.owner == user
        try:
            match call:
                case "submit":
                    shared.submit(shown[user], name)
                case "cancel":
                    shared.change(shown[user], "cancel", Cancelled(name))
                case "pause" | "resume":
                    shared.change(shown[user], "hold", Held(name, call == "pause"))
                case "restart":
                    shared.restart()
                    may = True
            assert may
        except (
            InvalidRequestError
        ):  # another's, or, but for a submission, one that has ended or was never there
            assert not may or call != "submit"
        if user != OPERATOR:
            assert shared.of_others(user) == before
        for other, job in shared.machine.jobs.items():
            assert had.setdefault(other, job.request.owner) == job.request.owner
    everything = shared.status(shown[OPERATOR])
    assert {job["job"]: job["owner"] for job in everything["jobs"]} == had
    assert shared.record(shown[OPERATOR]) == shared.history.lines
    for user in USERS:
        seen, lines = shared.status(shown[user]), shared.record(shown[user])
        text = json.dumps(seen) + repr(lines)
        for name, whose in had.items():
            assert (name in text) == (whose == user)
        assert not any(other in text for other in USERS if other != user)
        for field in ("place", "target", "workers"):
            assert [job[field] for job in seen["jobs"]] == [
                job[field] for job in everything["jobs"] if job["state"] != "ended" or job["owner"] == user
            ]
        assert seen["nodes"] == everything["nodes"]
        past, all_of_it = account(lines, NOW + 100), account(shared.history.lines, NOW + 100)
        assert [life.device_seconds for life in past.lives] == [
            life.device_seconds for life in all_of_it.lives
        ]
        names = [job["job"] for job in seen["jobs"]]
        assert len(set(names)) == len(names)


def test_another_users_job_is_refused_as_one_that_does_not_exist(folder):
    """By the same words, so that a user does not learn of it."""
    shared = Shared(folder / "words.jsonl")
    shared.submit(token("anna"), "alpha")
    shared.submit(token("benno"), "beta")
    said = []
    for name in ("alpha", "nothing"):
        with pytest.raises(InvalidRequestError) as refusal:
            shared.change(token("benno"), "cancel", Cancelled(name))
        said.append(str(refusal.value).replace(name, "JOB"))
    assert said == ["job 'JOB' is none of user 'benno', whose jobs are: beta"] * 2
    with pytest.raises(InvalidRequestError, match="'nothing' is not known; there are: alpha, beta"):
        shared.change(token(OPERATOR), "cancel", Cancelled("nothing"))
    shared.change(token(OPERATOR), "cancel", Cancelled("beta"))
    with pytest.raises(InvalidRequestError, match="job 'beta' has ended; there are: none"):
        shared.change(token("benno"), "hold", Held("beta", True))


def test_a_job_stays_its_owners_when_it_is_submitted_again(folder):
    """By an operator, too, and after a restart; another user cannot go on with it."""
    shared = Shared(folder / "again.jsonl")
    shared.submit(token("anna"), "alpha")
    shared.change(token("anna"), "cancel", Cancelled("alpha"))
    shared.restart()
    with pytest.raises(InvalidRequestError, match="job 'alpha': the name is not free; give another --name"):
        shared.submit(token("benno"), "alpha")
    shared.submit(token(OPERATOR), "alpha")
    assert shared.machine.jobs["alpha"].request.owner == "anna"
    assert shared.machine.jobs["alpha"].state == "running"
    shared.change(token("anna"), "cancel", Cancelled("alpha"))


def test_what_a_job_left_whose_owner_is_unknown_is_operators(folder):
    """As the folder of a job of a time without tokens."""
    rights = Shared(folder / "left.jsonl").rights
    anna, operator = (rights.admit(token(user), "submit", NOW) for user in ("anna", OPERATOR))
    with pytest.raises(InvalidRequestError, match="the name is not free"):
        owner_of("old", "", anna)
    assert owner_of("old", "", operator) == ""
    assert owner_of("new", None, anna) == "anna"


def test_two_submissions_of_a_name_at_once_are_one_users(folder):
    """The machine refuses the one that comes second, though both were told that the name is free."""
    shared = Shared(folder / "once.jsonl")
    for user in ("anna", "benno"):
        shared.tell(Submitted(JobRequest("alpha", 1, owner=user)))
        shared.tell(Cancelled("alpha"))
        assert shared.machine.jobs["alpha"].state == "ended"
    assert shared.machine.jobs["alpha"].request.owner == "anna"


ALL_CALLS = [*USERS_CALLS, *OPERATORS_CALLS]

REFUSED = {
    "none": ("", "asks for a user's or an operator's token: give yours with --token-file"),
    "nonsense": ("nonsense", "what was given is not a token"),
    "another key's": (token("anna", keys=TokenKeys(new_key())), "is not signed with a key of this service"),
    "an operator's of before": (token(OPERATOR, int(NOW)), "user '*' has expired, on 2023-11-14 22:13 UTC"),
    "a user's of before": (token("anna", int(NOW) - 60), "user 'anna' has expired, on 2023-11-14 22:12 UTC"),
    "a job's": (issue(KEYS, "anna", 0), "the token is for a job, and one for a user is needed"),
    "all jobs'": (issue(KEYS, ALL_JOBS, 0), "the token is for a job, and one for a user is needed"),
}


@pytest.mark.parametrize("call", ALL_CALLS)
@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_is_done_without_a_valid_token(call, kind):
    """None at all, another key's, one that has expired, and a job's, signed with the same key."""
    shown, words = REFUSED[kind]
    with pytest.raises(UnauthorisedError) as refusal:
        Rights(KEYS).admit(shown, call, NOW)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("call", ALL_CALLS)
def test_operators_alone_change_the_cluster(call):
    """Users call what concerns their jobs; without keys, everybody may do all."""
    rights = Rights(KEYS)
    assert rights.admit(token(OPERATOR), call, NOW).user is None
    assert Rights(None).admit("", call, NOW).user is None
    if call in USERS_CALLS:
        assert rights.admit(token("anna"), call, NOW).user == "anna"
    else:
        with pytest.raises(UnauthorisedError, match=r"only an operator's token .* for user 'anna'"):
            rights.admit(token("anna"), call, NOW)


@pytest.mark.parametrize("call", ["call", "__init__", "_ask", "_run", ""])
def test_nothing_else_can_be_called(call):
    """By nobody: the scheduler's other methods are its own."""
    for rights, shown in ((Rights(KEYS), token(OPERATOR)), (Rights(None), "")):
        with pytest.raises(EvenpaceError, match="there are submit, cancel"):
            rights.admit(shown, call, NOW)
