"""One term, prepared before the election: a socket for its lease, a process that waits to be CMD.

The process is forked in advance because the fork takes longest of all. It is born under the guard,
in the term's namespace and a process group of its own. It becomes CMD only after it received the
command *and* the guard confirmed a deadline. It ends with its supervisor.

CMD learns about its lease from environment variables and from the socket. A process that connects
gets one line of JSON at once, computed at that instant; then the connection is closed. The answer
fits into any socket's buffer, so a peer that does not read cannot make the supervisor wait.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Final, NoReturn, Self

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.locks.leases import Lease
from incumbent.supervise.guarding import Guard, GuardFault
from incumbent.supervise.kernel import die_with_parent, own_proc, pid_namespace, readable, writable
from incumbent.supervise.messages import Kind, Message
from incumbent.supervise.signals import Terminal

# -- the socket ------------------------------------------------------------------------------------

WITHHELD: Final = "withheld:"
"""The store URL that every `incumbent` command refuses with an explanation."""

_CREDENTIALS: Final = (
    *("INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE"),
    *("INCUMBENT_NOTIFY_SECRET", "INCUMBENT_NOTIFY_SECRET_FILE"),
)
_LEASE: Final = "INCUMBENT_LEASE_"
_OF_THE_SERVICE: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("INCUMBENT_LISTEN", "INCUMBENT_TOKEN_FILE", "INCUMBENT_USER_HEADER", "INCUMBENT_NOTIFY"),
)
"""Variables of our service: CMD must not notify anybody for us, nor take our port."""

_BACKLOG: Final = 128
# Answers per turn of the loop: a flood of connections must not delay a KILL.
_AT_ONCE: Final = 32
# Seconds before the next turn if a connection cannot be accepted.
_BREATH: Final = 0.01
# Bytes of the socket's path; unix(7) allows 107, other systems 103.
_LONGEST_PATH: Final = 100


class LeaseSocket:
    """The lease's socket, a context manager; `path` is for CMD, `fd` and `ready` are for the loop.

    Without a `lease` it does not answer. Raises ConfigError if there is no folder for the socket.
    """

    def __init__(self, lease: Lease | None = None) -> None:
        self.lease = lease
        self._folder = _private_folder()
        self.path = str(self._folder / "lease")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(self.path)
            # CMD may run as another user. Others can traverse the folder, but neither list nor
            # write it, so that no other user can replace the socket.
            Path(self.path).chmod(0o666)
            self._folder.chmod(0o711)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise
        self.fd = self._socket.fileno()

    def ready(self) -> None:
        """Answer the waiting connections; blocks for _BREATH at most, and never raises."""
        for _ in range(_AT_ONCE):
            try:
                peer, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                # Perhaps no descriptor is left: the peer waits on, and would wake the loop at once.
                time.sleep(_BREATH)
                return
            with peer, suppress(OSError):
                peer.setblocking(False)
                # Computed after the peer connected, because the peer counts `remaining` from then.
                if self.lease is not None:
                    peer.send(_answer(self.lease))

    def close(self) -> None:
        """Remove the socket. From now on there is no answer, which means: the lease is not held."""
        self._socket.close()
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(lease: Lease) -> bytes:
    facts = {
        "name": lease.name,
        "holder": lease.holder,
        "term": lease.fencing_token,
        "slot": lease.belief.slot,
        "remaining": lease.remaining,
        "lost": lease.belief.proof.lost_reason,
    }
    return json.dumps(facts).encode() + b"\n"


def _private_folder() -> Path:
    """A new folder that a command of another user can reach too."""
    tried: list[str] = []
    # A container with a read-only root has at least /dev/shm.
    for base in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        if not base or len(os.fsencode(base)) > _LONGEST_PATH - len("/incumbent-xxxxxxxx/lease"):
            continue
        tried.append(base)
        with suppress(OSError):
            # Absolute: CMD and the guard may have other working directories.
            return Path(tempfile.mkdtemp(prefix="incumbent-", dir=base)).absolute()
    raise ConfigError(
        f"no folder for the lease's socket can be made in {', '.join(tried)}: set TMPDIR to a"
        " folder that can be written",
        name="tmpdir",
    )


# -- the environment ------------------------------------------------------------------------------


def without_service(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the variables that belong to this process as a service."""
    return {name: value for name, value in environ.items() if name not in _OF_THE_SERVICE}


