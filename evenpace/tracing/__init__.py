"""Traces of iterations across processes, by OpenTelemetry.

One trace is one iteration of a job's run, in one attempt: the manager's round, in it each worker's iteration
with what that consists of, and in a worker's push what the shards did with it. Nothing about this goes over
the wire. All processes know the run, the iteration, the attempt and the slice, and make the numbers of the
trace and its spans from them; by the iteration's number they decide whether it is traced at all. See `ids`.

A worker's iteration is longer than the round by the way of the answer: its report ends when that has come.
"""
