"""Every error this package raises on purpose, as one tree.

    KcoverError
    ├── UsageError          the caller asked for something impossible          exit code 2
    │   └── PolicyError     a policy file has an unknown key or a wrong unit   exit code 2
    ├── CannotObserve       the kernel or our rights do not allow to look      exit code 3
    │   └── LoadError       a BPF object was refused                           exit code 3
    ├── DecodeError         a record has not the bytes its type demands        counted, dropped
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
    """The kernel, or the rights of this process, do not allow to look."""

    exit_code = 3


class LoadError(CannotObserve):
    """The kernel refused a BPF object; the message carries the errno and the end of the log."""


class DecodeError(KcoverError):
    """A record has not the bytes its type demands; it is counted and dropped."""

    def __init__(self, kind: str, detail: str) -> None:
        """`kind` is one of a closed list (it becomes a metric label), `detail` is for people."""
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


class ActionError(KcoverError):
    """A decision could not be carried out."""
