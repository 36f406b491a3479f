"""The one exception tree of Potluck.

    PotluckError                exit 1   a bug of ours, unless a subclass says otherwise
    +-- UsageError              exit 2   the command line makes no sense
    +-- ConfigError             exit 3   a file or flag holds a value that cannot work
    +-- MachineError            exit 4   this machine lacks something: memory, disk, a port, a readable file
    |   +-- StorageError                 reading or writing durable state failed
    +-- UnreachableError        exit 5   nobody answered at the addresses given
    +-- RefusedError            exit 6   the other side said no: invite, credential, ban
    +-- VersionError            exit 7   the two sides speak different protocol versions or schemas
    +-- RunOverError            exit 8   the run has ended
    +-- TemporaryError          exit 75  worth trying again, unchanged
    +-- LocalProtocolError               our own code broke a rule of the protocol
    +-- RemoteProtocolError              a peer sent something the protocol does not allow: drop it, count it
    +-- TransportError                   a message could not be carried
        +-- PeerUnreachable              refused or reset: the process at the other end is gone
        |   +-- ConnectionReset          reset in the middle: it is gone, or only the connection is
        +-- CallTimeout                  no answer within the deadline: slow, frozen or cut off

Every error says what was found, what was expected and what to do, in that order, on one line. Control characters, which may come
from a file or a stranger, are shown as escapes.
"""

from __future__ import annotations

from typing import ClassVar, Final

from protocol.tables import printable


class PotluckError(Exception):
    """Root of the tree.

    Args:
        found: what was found, naming the thing ("run.toml: round.target_tokens is 0").
        expected: what was expected ("a whole number of at least 1").
        remedy: what the reader should do next ("try 61440").
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, found: str, expected: str = "", remedy: str = "") -> None:
        self.found = found
        self.expected = expected
        self.remedy = remedy
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """The error as one clear line: found; expected; what to do."""
        parts = [self.found]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.remedy:
            parts.append(self.remedy)
        return printable("; ".join(parts))


class UsageError(PotluckError):
    """The command line makes no sense."""

    exit_code = 2


class ConfigError(PotluckError):
    """A file or flag holds a value that cannot work; the reader can fix it."""

    exit_code = 3


class MachineError(PotluckError):
    """This machine lacks something that the command needs."""

    exit_code = 4


class StorageError(MachineError):
    """Durable state could not be read or written; nothing was acknowledged."""


class SupersededError(MachineError):
    """A newer process with our identity was started; that one goes on."""


class UnreachableError(PotluckError):
    """Nobody answered at the addresses given."""

    exit_code = 5


class RefusedError(PotluckError):
    """The other side understood and said no."""

    exit_code = 6


class VersionError(PotluckError):
    """The two sides speak different protocol versions or tensor schemas."""

    exit_code = 7


class RunOverError(PotluckError):
    """The run has ended; there is nothing left to join."""

    exit_code = 8


class TemporaryError(PotluckError):
    """A passing failure; the same command may work later."""

    exit_code = 75


class LocalProtocolError(PotluckError):
    """Our own code broke a rule of the protocol: a bug to report."""


class RemoteProtocolError(PotluckError):
    """A peer sent something that the protocol does not allow; drop it and count it."""


class TransportError(PotluckError):
    """A message could not be carried; the caller decides whether to try again."""

    exit_code = 5


class PeerUnreachable(TransportError):
    """Refused or reset: the process at the other end is gone, as far as we can see."""


class ConnectionReset(PeerUnreachable):
    """Reset in the middle: the process at the other end is gone, or only the connection is. Asking again tells which."""


class CallTimeout(TransportError):
    """No answer within the deadline: the other side is slow, frozen or cut off."""


MIGHT_WORK_LATER: Final = (TemporaryError, UnreachableError, TransportError)
"""After these the same call may succeed a little later; after any other it fails again."""


def no_memory(num_bytes: int) -> MachineError:
    """An error in place of a MemoryError, which code that goes on with less memory would not notice."""
    return MachineError(
        f"no memory for {num_bytes:,} bytes", "memory to be had", "close other programs, or allow this one more memory"
    )
