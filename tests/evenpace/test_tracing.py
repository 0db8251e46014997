"""Traces: real processes make one tree of spans of each iteration, and train without a collector, too."""

import contextlib
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenpace.tracing.ids import TraceKey, span_id, trace_id
from tests.evenpace.commands import invoke
from tests.evenpace.observed import JOB, WORKERS, observed_cluster
from tests.services import address_of_our_own

proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
EVERY = 10
PHASES = {"pull", "load", "compute", "push", "report"}


class Collector(ThreadingHTTPServer):
    """An OTLP collector that keeps its spans."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans = []  # with the name of the service that sent them


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = proto.ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/traces"
        for sent in request.resource_spans:
            about = {attribute.key: attribute.value.string_value for attribute in sent.resource.attributes}
            for scope in sent.scope_spans:
                self.server.spans += [(about["service.name"], span) for span in scope.spans]
        answer = proto.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def collector():
    """A collector, and its URL."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def about(span):
    """Return a span's attributes."""
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def iteration_of(span):
    """Return the iteration of a span."""
    return about(span)["iteration"]


def complete(spans):
    """Return the traces with all spans of an iteration of two workers, by iteration."""
    traces = defaultdict(list)
    for service, span in spans:
        traces[span.trace_id].append((service, span))
    size = 1 + 2 * (1 + len(PHASES) + 1) + 1  # the round; iteration, its phases, push handling; the step
    return {number: trace for number, trace in traces.items() if len(trace) >= size}


