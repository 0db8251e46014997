"""What workers send of what their jobs had learned: kept as it comes, and bounded over all workers."""

import weakref

from idl.errors import InvalidRequestError, UnavailableError

LEARNED_BYTES = 3 * 2**24
"""The most that one job can have learned; 5,000 workers' models of all predictors together take less."""

_AT_ONCE = 2**28  # bytes of uploads, of all workers together
_PIECE = 2**18  # bytes
_DROPPED = 2**12  # bytes that are read at once of what there is no room for


class Uploads:
    """All that are under way.

    Args:
        at_once: Bytes that they may take together.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._open: weakref.WeakSet[Upload] = weakref.WeakSet()

    def open(self, length: int) -> "Upload":
        """A place for so many bytes.

        Raises:
            InvalidRequestError: They are too many.
        """
        if length > LEARNED_BYTES:
            raise InvalidRequestError(
                f"learned: {length} bytes; at most {LEARNED_BYTES} are allowed; without, it is learned again"
            )
        upload = Upload(self, length)
        self._open.add(upload)
        return upload

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return sum(upload.held for upload in self._open)

    def has_room(self, count: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.held + count <= self._at_once


class Upload:
    """One of them; see `rpc.service.Sink`. Takes no memory for what has not come.

    Args:
        uploads: All that are under way.
        length: Bytes that are to come.

    Attributes:
        held: Bytes that it takes.
    """

    def __init__(self, uploads: Uploads, length: int) -> None:
        self._uploads = uploads
        self._left = length
        self._pieces: list[memoryview] = []
        self._filled = 0  # bytes of the last piece
        self._refused = False
        self.held = 0

    def get_buffer(self) -> memoryview:
        """The rest of the last piece, or another; where there is no room, a small one again and again."""
        if not self._pieces or self._filled == len(self._pieces[-1]):
            size = min(self._left, _PIECE)
            if not self._refused and self._uploads.has_room(size):
                self._pieces.append(memoryview(bytearray(size)))
                self.held += size
            elif not self._refused:
                self._refused = True
                self._pieces, self.held = [memoryview(bytearray(_DROPPED))], _DROPPED
            self._filled = 0
        return self._pieces[-1][self._filled : self._filled + self._left]

    def advance(self, count: int) -> None:
        """`count` bytes have been written to the start of the buffer."""
        self._filled += count
        self._left -= count

    def abort(self) -> None:
        """The rest will not come."""
        self._pieces, self.held = [], 0

    def take(self) -> bytes:
        """All of it, which is not held any longer.

        Raises:
            UnavailableError: There was no room for it.
        """
        pieces = self._pieces
        self.abort()
        if self._refused:
            raise UnavailableError("too many workers send at once what their jobs had learned; try again")
        return b"".join(pieces)
