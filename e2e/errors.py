"""The exception tree.

E2EError
|-- UsageError          the caller's mistake (flag, file, field, manifest): exit code 2
|-- EnvironmentFault    this machine cannot run it (device, compiler, model, data): exit code 6
|   `-- NoRoom          its memory does not hold the workload
|-- CandidateError      the kernel's fault; becomes a Reason in the result, never a traceback
`-- StoredRunError      a stored run is damaged or unreadable: exit code 2

Anything else that escapes is a fault of e2e itself (`INTERNAL_FAULT`), but for Ctrl-C (`INTERRUPTED`).
"""

from __future__ import annotations

INTERNAL_FAULT, INTERRUPTED = 70, 130
"""Exit codes of what is nobody's outcome: a fault of e2e itself, and Ctrl-C or SIGTERM."""


class E2EError(Exception):
    """Base of everything e2e raises on purpose; `message` is one readable text."""

    exit_code = INTERNAL_FAULT

    def __init__(self, message: str, *, code: str = "e2e_error") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class UsageError(E2EError):
    """The caller's mistake; the message says what, where, and what to type next."""

    exit_code = 2

    def __init__(self, message: str, *, code: str = "usage") -> None:
        super().__init__(message, code=code)


class StoredRunError(UsageError):
    """A stored run cannot be read, is incomplete, or was edited."""

    def __init__(self, message: str, *, code: str = "stored_run") -> None:
        super().__init__(message, code=code)


class EnvironmentFault(E2EError):
    """This environment cannot run what was asked; the message says what to do."""

    exit_code = 6

    def __init__(self, message: str, *, code: str = "environment") -> None:
        super().__init__(message, code=code)


class NoRoom(EnvironmentFault):
    """Memory does not hold the workload, with or without a kernel; of a sweep a smaller cell may still fit."""

    def __init__(self, message: str, *, code: str = "out_of_memory") -> None:
        super().__init__(message, code=code)


class CandidateError(E2EError):
    """The candidate's own fault; `code` is a ReasonCode value."""

    exit_code = 13

    def __init__(self, message: str, *, code: str, line: int | None = None) -> None:
        super().__init__(message, code=code)
        self.line = line


def exit_code_of(error: BaseException | None) -> int:
    """What a command ends with by this error; None stands for one that cannot be seen any more."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, E2EError) else INTERNAL_FAULT