@pytest.fixture(scope="module")
def traces(tmp_path_factory, wait_until):
    """Return the spans of a run's iterations, but for the last ones, of which some may not have been sent."""
    folder = tmp_path_factory.mktemp("traced")
    with collector() as (server, url):
        with observed_cluster(folder, ("--traces", url, "--trace-every", str(EVERY))) as cluster:
            wait_until(lambda: len(complete(list(server.spans))) >= 5, "five traces", 240)
            last = max(iteration_of(span) for _, span in list(server.spans))

            def spans():
                return [(service, span) for service, span in list(server.spans) if iteration_of(span) <= last]

            # Each process sends its spans when it comes to it. In the first, a worker may have no part.
            wait_until(lambda: len(complete(spans())) >= last // EVERY, "the rest of what has begun")
            assert cluster.finish() == [0, 0], cluster.log("worker 0")
        return spans()


@pytest.mark.ci
def test_an_iteration_is_one_trace_of_all_processes(traces):
    """All spans of an iteration are in one trace, each once, from the manager, the shard and both workers."""
    whole = complete(traces)
    for trace in whole.values():
        names = Counter((service, span.name) for service, span in trace)
        assert names == {
            ("evenpace-manager", "round"): 1,
            ("evenpace-worker", "iteration"): 2,
            **{("evenpace-worker", phase): 2 for phase in PHASES},
            ("evenpace-ps", "push handling"): 2,
            ("evenpace-ps", "step"): 1,
        }
        (iteration,) = {iteration_of(span) for _, span in trace}
        assert iteration % EVERY == 0
        assert {about(span)["job"] for _, span in trace} == {JOB}
        assert {about(span)["worker"] for _, span in trace if span.name == "iteration"} == set(WORKERS)
        assert len({span.span_id for _, span in trace}) == len(trace)
    iterations = {iteration_of(span) for _, span in traces}
    assert all(iteration % EVERY == 0 for iteration in iterations)
    assert len(whole) >= len(iterations) - 1  # of the first, a worker may have no part


@pytest.mark.slow
def test_parents_are_right_and_times_nested(traces):
    """The round is the root; phases lie in their worker's iteration in order, push handling in a push."""
    for trace in complete(traces).values():
        by_id = {span.span_id: span for _, span in trace}
        (root,) = (span for span in by_id.values() if not span.parent_span_id)
        assert root.name == "round"
        for span in by_id.values():
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            if span is root:
                continue
            parent = by_id[span.parent_span_id]
            expected = {"iteration": "round", "step": "round", "push handling": "push"}
            assert parent.name == expected.get(span.name, "iteration")
            assert parent.start_time_unix_nano <= span.start_time_unix_nano + slack(span, parent)
            if span.name not in ("iteration", "step"):
                assert span.end_time_unix_nano <= parent.end_time_unix_nano + slack(span, parent)
                if parent.name != "round":
                    assert about(span)["worker"] == about(parent)["worker"]
        for worker in WORKERS:
            own = {s.name: s for s in by_id.values() if about(s).get("worker") == worker}
            ordered = [own[name] for name in ("pull", "load", "compute", "push", "report")]
            for earlier, later in pairwise(ordered):
                assert earlier.end_time_unix_nano <= later.start_time_unix_nano + slack(earlier, later)
            # The round goes on until all have reported, and each worker's work is done in it.
            assert own["push"].end_time_unix_nano <= root.end_time_unix_nano + 10**6
        (step,) = (span for span in by_id.values() if span.name == "step")
        pushes = [span for span in by_id.values() if span.name == "push handling"]
        assert max(push.end_time_unix_nano for push in pushes) <= step.start_time_unix_nano + 10**6


def slack(one, other):
    """Return the nanoseconds by which two readings of the time of day may differ."""
    return 0 if one is other else 10**6


@pytest.mark.ci
@pytest.mark.parametrize("behaviour", ["away", "silent"])
def test_a_collector_that_is_away_stops_nobody(tmp_path, wait_until, behaviour):
    """Workers train to their end with a collector that refuses connections, or is silent."""
    with contextlib.ExitStack() as stack:
        server, url = stack.enter_context(collector())
        if behaviour == "away":
            url = f"http://{address_of_our_own()}"
        else:
            server.RequestHandlerClass = stack.enter_context(silent())
        options = ("--traces", url, "--trace-every", "1", "--metrics", "127.0.0.1:0")
        with observed_cluster(tmp_path, options) as cluster:
            wait_until(lambda: cluster.metrics("worker 0"), "the endpoint")

            def iterations():
                found = (
                    v for n, _, v in cluster.scrape("worker 0") if n == "evenpace_session_iterations_total"
                )
                return next(found, 0)

            wait_until(lambda: iterations() > 200, "200 iterations", 400)
            if behaviour == "away":
                wait_until(
                    lambda: "onnection refused" in cluster.log("worker 0"), "a line about the collector"
                )
            assert cluster.finish() == [0, 0], cluster.log("worker 0")
            log = cluster.log("worker 0")
        if behaviour == "away":
            assert 1 <= log.count("onnection refused") <= 10  # it is told, and not again and again
        assert not server.spans


@contextlib.contextmanager
def silent():
    """Return a request handler that does not answer until the block ends."""
    end = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def handle(self):
            end.wait()

    try:
        yield Silent
    finally:
        end.set()


# -- by themselves

texts = st.text(max_size=8)
keys = st.builds(TraceKey, texts, st.integers(0, 10**6), st.integers(0, 9))
paths = st.lists(texts, max_size=5).map(tuple)


@given(st.sets(st.tuples(keys, paths), min_size=2, max_size=20))
def test_spans_have_numbers_of_their_own(places):
    """Different paths have different ids of the right size, and the same path has the same id."""
    numbers = {span_id(key, path) for key, path in places}
    assert len(numbers) == len(places)
    assert all(0 < number < 2**64 for number in numbers)
    traces = {key: trace_id(key) for key, _ in places}
    assert len(set(traces.values())) == len(traces)
    assert all(0 < number < 2**128 for number in traces.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trace-every", "0"), "0 is not in the range x>=1"),
        (
            ("--traces", "nowhere:1"),
            "traces 'nowhere:1': give an URL, as in http://127.0.0.1:4318, of an OTLP",
        ),
    ],
)
def test_wrong_options_are_named(options, said):
    """An endpoint that is no URL, and a rate below one, are refused with what is allowed."""
    assert said in invoke("manager", "--listen", "127.0.0.1:0", *options).output
