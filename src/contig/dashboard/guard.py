"""Who may look at the page, and what it may do: token, host, content policy.

Every answer says that a browser may load nothing from elsewhere. A page bound to this machine
answers only requests that name this machine: a site of another name that resolves to 127.0.0.1
gets nothing.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from ..arguments import host_name, is_loopback

__all__ = ["POLICY", "Guard"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_MAX_REQUESTS = 64  # at a time, of those who may see the page
_COOKIE = "contig-token"
_HELP = "this page needs its token: open it as /?token=..., or send Authorization: Bearer ..."


class Guard:
    """An ASGI application around another one.

    Args:
        app: what is guarded.
        host: the address it is bound to.
        token: what has to be known; None: nothing, which is for this machine only.
    """

    def __init__(self, app: Any, host: str, token: str | None) -> None:
        if token is None and not is_loopback(host):
            raise ValueError(
                f"host {host!r} can be reached from elsewhere: a dashboard there needs a token"
            )
        self._app = app
        self._local = is_loopback(host)
        self._token = None if token is None else token.encode()
        self._requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        headers = dict(scope["headers"])
        # Cookies of one host are of all its ports.
        cookie = f"{_COOKIE}-{scope['server'][1]}"
        if self._local and not is_loopback(host_name(headers.get(b"host", b""))):
            await _answer(send_guarded, 403, "this page is for this machine: use 127.0.0.1")
            return
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
        if self._token is not None and given is not None and scope["path"] == "/":
            await self._let_in(send_guarded, scope, given, cookie)
        elif self._token is not None and not self._may(headers, cookie):
            await _answer(send_guarded, 401, _HELP)
        elif self._requests >= _MAX_REQUESTS:
            await _answer(send_guarded, 503, "too many requests at a time: ask again later")
        else:
            self._requests += 1
            try:
                await self._app(scope, receive, send_guarded)
            finally:
                self._requests -= 1

    def _is_token(self, given: bytes) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given, self._token)

    def _may(self, headers: dict[bytes, bytes], cookie: str) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and self._is_token(given.strip()):
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        return cookie in cookies and self._is_token(unquote_to_bytes(cookies[cookie].value))

    async def _let_in(self, send: Any, scope: Any, given: str, name: str) -> None:
        """The token of a link becomes a cookie, and leaves the address bar and the history."""
        if not self._is_token(given.encode("utf-8", "surrogateescape")):
            await _answer(send, 401, _HELP)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        rest = urlencode([(k, v) for k, v in query if k != "token"])
        cookie = SimpleCookie({name: quote(given, safe="")})  # any text, as a cookie may have it
        told = {"path": "/", "samesite": "Strict", "httponly": True}
        for key, value in {**told, "secure": scope.get("scheme") == "https"}.items():
            cookie[name][key] = value
        headers = [
            (b"location", f"/?{rest}".encode() if rest else b"/"),
            (b"set-cookie", cookie.output(header="").strip().encode()),
        ]
        await _answer(send, 303, "", headers)


async def _answer(
    send: Any, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = text.encode()
    more = [(b"content-type", b"text/plain; charset=utf-8"), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": more})
    await send({"type": "http.response.body", "body": body})
