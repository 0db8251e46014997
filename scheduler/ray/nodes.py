"""What Ray has no public calls for; this module alone knows them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray._private import services
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.state import state
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is native


def draining_nodes() -> dict[str, float]:
    """Return the nodes that are about to go, by Ray's id: when, in seconds since 1970; 0 where nobody said.

    Ray knows it of spot notices, of an autoscaler that shrinks the cluster, and by `ray drain-node`.
    """
    nodes: dict[str, int] = state.get_draining_nodes()
    return {node: milliseconds / 1000 for node, milliseconds in nodes.items()}


def ask_head(address: str) -> None:
    """Ask the head of the cluster at an address once, where `ray.init` would ask for twenty seconds.

    Raises:
        AuthenticationError: It asks for a token, and this process has none, or another one.
        RayError: It does not answer as a head.
    """
    # Else Ray's native part ends the whole process where it misses the token.
    ensure_token_if_auth_enabled(create_token_if_missing=False)
    GcsClient(address=address)


@contextlib.contextmanager
def in_sessions_of_their_own() -> Iterator[None]:
    """Have the processes of a cluster that `ray.init` starts miss signals to this one's process group.

    SIGTERM to the group would end Ray before this process can end the job in good order. They still end with
    this process.
    """
    plain = services.ConsolePopen

    class InItsSession(plain):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, start_new_session=True, **options)

    services.ConsolePopen = InItsSession  # type: ignore[misc]
    try:
        yield
    finally:
        services.ConsolePopen = plain  # type: ignore[misc]
