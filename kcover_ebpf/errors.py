"""Every error this package raises on purpose, as one tree.

    KcoverError
    ├── UsageError          the caller asked for something impossible          exit code 2
    │   └── PolicyError     a policy file has an unknown key or a wrong unit   exit code 2
    ├── CannotObserve       kernel or privileges do not allow to observe      exit code 3
    │   └── LoadError       a BPF object was refused                           exit code 3
    ├── DecodeError         a record has not the bytes its type demands        counted, dropped
    ├── ObjectError         an object of the API has not the shape it should   counted, dropped
    │   └── OverBound       it is larger than what is kept of one, or of all   counted, dropped, an Event
    ├── ApiError            the API server refused, or did not answer          retried
    │   ├── Conflict        another client was first                            409
    │   ├── Forbidden       this ServiceAccount may not                        401, 403; exit code 3
    │   ├── NotFound        no such object, or no such kind                    404
    │   ├── Gone            the history asked for is no longer kept            410
    │   └── Unreachable     no answer: network, time-out, overload             -, 429, 5xx; exit code 3
    ├── StoreError          a store of archives refused, or did not answer     retried
    ├── ReaderError         a confined reader crashed, or did not answer       unobserved, retried
    └── ActionError         a decision could not be carried out                reported, retried

The message of a `UsageError` or `CannotObserve` is one line that says what to do.
"""


class KcoverError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command returns for it."""

    exit_code = 1


class UsageError(KcoverError):
    """The caller asked for something impossible; the message says what to ask for instead."""

    exit_code = 2


class PolicyError(UsageError):
    """A policy has an unknown key, a wrong type or a wrong unit."""


class CannotObserve(KcoverError):
    """The kernel, or the privileges of this process, do not allow it to observe."""

    exit_code = 3


class LoadError(CannotObserve):
    """The kernel refused a BPF object; the message contains the errno and the end of the log."""


class DecodeError(KcoverError):
    """A record has not the bytes its type demands; it is counted and dropped."""

    def __init__(self, kind: str, detail: str) -> None:
        """`kind` is one of a closed list (it becomes a metric label), `detail` is for people."""
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


class ObjectError(KcoverError):
    """An object of the Kubernetes API has not the shape that its kind demands."""


class OverBound(ObjectError):
    """An object is larger than the limit for one, or exceeds the share of its namespace."""

    def __init__(self, what: str, about: dict[str, str], detail: str) -> None:
        """`what`: one of a closed list (a metric label); `about`: apiVersion, kind, namespace, name, uid."""
        super().__init__(f"{about['kind']} {about['namespace']}/{about['name']}: {detail}")
        self.what, self.about, self.detail = what, about, detail


class ApiError(KcoverError):
    """The API server refused a request, or did not answer; the message carries no secrets."""

    def __init__(self, message: str, status: int = 0, retry_after_s: float | None = None) -> None:
        """`status`: the HTTP status, 0 without an answer; `retry_after_s`: as the server asks."""
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_refusal(self) -> bool:
        """True if the server answered, and may give the same answer however often it is asked."""
        return True


class Conflict(ApiError):
    """The object changed, exists already, or a precondition does not hold."""

    @property
    def is_refusal(self) -> bool:
        """False: what is read anew can be written."""
        return False


class Forbidden(ApiError):
    """Our ServiceAccount lacks this permission, or an admission policy refused."""

    exit_code = 3


class NotFound(ApiError):
    """There is no such object, or the server does not know its kind."""


class Gone(ApiError):
    """The server no longer keeps the requested history: list again."""


class TooLarge(ApiError):
    """One page of a list is larger than we accept: ask for fewer objects."""


class Unreachable(ApiError):
    """No answer, or none that is about the request: try again later."""

    exit_code = 3

    @property
    def concerns_all(self) -> bool:
        """True if the server is away or overloaded, so that any other request would fail as well."""
        return self.status in (0, 429, 503)

    @property
    def is_refusal(self) -> bool:
        """True for an error that concerns this request, as when a webhook in its path fails."""
        return not self.concerns_all


class ActionError(KcoverError):
    """A decision could not be carried out."""


class StoreError(KcoverError):
    """A store of archives refused a request, or did not answer; the message carries no secrets."""


class NotSent(KcoverError):
    """A message was not delivered; `is_final`: another attempt would fail as well."""

    def __init__(self, text: str, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class ReaderError(KcoverError):
    """A confined reader refused, crashed or did not answer in time: what it should have read is unobserved."""

    def __init__(self, text: str, at: str = "") -> None:
        """`at`: what it was working on when it ended; empty if it had not reported that."""
        super().__init__(text)
        self.at = at
