"""One job as a state machine: events in, plans out; no socket, thread or clock."""
