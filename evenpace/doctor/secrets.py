"""Checks of this side's own certificate and token, before any service is called."""

import datetime
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from evenpace.doctor.findings import Finding, Subject, ok, problem, warning
from idl.errors import EvenpaceError
from rpc.certificates import describe
from rpc.tokens import ALL_JOBS, Token

_SOON = datetime.timedelta(days=30)


def certificates(subject: Subject) -> Iterator[Finding]:
    """Check the certificate and the authorities in their files."""
    credentials = subject.credentials
    if not credentials.tls:
        return
    assert credentials.ca is not None
    assert credentials.certificate is not None
    assert credentials.key is not None
    try:
        credentials.contexts(server=False)
        own, authorities = describe(credentials.certificate), describe(credentials.ca)
    except EvenpaceError as error:
        yield problem("certificate", str(error), "issue one with `evenpace certs issue`, and give its folder")
        return
    for what, found in (("certificate", own[:1]), ("authority", authorities)):
        for one in found:
            yield validity(what, one.subject, one.begins, one.expires)
    yield from _readable_by_others(credentials.key, "the certificate's key")


def validity(
    subject: str, whose: str, begins: datetime.datetime, expires: datetime.datetime, here: str = "--force"
) -> Finding:
    """Check whether a certificate is valid now, and stays so for a month."""
    now = datetime.datetime.now(datetime.UTC)
    renew = f"issue another: `evenpace certs issue FOLDER NAME {here}`; services take it without a restart"
    if expires <= now:
        return problem(subject, f"{whose} expired on {_day(expires)}", renew)
    if begins > now:
        return problem(
            subject,
            f"{whose} is valid from {_day(begins)} on only",
            "set this machine's clock, or issue another",
        )
    if expires - now < _SOON:
        return warning(subject, f"{whose} expires on {_day(expires)}", renew)
    return ok(subject, f"{whose}, valid until {_day(expires)}")


def token(subject: Subject) -> Iterator[Finding]:
    """Check the token in its file: its form, its job, and its expiry."""
    credentials = subject.credentials
    if credentials.token is None:
        return
    again = "issue another with `evenpace token issue`"
    try:
        held = Token.parse(credentials.read_token())
    except EvenpaceError as error:
        yield problem("token", str(error), again)
        return
    whose = "for all jobs" if held.name == ALL_JOBS else f"for job {held.name!r}"
    expires = datetime.datetime.fromtimestamp(min(held.expires, 2**35), datetime.UTC)
    if not held.expires:
        yield ok("token", f"{whose}, for ever")
    elif held.expires <= time.time():
        yield problem("token", f"{whose}, expired on {_day(expires)}", again)
    elif held.expires < time.time() + 7 * 86400:
        yield warning("token", f"{whose}, expires on {_day(expires)}", again)
    else:
        yield ok("token", f"{whose}, valid until {_day(expires)}")
    yield from _readable_by_others(credentials.token, "the token's file")


def _readable_by_others(file: Path, what: str) -> Iterator[Finding]:
    if file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warning("secrets", f"others may read {what}, {file}", f"chmod 600 {file}")


def _day(at: datetime.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
