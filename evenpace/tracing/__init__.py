"""Traces of iterations across processes, by OpenTelemetry.

One trace is one iteration of a job's run, in one attempt: the manager's round, in it each worker's iteration
with its phases, and in a worker's push the shards' handling of it. Nothing about this goes over the wire.
All processes know the run, the iteration, the attempt and the slice, and make the ids of the trace and its
spans from them (see `ids`); by the iteration's number they decide whether it is traced at all.

A worker's iteration is longer than the round by the time of the answer, with which its report ends.
"""
