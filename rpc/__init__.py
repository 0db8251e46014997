"""Framed Thrift servers and clients that all services share.

This package knows the wire, and nothing of what the services mean. `server` is one event loop for thousands
of connections (`peer` is one of them, `service` the interface that it calls), `client` a blocking client for
a worker, `codec` encodes and decodes the messages between them.
"""
