"""Exits with 0 if the container's command is alive and, if it is `ctr serve`, ready to predict.

Argument: the id of that command's process.
"""

import os
import ssl
import sys
import urllib.request
from pathlib import Path

if b"serve" in Path(f"/proc/{sys.argv[1]}/cmdline").read_bytes().split(b"\0"):
    scheme = "https" if "CTR_SERVE_TLS_CERT" in os.environ else "http"
    url = f"{scheme}://127.0.0.1:{os.environ.get('CTR_SERVE_PORT', '8000')}/readyz"
    try:
        urllib.request.urlopen(url, timeout=4, context=ssl._create_unverified_context()).close()
    except OSError as error:
        sys.exit(f"{url}: {error}")
