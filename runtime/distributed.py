"""Distributed training: the ranks that torchrun starts, their collectives, and signals.

    torchrun --standalone --nproc_per_node=8 train_gpt.py ...  # sets RANK, LOCAL_RANK, WORLD_SIZE

    with distributed.process_group() as processes:  # torchrun's ranks, or this process alone
        total = processes.sum(tensor)               # NCCL for tensors on GPUs, gloo on CPUs
        if processes.any(signals.received): ...

Only rank 0 prints and writes. A user error on several ranks is printed once. Signals and random
states go through gloo, so that no rank waits for a GPU.

If a rank ends or hangs, the others end with a line that names it: at their next collective if it
has ended, after TIMEOUT if it hangs. If torchrun has ended, its ranks end within a second.
"""

import contextlib
import datetime
import gc
import os
import select
import signal
import socket
import threading
import time
import traceback
import uuid
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from errors import InputError

# The longest time that a rank waits for another in a collective. Ranks wait while another one
# compiles, or writes a checkpoint to a slow disk.
TIMEOUT = datetime.timedelta(minutes=10)
BEAT_SECONDS = 0.5
SILENCE_SECONDS = 3.0  # a rank without a heartbeat in this time has ended or is stopped


@dataclass
class Processes:
    """The rank of this process, its rank on this machine, and the world size."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks, computed in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor(int(flag))))

    def gather(self, value) -> list:
        """Return the values of all ranks, in order; any value that can be pickled."""
        values = [value]
        if self.world_size > 1:
            values *= self.world_size
            dist.all_gather_object(values, value)
        return values

    def run_on_all_ranks(self, action) -> None:
        """Call `action()` on every rank. If it raises InputError on one, all ranks raise it."""
        problems = []
        try:
            action()
        except InputError as error:
            problems = [*error.problems]
        all_problems = dict.fromkeys(sum(self.gather(problems), []))
        if all_problems:
            raise InputError(*all_problems)

    def check_equal(self, value, problem: str) -> None:
        """Raise InputError(problem) on all ranks if the value is not the same on all of them."""
        values = self.gather(value)
        if any(other != values[0] for other in values):
            raise InputError(problem)

    def barrier(self) -> None:
        """Wait until all ranks have arrived here."""
        self.any(False)


@contextlib.contextmanager
def process_group():
    """Join the process group for the duration of the block; print on rank 0 only.

    Yields `Processes`. Without torchrun there is one process and no group. Raises InputError if
    a machine with GPUs has fewer of them than processes, and on all other ranks if one ends, fails
    or hangs.
    """
    if dist.is_torchelastic_launched():
        _end_with_launcher()
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Processes()
        return
    processes = Processes(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    if torch.cuda.is_available():
        if processes.local_rank >= torch.cuda.device_count():
            raise InputError(
                f"there is no GPU for process {processes.local_rank} of this machine, which has "
                f"{torch.cuda.device_count()} GPUs: use a lower --nproc_per_node"
            )
        torch.cuda.set_device(processes.local_rank)
    # Imported before there is a group: its default arguments would keep the group and its threads.
    from torch.distributed import nn  # noqa: F401

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
    start = _agree_on_start(store, rank, world_size)
    store = PrefixStore(start, store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    with contextlib.ExitStack() as stack:
        heartbeat = stack.enter_context(_Heartbeat(processes, start))
        if processes.rank:
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
        try:
            yield processes
        except Exception as error:
            if isinstance(error, InputError):
                problems = error.problems
                heartbeat.leave("")
            elif _is_collective_failure(error):
                with Signals():  # torchrun sends SIGTERM when a rank has ended
                    problems = heartbeat.explain_failure(error)
            else:
                heartbeat.leave(type(error).__name__)
                raise
            problems = [problem for problem in problems if _is_first_to_report(problem)]
            traceback.clear_frames(error.__traceback__)  # frees the model
            if not torch.cuda.is_available():  # NCCL would wait for ranks without an error
                _leave_group()
            raise InputError(*problems) from None
        _leave_group()


def _end_with_launcher() -> None:
    """Start a thread that ends this process when torchrun, its parent, has ended.

    It ends at once, without a checkpoint, so that the next --resume can lock the run folder. Linux
    would send PR_SET_PDEATHSIG when the parent's thread ends, not its process.
    """
    launcher = os.getppid()
    is_first = os.environ["LOCAL_RANK"] == "0"

    def watch():
        while os.getppid() == launcher:
            time.sleep(BEAT_SECONDS)
        with contextlib.suppress(OSError):
            if is_first and select.select([], [2], [], 0)[1]:  # nobody may read a full pipe
                os.write(2, b"error: torchrun has ended: start it again with --resume\n")
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()


def _agree_on_start(store: Store, rank: int, world_size: int) -> str:
    """Return a name for this start of all ranks, which prefixes their keys in the store.

    When torchrun restarts the ranks, its store still has the keys of those that ended, and no rank
    knows which keys are old. Rank 0 publishes a new name and lists who answered to it. Raises
    InputError if a rank does not start within TIMEOUT.
    """
    own = uuid.uuid4().hex
    try:
        if rank == 0:
            store.set("start", own)
            answers = [
                store.get(f"{own}/answer/{other}").decode() for other in range(1, world_size)
            ]
            store.set(f"{own}/members", " ".join(answers))
            return own
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while time.monotonic() < deadline:
            start = store.get("start").decode()
            store.set(f"{start}/answer/{rank}", own)
            members = f"{start}/members"
            if store.check([members]) and own in store.get(members).decode().split():
                return start
            time.sleep(0.05)
    except dist.DistError:  # the store has ended, or a rank is missing
        pass
    raise InputError(f"not all {world_size} ranks started within {TIMEOUT}: start them again")


class _Heartbeat:
    """Context in which the other ranks can see that this process is alive.

    A thread counts in the store that all ranks share: `beats/RANK`. `process/RANK` describes the
    process. A rank that leaves because of an error sets `left/RANK`: to the exception's type, to ""
    if the error is printed as one line, or to LOST if a collective failed because of another rank.
    """

    LOST = "lost another rank"

    def __init__(self, processes: Processes, start: str):
        self.rank = processes.rank
        self.others = [rank for rank in range(processes.world_size) if rank != self.rank]
        # A connection of its own, because the group's is locked while it waits for another rank.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # torch.distributed documents TCPStore, but does not mark it as exported.
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, port, is_master=False, timeout=TIMEOUT
        )
        self.store = PrefixStore(f"{start}/heartbeat", store)
        self.store.set(f"process/{self.rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the process that keeps the store has ended
            while not self.stop.wait(BEAT_SECONDS):
                self.store.add(f"beats/{self.rank}", 1)

    def leave(self, reason: str) -> None:
        """Record why this rank leaves the others."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", reason)

    def explain_failure(self, error: Exception) -> list[str]:
        """Return a line for each rank that made a collective fail; none if it printed its error.

        error: of the collective. Ranks that wait for the same rank as this one fail, too.
        """
        reason = " ".join(str(error).split())
        unexplained = [f"the connection to other ranks is lost ({reason}): continue with --resume"]
        self.leave(self.LOST)
        try:
            silent = self._silent_ranks()
            left = self._read("left")
            processes = self._read("process")
        except RuntimeError:  # the store is lost, too
            time.sleep(2 * BEAT_SECONDS)  # this process ends here if torchrun has ended
            return unexplained
        names = {rank: f"rank {rank} ({processes.get(rank, 'starting')})" for rank in self.others}
        failed = {rank: reason for rank, reason in left.items() if reason != self.LOST}
        if failed:
            return [
                f"{names[rank]} failed with {reason}: fix the cause, then continue with --resume"
                for rank, reason in failed.items()
                if reason
            ]
        ended = [names[rank] for rank in sorted(silent - left.keys())]
        if ended:
            return [f"{name} has ended or is stopped: continue with --resume" for name in ended]
        hanging = [name for rank, name in names.items() if rank not in left]
        return [
            f"{name} did not answer for {TIMEOUT}: end it, then continue with --resume"
            for name in hanging
        ] or unexplained

    def _silent_ranks(self) -> set[int]:
        """Return the other ranks whose heartbeat has stopped."""
        before = [self.store.add(f"beats/{rank}", 0) for rank in self.others]
        time.sleep(SILENCE_SECONDS)
        after = [self.store.add(f"beats/{rank}", 0) for rank in self.others]
        beats = zip(self.others, before, after, strict=True)
        return {rank for rank, first, last in beats if first == last}

    def _read(self, key: str) -> dict[int, str]:
        """Return the values of a key by rank, of the other ranks that have set it."""
        return {
            rank: self.store.get(f"{key}/{rank}").decode()
            for rank in self.others
            if self.store.check([f"{key}/{rank}"])
        }


