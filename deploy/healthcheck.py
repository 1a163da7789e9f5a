#!/usr/bin/env python3
"""Health check: exits with 0 if the server is ready, else with 1 and the reason.

Asks /readyz at the address that the environment sets, by TLS if the server uses TLS. The request
stays on this machine, so certificates are not verified and proxies are not used.
"""

import os
import ssl
import sys
import urllib.request

ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
TIMEOUT_S = 2.0


def url() -> str:
    host = os.environ.get("DUALSTREAM_HOST") or "127.0.0.1"
    host = ANY.get(host.strip("[]"), host.strip("[]"))
    port = os.environ.get("DUALSTREAM_PORT") or "8000"
    if "://" in port:  # the link of a Kubernetes service `dualstream`, and not the setting
        port = "8000"
    scheme = "https" if os.environ.get("DUALSTREAM_SSL_CERTFILE") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/readyz"


def main() -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        urllib.request.build_opener(*handlers).open(url(), timeout=TIMEOUT_S).close()
    except OSError as error:
        sys.stderr.write(f"{url()}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
