"""How do several processes train as one?

    torchrun --standalone --nproc_per_node=8 train_gpt.py ...       # sets RANK, LOCAL_RANK, WORLD_SIZE and where they meet

    with distributed.process_group() as processes:     # the processes torchrun started, or this one alone
        total = processes.sum(tensor)           # over all of them; NCCL for tensors on GPUs, gloo for those in memory
        if processes.any(signals.received): ...

Process 0 alone prints and writes. A user's mistake found by several is told once. The processes agree on signals and random
states through gloo, so that no GPU is ever waited for.
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
    """This process's number among all, its number on this machine, and how many there are in all."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor(int(flag)))) if self.world_size > 1 else flag

    def gather(self, value) -> list:
        """The value of every process, by rank; anything that pickles."""
        values = [value]
        if self.world_size > 1:
            values *= self.world_size
            dist.all_gather_object(values, value)
        return values

    def run_on_all_ranks(self, act) -> None:
        """act() in every process. Where it refuses in one, all refuse, instead of waiting for that one."""
        problems = []
        try:
            act()
        except InputError as error:
            problems = [*error.problems]
        found = dict.fromkeys(sum(self.gather(problems), []))
        if found:
            raise InputError(*found)

    def barrier(self) -> None:
        self.any(False)


@contextlib.contextmanager
def process_group():
    """The processes of this training, joined for the length of the block; what all but process 0 print is dropped."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Processes()
        return
    processes = Processes(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    if torch.cuda.is_available():
        if processes.local_rank >= torch.cuda.device_count():
            raise InputError(
                f"process {processes.local_rank} of this machine finds {torch.cuda.device_count()} GPUs only: "
                "start as many processes as there are GPUs (--nproc_per_node)"
            )
        torch.cuda.set_device(processes.local_rank)
    from torch.distributed import nn  # noqa: F401  while there is no group: its default arguments would keep it and gloo's threads

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    with contextlib.ExitStack() as stack:
        if processes.rank:
            stack.enter_context(
                contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w")))
            )
        try:
            yield processes
        except InputError as error:
            problems = [problem for problem in error.problems if _first_to_tell(problem)]
            traceback.clear_frames(error.__traceback__)  # and with them the model
            if not torch.cuda.is_available():  # NCCL would wait for processes that know of no error
                _leave()
            raise InputError(*problems) from None
        _leave()


def _leave() -> None:
    """The end of the group, which waits for gloo's threads.

    These need Python's lock to let go of the last sums. destroy_process_group waits without it, but a DistributedDataParallel model
    that outlived it would be the last to hold the group, and wait with it, for ever.
    """
    gc.collect()
    dist.destroy_process_group()


def _first_to_tell(problem: str) -> bool:
    try:
        return dist.distributed_c10d._get_default_store().add(f"told: {problem}", 1) == 1
    except RuntimeError:  # whoever kept the store has ended: better twice than never
        return True


class Signals:
    """Inside the block SIGTERM and SIGINT are noted in `received`, for the block to end when it can.

    Further ones change nothing, as launchers send them on to processes that the terminal or Slurm has sent them to already.
    """

    def __enter__(self):
        self.received = False
        self.before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def _note(self, number, frame):
        self.received = True

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)
