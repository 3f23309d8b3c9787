"""Tile sizes, warps and pipeline stages of the Triton kernels."""

import torch

Sizes = tuple[int, int, int, int]  # queries, keys, warps, stages


def select(kind: str, head_dim: int, dtype: torch.dtype) -> dict[str, Sizes]:
    """Return (queries, keys, warps, stages) of each kernel of a kind of bias.

    For no bias and decay, at a head dimension of 64, chosen by time on an H100; others by counting
    instructions. All fit into the 99 KB of an RTX 4090. Tiles of `forward` are the units to skip,
    so `rows` has as many queries, and its keys divide those of `forward`.
    """
    if dtype == torch.float32:
        return dict.fromkeys(("forward", "rows", "columns", "distances"), (32, 32, 4, 2))
    if head_dim > 64:
        return {
            "forward": (128, 64, 8, 2),
            "rows": (128, 32, 8, 2),
            "columns": (32, 128, 8, 2),
            "distances": (64, 64, 8, 2),
        }
    if kind == "none":
        return {
            "forward": (64, 64, 4, 2),
            "rows": (64, 32, 4, 3),
            "columns": (32, 64, 4, 3),
        }
    if kind == "decay":
        return {
            "forward": (64, 64, 4, 3),
            "rows": (64, 32, 4, 3),
            "columns": (64, 64, 4, 2),
        }
    if kind == "distance":
        # Fewer stages, because they also prefetch the table.
        forward, columns = (128, 64, 8, 2), (32, 128, 4, 2)
    else:
        forward, columns = (128, 64, 8, 3), (64, 128, 8, 2)
    return {
        "forward": forward,
        "rows": (128, 64, 8, 2),
        "columns": columns,
        "distances": (64, 64, 4, 2),
    }
