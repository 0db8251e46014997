"""Framed Thrift servers and clients that all services share.

This package knows the wire, and nothing of what the services mean. `server` is one event loop for
thousands of connections (`peer` is one of them, `service` what it calls), `client` a blocking client for a
worker, `codec` the messages between them, `check` looks at their values.
"""