def _is_collective_failure(error: Exception) -> bool:
    """Return whether an exception is that of a collective; gloo raises RuntimeError."""
    is_gloo = isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    return is_gloo or isinstance(error, dist.DistError)


def _leave_group() -> None:
    """Destroy the process group, which waits for gloo's threads.

    The threads need Python's lock to free their last tensors. destroy_process_group waits without
    the lock. A DistributedDataParallel model that outlives the call would destroy the group itself,
    with the lock, and wait forever, so it must be freed first.
    """
    gc.collect()
    dist.destroy_process_group()


def _is_first_to_report(problem: str) -> bool:
    """Return whether no other rank has reported this problem yet."""
    try:
        return dist.distributed_c10d._get_default_store().add(f"reported: {problem}", 1) == 1
    except RuntimeError:  # the rank that keeps the store has ended: better twice than never
        return True


class Signals:
    """Context that sets `received` at SIGTERM or SIGINT instead of stopping the process.

    Further signals change nothing: launchers forward those that the terminal or Slurm has already
    sent to the process.
    """

    def __enter__(self):
        self.received = False
        self.old_handlers = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def _receive(self, number, frame):
        self.received = True

    def __exit__(self, *_):
        for number, handler in self.old_handlers.items():
            signal.signal(number, handler)
