#!/usr/bin/env bash
# Train three positional encodings at 256 tokens of context and evaluate them at up to 4,096.
#
#     bash scripts/quickstart.sh
#     bash scripts/quickstart.sh --encodings cable fox rope+fox                    # other encodings
#     bash scripts/quickstart.sh --plugin my.py --encodings cable recency          # one of your own
#     bash scripts/quickstart.sh --runs runs/slow -- --lr 1e-3                     # flags of train_gpt.py
#
# Cost: 1.43M tokens per encoding (0.8M parameters), 5 minutes on two CPU cores with bf16, 10 without
# it; the table grows with every evaluated encoding. --dry_run prints the cost, --help the flags.

source "$(dirname "$0")/activate.sh"
source scripts/install.sh requirements.txt
common=(--name quickstart --fixed --data stdlib)
experiment "${common[@]}" --train quickstart --encodings cable alibi rope \
    --perplexity 1x,2x,4x,8x,16x --eval_tokens 65536 "$@"
experiment "${common[@]}" --commands - "$@" < <(
    for run in "${runs[@]:0:1}"; do
        line sample.py "$run" --prompt 'def read(self, path):' --max_new_tokens 300
    done
)
exit $failed