def child_environment(
    environ: Mapping[str, str], share_store: str | None, lease: Mapping[str, str | None]
) -> dict[str, str]:
    """`environ` with the lease's variables, and without the variables of a lease we run under.

    `share_store`: the URL of the store, if CMD may use it.
    """
    kept = {
        name: value
        for name, value in without_service(environ).items()
        if not name.startswith(_LEASE) and name not in _CREDENTIALS
    }
    kept["INCUMBENT_STORE"] = WITHHELD if share_store is None else share_store
    return kept | {_LEASE + name: value for name, value in lease.items() if value is not None}


# -- the term --------------------------------------------------------------------------------------

# The most seconds from sending the command to the exec; the guard's answer may take one.
_WITHIN: Final = 3.0
# The report, in place of an errno, that the guard did not answer.
_UNGUARDED: Final = 255
# Signals that Python ignores, but that CMD gets as every other program does.
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class PreparedCommand:
    """A prepared CMD, with the term in which it will run; `close` ends both, started or not.

    `ttl`: see `Guard.begin`. `init`: a pidfd of the init of the term's PID namespace; `namespace`:
    the namespace; both are -1 without one. Raises ConfigError if there is no folder for the socket,
    GuardFault if the guard does not answer or the fork fails.
    """

    def __init__(self, guard: Guard, ttl: float) -> None:
        self.guard = guard
        with ExitStack() as undo:
            # Called last, when the folder is gone: as long as there is one, the guard has to know
            # it.
            undo.callback(guard.remove_later, "")
            self.socket = undo.enter_context(LeaseSocket())
            # From here on the socket is removed even if we are killed.
            guard.remove_later(self.socket.path)
            self.term, self.init_pid, fds = guard.begin(ttl)
            self.init, self.namespace = fds or (-1, -1)
            undo.callback(self.end_term)
            go, self._go = os.pipe()
            self._report, report = os.pipe()
            undo.callback(self._close_pipes)
            # A large environment fills the pipe: a process that does not read must not hold us.
            os.set_blocking(self._go, False)
            try:
                self.pid = self._fork(go, report)
            except OSError as error:
                # One cause is a dead init of the namespace.
                raise GuardFault(f"the command could not be forked: {error}") from error
            finally:
                os.close(go)
                os.close(report)
            # Undone before `end_term`: the guard forgets the term only when its process has ended.
            undo.callback(self._end_process)
            self._undo = undo.pop_all()

    @property
    def broken(self) -> bool:
        """Whether CMD cannot be started with it any more."""
        dead = self.init >= 0 and readable(self.init)
        return dead or self._report < 0 or readable(self._report)

    def prove(self, kill_at: float) -> None:
        """Let the tree live until `kill_at`. From any thread; never blocks."""
        # If the guard takes no more messages, its last deadline stays.
        with suppress(OSError, ValueError):
            self.guard.send(Message(Kind.PROOF, self.term, seconds=kill_at))

    def end_term(self) -> None:
        """Have the guard forget the term: it kills none of its processes any more."""
        with suppress(OSError):
            self.guard.send(Message(Kind.END, self.term))
        for fd in (self.init, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.init = self.namespace = -1

    def become(
        self, command: Sequence[str], environment: Mapping[str, str], terminal: Terminal | None
    ) -> None:
        """Have the process become CMD, and return once it is.

        Raises OSError as exec does, or GuardFault; after either, nothing runs once this is closed.
        """
        until = clock.now() + _WITHIN
        order = json.dumps([list(command), dict(environment), terminal is not None])
        self._send(order.encode(), until)
        if not readable(self._report, until - clock.now()):
            raise GuardFault("the command does not come up")
        report = os.read(self._report, 1)
        # End of file: exec closed it. If the process was killed instead, `poll` finds that CMD's
        # end.
        if not report:
            self._close_pipes()
        elif report[0] == _UNGUARDED:
            raise GuardFault("the command could not be put under the guard")
        else:
            raise OSError(report[0], os.strerror(report[0]))

    def _send(self, order: bytes, until: float) -> None:
        while order:
            if not writable(self._go, until - clock.now()):
                raise GuardFault("the command does not come up")
            try:
                order = order[os.write(self._go, order) :]
            except BrokenPipeError:
                return  # The process has ended; if it left a report, that is read next.
        os.close(self._go)
        self._go = -1

    def _end_process(self) -> None:
        if self._report < 0:
            return  # The process is CMD.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _close_pipes(self) -> None:
        for fd in (self._go, self._report):
            if fd >= 0:
                os.close(fd)
        self._go = self._report = -1

    def close(self) -> None:
        """End the prepared process (unless it became CMD), the term and the socket."""
        self._undo.close()

    # -- the process -----------------------------------------------------------------------------

    def _fork(self, go: int, report: int) -> int:
        # All look-ups are made here, so that the child only makes system calls until its exec.
        die, mount_proc = die_with_parent(), None
        place: AbstractContextManager[None] = nullcontext()
        if self.namespace >= 0:
            mount_proc = own_proc()
            place = pid_namespace(self.guard.own_namespace, self.namespace)
        # Until the child has dropped them, our handlers must not run there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings(), place:
                # The warning is about threads, which the child neither has nor waits for.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
                if pid == 0:
                    self._be_cmd(die, mount_proc, go, report, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # Set here as well as in the child: the group must exist before it is signalled.
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _be_cmd(
        self,
        die: Callable[[], object] | None,
        mount_proc: Callable[[], None] | None,
        go: int,
        report: int,
        mask: set[int],
    ) -> NoReturn:
        code = _UNGUARDED
        try:
            gc.disable()
            if die is not None:
                die()
            os.setpgid(0, 0)
            _as_others_start(mask)
            # The supervisor's connections must end when the supervisor closes them.
            _close_ours({go, report, *self.guard.fds})
            if mount_proc is not None:
                mount_proc()
            command, environment, at_terminal = _receive(go)
            # Before the terminal is handed over: a command that may not run must not get it.
            self.guard.arm(self.term)
            if at_terminal:
                # In the child, not the parent: CMD must not read before it has the terminal.
                Terminal().give(os.getpid())
            code = errno.ENOEXEC
            os.execvpe(command[0], command, environment)  # noqa: S606
        except OSError as error:
            if code != _UNGUARDED:
                code = error.errno or code
        finally:
            with suppress(OSError):
                os.write(report, bytes([code]))
            os._exit(1)


def _receive(go: int) -> tuple[list[str], dict[str, str], bool]:
    order = b"".join(iter(lambda: os.read(go, 65536), b""))
    if not order:
        os._exit(0)  # The supervisor is gone, or needs no CMD.
    command, environment, at_terminal = json.loads(order)
    return command, environment, at_terminal


def _as_others_start(mask: set[int]) -> None:
    # All before the mask is lifted: a signal that waits must not run a handler of ours, nor wake
    # us.
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if signum in _RESTORED or callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _close_ours(kept: set[int]) -> None:
    """Close the descriptors that exec would close; inheritable descriptors are meant for CMD."""
    fds: list[int] = []
    for folder in ("/dev/fd", "/proc/self/fd"):
        with suppress(OSError):
            fds = [int(fd) for fd in os.listdir(folder)]  # noqa: PTH208
    for fd in set(fds) - kept:
        with suppress(OSError):
            if not os.get_inheritable(fd):
                os.close(fd)
