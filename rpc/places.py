"""Where a service may be: one address, a list of them, or a file that another process keeps up to date.

A client asks for the present addresses at each attempt to connect, so that it finds a service that was
started again on another machine. Names of hosts are resolved at each attempt, too; see `rpc.dial`.
"""

from dataclasses import dataclass
from pathlib import Path

from idl.errors import InvalidRequestError, UnavailableError
from rpc.address import Address

_MOST_BYTES = 4096  # of a file; a list of addresses is shorter


@dataclass(frozen=True)
class Places:
    """The places where one service may be, of which it is at one at a time.

    Attributes:
        file: It has one address, or several with commas between them, and is read for each attempt to
            connect; whoever rewrites it puts another file in its place by renaming it.

    Raises:
        InvalidRequestError: There are neither addresses nor a file, or both; or an address comes twice.
    """

    addresses: tuple[Address, ...] = ()  # they are tried in turn; none where there is a file
    file: Path | None = None

    def __post_init__(self) -> None:
        if bool(self.addresses) == (self.file is not None):
            raise InvalidRequestError("places of a service: give addresses, or a file that has them")
        for number, address in enumerate(self.addresses):
            if address in self.addresses[:number]:
                raise InvalidRequestError(f"places of a service: {address} comes twice")

    @classmethod
    def of(cls, where: "Address | Places") -> "Places":
        """Return the places themselves, or those that are one address."""
        return where if isinstance(where, Places) else cls((where,))

    @classmethod
    def parse(cls, text: str) -> "Places":
        """Parse `HOST:PORT`, `HOST:PORT,HOST:PORT`, or `@FILE`.

        Raises:
            InvalidRequestError: The text is none of them.
        """
        if text.startswith("@"):
            if text == "@" or "\0" in text:
                raise InvalidRequestError(
                    f"place {text!r}: give @FILE, a file that has HOST:PORT, or several with commas"
                )
            return cls(file=Path(text[1:]))
        return cls(_parse_list(text))

    def now(self) -> tuple[Address, ...]:
        """Return the addresses at present, at least one.

        Raises:
            UnavailableError: The file does not exist yet, or has no addresses.
        """
        if self.file is None:
            return self.addresses
        try:
            with self.file.open("rb") as file:
                text = file.read(_MOST_BYTES).decode().strip()
        except OSError as error:
            raise UnavailableError(f"file of places {str(self.file)!r}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise UnavailableError(f"file of places {str(self.file)!r}: it is not text") from None
        if not text:
            raise UnavailableError(f"file of places {str(self.file)!r}: it is empty")
        try:
            return Places(_parse_list(text)).addresses
        except InvalidRequestError as error:
            raise UnavailableError(f"file of places {str(self.file)!r}: {error}") from None

    def __str__(self) -> str:
        return f"@{self.file}" if self.file is not None else ",".join(map(str, self.addresses))


Where = Address | Places
"""Where a client looks for a service."""


def parse_where(text: str) -> Where:
    """Parse the places of a service; an `Address` where the text is one.

    Raises:
        InvalidRequestError: See `Places.parse`.
    """
    places = Places.parse(text)
    return places.addresses[0] if len(places.addresses) == 1 else places


def _parse_list(text: str) -> tuple[Address, ...]:
    return tuple(Address.parse(one.strip()) for one in text.split(","))
