"""Uploads of resumed jobs' models by workers: held in memory while they arrive, within one common limit."""

import weakref

from idl.errors import InvalidRequestError, UnavailableError

LEARNED_BYTES = 3 * 2**24
"""The most bytes of one job's models; 5,000 workers' models of all predictors together take less."""

_AT_ONCE = 2**28  # bytes of uploads, of all workers together
_PIECE = 2**18  # bytes
_DROPPED = 2**12  # bytes of the buffer through which an upload is read that there is no room for


class Uploads:
    """All uploads that are under way.

    Args:
        at_once: Bytes that the uploads may take together.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._open: weakref.WeakSet[Upload] = weakref.WeakSet()

    def open(self, length: int) -> "Upload":
        """Begin an upload of `length` bytes (InvalidRequestError: `length` is above `LEARNED_BYTES`)."""
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
        """The bytes that are held now."""
        return sum(upload.held for upload in self._open)

    def has_room(self, count: int) -> bool:
        """Return whether `count` more bytes may be held."""
        return self.held + count <= self._at_once


class Upload:
    """One upload, a `rpc.service.Sink`. Takes no memory for bytes that have not arrived.

    Args:
        length: Bytes that are to come.
    """

    def __init__(self, uploads: Uploads, length: int) -> None:
        self._uploads = uploads
        self._left = length
        self._pieces: list[memoryview] = []
        self._filled = 0  # bytes of the last piece
        self._refused = False
        self.held = 0  # bytes of memory that it takes

    def get_buffer(self) -> memoryview:
        """Return the free rest of the last piece, or a new one; without room, a small one that is reused."""
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
        """Note that `count` bytes have been written to the start of the buffer."""
        self._filled += count
        self._left -= count

    def abort(self) -> None:
        """Drop the upload: the rest will not come."""
        self._pieces, self.held = [], 0

    def take(self) -> bytes:
        """Return all bytes, and hold them no longer (UnavailableError: there was no room for the upload)."""
        pieces = self._pieces
        self.abort()
        if self._refused:
            raise UnavailableError("too many workers send at once what their jobs had learned; try again")
        return b"".join(pieces)
