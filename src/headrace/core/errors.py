"""Everything that can go wrong, as one tree.

    HeadraceError            what happened, with the numbers; `hint` says what to do next
    ├── BadInput             the caller's to mend       HTTP 400, exit code 2
    │   ├── NeverFits        could not run even alone   HTTP 400
    │   ├── UnknownModel     no model of that name      HTTP 404
    │   └── Unauthorized     no key, or a wrong one     HTTP 401
    ├── Busy                 full now, later not        HTTP 503 with Retry-After
    ├── TimedOut             longer than it may          HTTP 504
    ├── ModelUnusable        files missing, cut off or of a kind we cannot run   exit code 2
    │   └── ModelOutOfReach  the network or the disk is to blame    exit code 1
    ├── EngineDied           the process that computes is gone
    └── TargetFailed         a server under measure would not start, or left

Foreign exceptions are translated into one of these where they enter.
"""


class HeadraceError(Exception):
    """Base of all errors that a person is meant to read. `hint` is what to try next, or empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadInput(HeadraceError):
    """Something the caller gave us is wrong, and sending it again will not help."""


class NeverFits(BadInput):
    """The request needs more than the whole engine has."""


class UnknownModel(BadInput):
    """The request names a model that is not served here."""


class Unauthorized(BadInput):
    """The request names no key that opens this server."""


class Busy(HeadraceError):
    """No room now; worth another try after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float, hint: str = "") -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class TimedOut(HeadraceError):
    """The answer took longer than the server lets one take."""


class ModelUnusable(HeadraceError):
    """The model cannot be found, read or compiled."""


class ModelOutOfReach(ModelUnusable):
    """The model may be sound; it cannot be got, or not be kept."""


class EngineDied(HeadraceError):
    """The engine's process has ended while requests were running."""


class TargetFailed(HeadraceError):
    """A server that was to be measured did not become healthy, or died."""
