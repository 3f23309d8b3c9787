"""Cross-entropy of a vocabulary in chunks of tokens: all logits never exist at once.

losses = cross_entropies(hidden, weight, targets)            # each token's, no gradients
loss = MeanCrossEntropy.apply(hidden, weight, targets)       # their mean, for training
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from operators.elementary import at_least_float32

# Elements of the largest block of logits (tokens, V): 256 MB in float32.
LOGITS_CHUNK = 2**26
ROW_MULTIPLE = 64
# Of chunks in training on a GPU: adding a chunk's gradient takes time.
GPU_CHUNK_FACTOR = 4
# torch.compile delays these additions: many chunks keep nearly all logits.
MAX_GPU_CHUNKS = 8
# In training on a CPU, chunks stay in caches.
CPU_LOGITS_CHUNK = 2**21
MIN_CPU_ROWS = 512


def _rows_per_chunk(vocab_size: int) -> int:
    """Return a chunk's rows; other multiples are slow in bfloat16 on CPUs."""
    rows = max(1, LOGITS_CHUNK // vocab_size)
    return rows - rows % ROW_MULTIPLE if rows > ROW_MULTIPLE else rows


def cross_entropies(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax(x weight^T)[target] in nats, without gradients.

    x (..., C), weight (V, C), targets (...) int64 -> (...) float32.
    """
    shape, x, targets = targets.shape, x.flatten(0, -2), targets.flatten()
    rows = _rows_per_chunk(len(weight))
    x = x.to(weight.dtype)
    # Small tensors between the logits would keep glibc from reusing memory.
    losses = x.new_empty(len(x))
    # bfloat16 rounds OpenAI's GPT-2's logits, near -100, to multiples of 0.5.
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, len(x), rows):
            chunk = slice(start, start + rows)
            logits = x[chunk] @ weight.T
            losses[chunk] = F.cross_entropy(logits, targets[chunk], reduction="none")
            del logits  # before the next ones
    return losses.view(shape)


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats; infinity from 700 nats on."""
    return math.inf if loss >= 700 else math.exp(loss)


class MeanCrossEntropy(torch.autograd.Function):
    """The mean of `cross_entropies`, () float32, with gradients.

    Forward computes each chunk's gradients. Sums are float32 (torch 2.13's linear_cross_entropy
    rounds the loss).
    """

    @staticmethod
    def forward(ctx, x, weight, targets):
        """Return the loss (): x (N, C), weight (V, C), targets (N,) int64."""
        losses, x_grads = [], []
        weight_grad = torch.zeros_like(weight)
        rows = _rows_per_chunk(len(weight))
        if x.is_cuda:  # equal chunks, if possible: they share compiled kernels
            fewest = min(-(-len(x) // (GPU_CHUNK_FACTOR * rows)), MAX_GPU_CHUNKS)
            counts = range(fewest, MAX_GPU_CHUNKS + 1)
            rows = -(-len(x) // next((n for n in counts if len(x) % n == 0), fewest))
        elif x.device.type == "cpu":
            rows = min(rows, max(MIN_CPU_ROWS, CPU_LOGITS_CHUNK // len(weight)))
        for part, y in zip(x.split(rows), targets[:, None].split(rows), strict=True):
            logits = part @ weight.T
            log_p = at_least_float32(logits).log_softmax(-1)
            losses.append(-log_p.gather(1, y))
            # Times N: dividing early would underflow in float16.
            grad = log_p.exp_()
            if x.is_cuda or torch.compiler.is_compiling():
                grad.sub_(torch.zeros_like(grad).scatter_(1, y, 1))
            else:
                grad.scatter_(1, y, grad.gather(1, y) - 1)
            grad = grad.to(logits.dtype)
            x_grads.append(grad @ weight)
            weight_grad += grad.T @ part
        ctx.save_for_backward(torch.cat(x_grads), weight_grad)
        return torch.cat(losses).mean()

    @staticmethod
    def backward(ctx, grad):
        x_grad, weight_grad = ctx.saved_tensors
        grad = grad / len(x_grad)
        return x_grad.to(grad.dtype) * grad, weight_grad * grad, None
