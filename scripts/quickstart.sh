#!/usr/bin/env bash
# The paper's effect on real text: trains positional encodings at 256 tokens of context, tests them at up to 4,096.
#
#     bash scripts/quickstart.sh                                      # further flags go to train_gpt.py, as in --steps 100
#     ENCODINGS="cable fox rope+fox" bash scripts/quickstart.sh       # other encodings
#
# Cost: 2.05M tokens for each encoding (0.8M parameters), minutes on two CPU cores. Done parts are not repeated, interrupted
# ones go on. OUT is the folder of the results, DATA that of the shards, EVAL_TOKENS how much text each context is tested on.

source "$(dirname "$0")/common.sh"
ENCODINGS=${ENCODINGS:-cable alibi rope sinusoidal}
OUT=${OUT:-runs/quickstart} DATA=${DATA:-data/stdlib} EVAL_TOKENS=${EVAL_TOKENS:-131072}
install requirements.txt

python prepare_text.py --out_dir "$DATA"
runs=()
for pe in $ENCODINGS; do
    python train_gpt.py --config configs/quickstart.yaml --data "$DATA" --pe "$pe" --out_dir "$OUT/$pe" --resume "$@"
    runs+=("$OUT/$pe")
done
measure eval_extrapolation.py --data "$DATA" --lengths 1x,2x,4x,8x,16x --max_tokens "$EVAL_TOKENS"
python report.py "${records[@]}" --out_dir "$OUT"
echo "A continuation by the model with ${runs[0]##*/}:"
python sample.py "${runs[0]}" --prompt "def read(self, path):" --max_new_tokens 300
