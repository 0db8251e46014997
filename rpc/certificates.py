"""Certificates for a cluster: a certificate authority in a folder, and the certificates that it issues.

Keys are of the curve P-256. A certificate with host names is for services, which may use it to call others,
too; one without is for clients.
"""

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from idl.errors import InvalidRequestError
from rpc.credentials import CA_FILE, Credentials
from rpc.tokens import write_secret
from rpc.writing import writing

CA_KEY_FILE = "ca-key.pem"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(
    r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_CLOCKS_APART = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class DescribedCertificate:
    """The contents of a certificate."""

    subject: str  # its owner's name
    issuer: str  # the authority's name
    hosts: tuple[str, ...]  # names and addresses that it may serve as
    begins: datetime.datetime  # start of its validity
    expires: datetime.datetime  # end of its validity
    authority: bool  # whether it is an authority's own certificate
    serial: str  # its number at the authority, in hexadecimal digits


def create_authority(folder: Path, days: int, *, force: bool = False) -> Path:
    """Make a certificate authority in a folder.

    Args:
        folder: The authority's folder, which is made if there is none.
        force: Whether to replace an authority that is there.

    Returns:
        The file of its certificate.

    Raises:
        InvalidRequestError: The folder has an authority already.
    """
    _refuse_to_overwrite(folder / CA_KEY_FILE, force)
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities must not have the same name: while one replaces the other, both are trusted.
    own_name = f"evenpace authority {secrets.token_hex(4)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, own_name)])
    usage = x509.KeyUsage(
        **dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True, "digital_signature": True}
    )
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / CA_KEY_FILE, _pem(key))
    return _write(folder / CA_FILE, certificate)


def issue(folder: Path, name: str, hosts: Sequence[str], days: int, *, force: bool = False) -> Credentials:
    """Issue a certificate, with all files that its owner needs in a folder of its own.

    Args:
        name: The owner's name, and that of the new folder in `folder`.
        hosts: Host names and addresses at which clients call the owner, if it is a service.
        force: Whether to replace a certificate that is there.

    Returns:
        The new files.

    Raises:
        InvalidRequestError: `folder` has no authority, or the name is taken or not allowed.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"name {name!r}: must be 1 to 63 letters, digits, dots, hyphens and underscores"
        )
    alternatives = [_alternative(host) for host in hosts]
    authority, authority_key = _authority(folder)
    files = Credentials.of_folder(folder / name)
    assert files.ca is not None
    assert files.certificate is not None
    assert files.key is not None
    _refuse_to_overwrite(files.key, force)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * bool(hosts) + [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(subject, authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(**dict.fromkeys(_USAGES, False) | {"digital_signature": True}), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    files.key.parent.mkdir(exist_ok=True)
    # The key first: a process that reads the files now sees that they do not match, and keeps its own.
    write_secret(files.key, _pem(key))
    _write(files.certificate, certificate)
    _write(files.ca, authority)
    return files


def describe(file: Path) -> list[DescribedCertificate]:
    """Return the contents of the certificates in a file.

    Raises:
        InvalidRequestError: The file holds no certificate.
    """
    return [_describe(certificate) for certificate in _load(file)]


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _describe(certificate: x509.Certificate) -> DescribedCertificate:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        hosts = ()
    try:
        authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    return DescribedCertificate(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        hosts,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        authority,
        f"{certificate.serial_number:x}",
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    file = folder / CA_KEY_FILE
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except FileNotFoundError:
        raise InvalidRequestError(
            f"no certificate authority in {str(folder)!r}: `evenpace certs init {folder}` makes one"
        ) from None
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(f"the authority's key {str(file)!r}: {error}") from error
    certificate = _load(folder / CA_FILE)[0]
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise InvalidRequestError(f"{str(file)!r} is not the key of {str(folder / CA_FILE)!r}")
    if certificate.not_valid_after_utc <= _now():
        raise InvalidRequestError(
            f"the authority in {str(folder)!r} expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
        )
    return certificate, key


def _load(file: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise InvalidRequestError(f"certificate {str(file)!r}: {error.strerror}") from error
    except ValueError:
        raise InvalidRequestError(f"certificate {str(file)!r}: not a PEM file with certificates") from None


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host) or len(host) > 253 or host.replace(".", "").isdigit():
            raise InvalidRequestError(
                f"host {host!r}: must be a host's name or an IP address, without a port"
            ) from None
    return x509.DNSName(host)


def _refuse_to_overwrite(key: Path, force: bool) -> None:
    if key.exists() and not force:
        raise InvalidRequestError(f"{str(key)!r} is there already; --force replaces it, for good")


def _write(file: Path, certificate: x509.Certificate) -> Path:
    temporary = file.with_name(f".{file.name}.new")
    with writing(file):
        temporary.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return temporary.replace(file)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
