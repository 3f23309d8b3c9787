"""Distributed training: torchrun's ranks, their collectives, and signals.

    torchrun --standalone --nproc_per_node=8 train_gpt.py ...

    with distributed.process_group() as processes:  # or this process alone
        total = processes.sum(tensor)  # NCCL for tensors on GPUs, gloo on CPUs
        if processes.any(bool(received)): ...  # of signals()

Only rank 0 prints and writes. A user error on several ranks is printed once. Signals and random
states go through gloo, so that no rank waits for a GPU. If a rank ends, the others end at their
next collective with a line that says how to continue. If it hangs, or gloo does not notice its end
(about once in a thousand times), they end after TIMEOUT; torchrun ends them at once.
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

# A rank may compile or write to a slow disk.
TIMEOUT = datetime.timedelta(minutes=10)
REMEDY = "fix the cause, which it or torchrun has printed, then continue with --resume"
LOST = f"another rank has ended, or did not answer for {TIMEOUT}: {REMEDY}"


@dataclass
class Processes:
    """This process's rank, its rank on this machine, and the world size."""

    rank: int = 0
    local_rank: int | None = None  # of a process that is not alone
    world_size: int = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks, computed in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(int(flag))))

    def gather(self, value) -> list:
        """Return the values (pickled) of all ranks, in order."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def run_on_all_ranks(self, action) -> None:
        """Call `action()` on every rank; all raise the InputErrors of any."""
        problems = []
        try:
            action()
        except InputError as error:
            problems = [*error.problems]
        if found := dict.fromkeys(sum(self.gather(problems), [])):
            raise InputError(*found)


@contextlib.contextmanager
def process_group():
    """Join the process group for the block; print on rank 0 only.

    Yields `Processes`; without torchrun there is no group. Raises InputError for too few GPUs, and
    on all other ranks if one ends, fails or hangs.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Processes()
        return
    local_rank, has_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    if has_gpus:
        if local_rank >= (count := torch.cuda.device_count()):
            what = f"there is no GPU for process {local_rank} of this machine, which has {count}"
            raise InputError(f"{what}: use a lower --nproc_per_node")
        torch.cuda.set_device(local_rank)
    # Imported before there is a group: its default arguments would keep it.
    from torch.distributed import nn  # noqa: F401

    backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
    try:
        store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
        # When torchrun restarts ranks, its store has the keys of those before.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
        store = PrefixStore(f"start {restarts}", store)
        dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=count)
    except dist.DistError:  # the store has ended, or a rank is missing
        what = f"not all ranks started within {TIMEOUT}"
        raise InputError(f"{what}: start them again") from None
    with contextlib.ExitStack() as stack:
        if rank:
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
        problems = None
        try:
            yield Processes(rank, local_rank, count)
        except (InputError, RuntimeError) as error:
            if isinstance(error, RuntimeError):  # of a collective
                is_gloo = "gloo" in str(error).lower()
                if not (is_gloo or isinstance(error, dist.DistError)):
                    raise
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, to all ranks
            problems = _explain(error, store)
            traceback.clear_frames(error.__traceback__)  # frees the model
        if problems is None or not has_gpus:  # NCCL waits for ranks without an error
            # Waits for gloo's threads without Python's lock, which they need. A
            # DistributedDataParallel model that outlives this would destroy the group with the
            # lock, and wait forever.
            gc.collect()
            dist.destroy_process_group()
        if problems is not None:
            raise InputError(*problems)


def _explain(error: Exception, store: Store) -> list[str]:
    """Return the lines that this rank prints: each once, user errors first."""
    lines = [*error.problems] if isinstance(error, InputError) else [LOST]
    with contextlib.suppress(RuntimeError):  # the process with the store has ended
        if isinstance(error, InputError):
            store.set("explained", "")
        elif store.check(["explained"]):
            return []
        return [line for line in lines if store.add(f"reported: {line}", 1) == 1]
    return lines


@contextlib.contextmanager
def signals():
    """Collect signals that end or warn a job in a list; they do not stop the block.

    Those that are ignored stay so, as SIGHUP after nohup.
    """
    received = []

    def receive(number, frame):
        received.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if handlers[number] is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number in caught:
            signal.signal(number, handlers[number])
