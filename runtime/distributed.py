"""Distributed training: the ranks that torchrun starts, their collectives, and signals.

    torchrun --standalone --nproc_per_node=8 train_gpt.py ...  # sets RANK, LOCAL_RANK, WORLD_SIZE

    with distributed.process_group() as processes:  # torchrun's ranks, or this process alone
        total = processes.sum(tensor)               # NCCL for tensors on GPUs, gloo on CPUs
        if processes.any(bool(received)): ...  # of signals()

Only rank 0 prints and writes. A user error on several ranks is printed once. Signals and random
states go through gloo, so that no rank waits for a GPU.

If a rank ends or hangs, the others end with a line that says how to continue: at their next
collective if it has ended, after TIMEOUT if it hangs. torchrun then ends the ranks that still run,
with SIGKILL 30 seconds later.
"""

import contextlib
import datetime
import gc
import os
import signal
import traceback
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from errors import InputError

# The longest time that a rank waits for another in a collective. Ranks wait while another one
# compiles, or writes a checkpoint to a slow disk.
TIMEOUT = datetime.timedelta(minutes=10)
LOST = (
    f"another rank has ended, or did not answer for {TIMEOUT}: fix the cause, which it or torchrun "
    "has printed, then continue with --resume"
)


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
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
        # When torchrun restarts the ranks, its store still has the keys of those that ended.
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
        )
    except dist.DistError:  # the store has ended, or a rank is missing
        raise InputError(f"not all ranks started within {TIMEOUT}: start them again") from None
    with contextlib.ExitStack() as stack:
        if rank:
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
        try:
            yield processes
        except Exception as error:
            if not isinstance(error, InputError):
                if not _is_collective_failure(error):
                    raise
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all ranks
            problems = _explain(error, store)
            traceback.clear_frames(error.__traceback__)  # frees the model
            if not torch.cuda.is_available():  # NCCL would wait for ranks without an error
                _leave_group()
            raise InputError(*problems) from None
        _leave_group()


def _explain(error: Exception, store: Store) -> list[str]:
    """Return the lines that this rank prints: each line on one rank, user errors before others."""
    lines = [*error.problems] if isinstance(error, InputError) else [LOST]
    with contextlib.suppress(RuntimeError):  # the process that keeps the store has ended
        if isinstance(error, InputError):
            store.set("explained", "")
        elif store.check(["explained"]):
            return []
        return [line for line in lines if store.add(f"reported: {line}", 1) == 1]
    return lines


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


@contextlib.contextmanager
def signals():
    """Yield a list that collects SIGTERM and SIGINT, which do not stop the block."""
    received = []

    def receive(number, frame):
        received.append(number)

    old_handlers = {
        number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
