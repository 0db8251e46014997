"""Checks of an address: its name, TCP, and TLS with the certificates of both sides."""

import socket
import ssl
import time
from collections.abc import Generator, Iterator

from cryptography import x509

from evenpace.doctor.findings import Finding, Subject, milliseconds, ok, problem, warning
from evenpace.doctor.secrets import validity
from idl.errors import EvenpaceError
from rpc.address import Address

_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH


def reach(subject: Subject, address: Address, about: str) -> Generator[Finding, None, bool]:
    """Check whether any address of the name accepts connections; also return that."""
    try:
        entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield problem(
            about,
            f"{address.host!r} does not resolve: {error}",
            "see the spelling, /etc/hosts, and the name server",
        )
        return False
    failed: dict[str, OSError] = {}
    times = []
    for family, kind, protocol, _, where in entries:
        begun = time.perf_counter()
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(subject.timeout / len(entries))
                connection.connect(where)
        except OSError as error:
            failed[str(where[0])] = error
        else:
            times.append(time.perf_counter() - begun)
    if not times:
        first = next(iter(failed.values()))
        yield problem(about, f"cannot be reached: {reason(first)}", _advice(first, address))
        return False
    if failed:
        silent = ", ".join(f"{host} ({reason(why)})" for host, why in failed.items())
        yield warning(
            about,
            f"{address.host!r} has addresses at which nobody answers: {silent}",
            "have the service listen there, too, or call it by the address that answers",
        )
    yield ok(about, f"reached in {milliseconds(min(times))}")
    return True


def reason(error: OSError) -> str:
    """Return in words why a connection failed."""
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _advice(error: OSError, address: Address) -> str:
    if isinstance(error, ConnectionRefusedError):
        return (
            f"nobody listens on port {address.port}: start it, with --listen at an address that others "
            f"reach, as in 0.0.0.0:{address.port}"
        )
    if isinstance(error, TimeoutError):
        return "see whether the machine is up, and whether a firewall drops what is sent there"
    return "see the route to that network, and this machine's interfaces"


# -- TLS


def shake_hands(subject: Subject, address: Address, about: str) -> Generator[Finding, None, bool]:
    """Check whether this side trusts the service's certificate; also return that."""
    try:
        context = subject.credentials.contexts(server=False).current()
    except EvenpaceError:
        return False  # reported by the check of the certificates
    try:
        with (
            socket.create_connection(address, timeout=subject.timeout) as connection,
            context.wrap_socket(connection, server_hostname=address.host) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        yield from _mistrusted(subject, address, about, error)
        return False
    except ssl.SSLError as error:
        yield problem(
            about,
            f"does not speak TLS 1.3 ({error.reason or error})",
            "start it with --tls, or leave --tls out here, where the network is trusted",
        )
        return False
    except OSError as error:
        yield problem(about, f"broke off the TLS handshake: {reason(error)}", "see its log")
        return False
    if shown is not None:
        yield _certificate(about, shown)
    return True


def _mistrusted(
    subject: Subject, address: Address, about: str, error: ssl.SSLCertVerificationError
) -> Iterator[Finding]:
    """Find out from a service's certificate why it is not trusted."""
    shown = _shown(subject, address)
    if shown is not None:
        finding = _certificate(about, shown)
        if finding.level == "problem":
            yield finding
            return
    if (
        "mismatch" in error.verify_message
        or "doesn't match" in error.verify_message
        or error.verify_code in _OTHER_NAME
    ):
        names = ", ".join(_names(shown)) if shown is not None else "others"
        yield problem(
            about,
            f"its certificate is not for {address.host!r}, but for {names}",
            f"call it by such a name, or issue one for it: `evenpace certs issue ... --host {address.host}`",
        )
    else:
        yield problem(
            about,
            f"its certificate is not trusted: {error.verify_message}",
            "give the ca.pem of the authority that issued it; both sides need the same authority",
        )


def _shown(subject: Subject, address: Address) -> bytes | None:
    """Return a service's certificate without verifying it; None if there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(address, timeout=subject.timeout) as connection,
            context.wrap_socket(connection) as secure,
        ):
            return secure.getpeercert(binary_form=True)
    except OSError:
        return None


def _certificate(about: str, shown: bytes) -> Finding:
    certificate = x509.load_der_x509_certificate(shown)
    whose = f"its certificate ({certificate.subject.rfc4514_string()})"
    return validity(
        about, whose, certificate.not_valid_before_utc, certificate.not_valid_after_utc, "--host HOST --force"
    )


def _names(shown: bytes) -> list[str]:
    certificate = x509.load_der_x509_certificate(shown)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ["nobody who serves"]
    return [str(name.value) for name in found]
