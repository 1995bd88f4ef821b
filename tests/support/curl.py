"""Enough of curl to send what the documentation shows, on a machine without it."""

from __future__ import annotations

import argparse
import re
import shlex
from urllib.parse import urlsplit

from tests.support import http

# A line that begins with curl, and those that it continues on.
_COMMAND = re.compile(r"^ *(curl (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)


def curl_lines(text: str) -> list[str]:
    """Every curl command in the text, in order."""
    return _COMMAND.findall(text)


async def curl(line: str, port: int) -> http.Response:
    """Send what the command sends, to this port of loopback instead of its own."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-i", action="store_true")
    parser.add_argument("-H", action="append", default=[], dest="headers")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", action="append", default=[], dest="data")
    parser.add_argument("url")
    asked = parser.parse_args(shlex.split(line.replace("\\\n", " "))[1:])
    url = urlsplit(asked.url)
    assert url.hostname in ("127.0.0.1", "localhost"), line
    headers = [(name, value.strip()) for name, _, value in (header.partition(":") for header in asked.headers)]
    if asked.data and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    method = asked.method or ("POST" if asked.data else "GET")
    target = f"{url.path}?{url.query}" if url.query else url.path
    return await http.request(port, method, target, headers, "&".join(asked.data).encode())
