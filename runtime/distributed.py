"""Distributed training: the ranks that torchrun starts, their collectives, and signals.

    torchrun --standalone --nproc_per_node=8 train_gpt.py ...  # sets RANK, LOCAL_RANK, WORLD_SIZE

    with distributed.process_group() as processes:  # torchrun's ranks, or this process alone
        total = processes.sum(tensor)               # NCCL for tensors on GPUs, gloo on CPUs
        if processes.any(signals.received): ...

Only rank 0 prints and writes. A user error on several ranks is printed once. Signals and random
states go through gloo, so that no rank waits for a GPU.
"""

import contextlib
import gc
import os
import signal
import traceback
from dataclasses import dataclass

import torch
import torch.distributed as dist

from errors import InputError


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
    a machine with GPUs has fewer of them than processes.
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

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    with contextlib.ExitStack() as stack:
        if processes.rank:
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
        try:
            yield processes
        except InputError as error:
            problems = [problem for problem in error.problems if _is_first_to_report(problem)]
            traceback.clear_frames(error.__traceback__)  # frees the model
            if not torch.cuda.is_available():  # NCCL would wait for ranks without an error
                _leave_group()
            raise InputError(*problems) from None
        _leave_group()


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
