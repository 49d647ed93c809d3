"""Whether the server of this container answers: HEALTHCHECK of the Containerfile.

    python healthz.py PORT

The certificate is one for the name that clients use, not for 127.0.0.1, and is not checked: nothing
secret is said. A metrics port on 127.0.0.1 has no TLS.
"""

from __future__ import annotations

import http.client
import ssl
import sys
import urllib.request


def answers(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    direct = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))
    for scheme in ("https", "http"):
        try:
            with opener.open(f"{scheme}://127.0.0.1:{port}/healthz", timeout=5):
                return True
        except (OSError, http.client.HTTPException):
            pass
    return False


if __name__ == "__main__":
    raise SystemExit(0 if answers(int(sys.argv[1])) else 1)
