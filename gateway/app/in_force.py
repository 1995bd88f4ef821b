"""The configuration that a gateway has in force, in a file of `state_dir`, for `check --diff`.

It is written when the gateway has begun to serve, by its supervisor if it has several processes. It holds no secret,
and stays when the gateway stops.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.app.operating import OperatingError
from gateway.config import Config
from gateway.config.effective import differences, effective

_LOG = logging.getLogger("gateway")
_NAME: Final = "configuration.yaml"


def note_in_force(config: Config) -> None:
    """Write down what is in force. A disk that does not take it is logged: nothing that is served depends on it."""
    file = config.state_dir / _NAME
    made = file.with_name(f".{_NAME}-{os.getpid()}")
    try:
        made.write_text(effective(config), encoding="utf-8")
        made.chmod(0o600)
        made.replace(file)
    except OSError as error:
        with suppress(OSError):
            made.unlink(missing_ok=True)
        _LOG.warning("%s could not be written, so check --diff shows an older state: %s", file, error.strerror)


def differences_from_force(config: Config) -> tuple[list[str], str]:
    """How this configuration differs from the one that the gateway with its `state_dir` put in force last, and when
    that was. Raises `OperatingError`."""
    file: Path = config.state_dir / _NAME
    try:
        text = file.read_text("utf-8")
        since = datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return differences(text, effective(config)), since
    except FileNotFoundError:
        raise OperatingError(
            f"no gateway has put a configuration in force with state_dir {config.state_dir}: run this where it runs"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise OperatingError(f"{file} cannot be read: {why}. Run this as the gateway's user") from None
