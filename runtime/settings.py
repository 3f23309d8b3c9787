"""Settings of train_gpt.py: which may change in a run, and which records leave out."""

# Settings that do not define what is learned.
MAY_CHANGE_ON_RESUME = {
    *("data", "verify_data", "out_dir", "log_every", "val_every", "val_tokens"),
    *("sample_every", "checkpoint_every", "keep_checkpoints", "logger"),
    *("attention", "micro_batch", "activation_checkpointing"),
    *("device", "dtype", "compile", "deterministic"),
}
# Settings that --override may change on resume. All others define the
# network or the data.
MAY_BE_OVERRIDDEN = {
    *("steps", "tokens_per_step", "lr", "min_lr", "warmup_steps", "beta1", "beta2"),
    *("schedule", "decay_fraction", "weight_decay", "grad_clip", "mask_rate"),
    *("seed", "plugin"),
}
# Settings that records leave out at these values.
RECORD_DEFAULTS = {"schedule": "cosine", "decay_fraction": 0.2, "optimizer": "adamw"}
RECORD_DEFAULTS |= {"block": "gpt2", "tied": True, "norm_eps": 1e-5}
RECORD_DEFAULTS |= {"n_kv_head": None, "head_dim": None, "n_inner": None}
RECORD_DEFAULTS |= {"qk_norm": None, "qkv_bias": None}
