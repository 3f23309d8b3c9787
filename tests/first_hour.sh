#!/usr/bin/env bash
# The first hour of a new user, offline: data, an encoding and a run of one's own.
#
#     bash tests/first_hour.sh
#
# Runs commands of README.md and docs/ on tiny data, checks what they print, and ends with a summary. Outputs
# are in a temporary folder, or in OUT (a new folder), which is kept. tests/test_scripts.py runs this script.
# Cost: about a minute of one core.

set -euo pipefail
cd "$(dirname "$0")/.."
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 WANDB_MODE=offline
temporary="" checks=0 summary=""
trap '[ -z "$temporary" ] || rm -rf "$temporary"' EXIT
if [ -z "${OUT:-}" ]; then OUT=$(mktemp -d) temporary=$OUT; else mkdir "$OUT"; fi
OUT=$(cd "$OUT" && pwd)

# part NAME: begin a part of the summary; without a name, end the last one.
part() {
    if [ -n "${name:-}" ]; then summary+="$name: $checks commands, $((SECONDS - start)) s"$'\n'; fi
    name=${1:-} start=$SECONDS checks=0
}

# check STATUS ERRORS TEXT COMMAND...: run a command, which must exit with this status and print the text
# and so many lines that start with "error: ".
check() {
    local status=0
    echo "+ ${*:4}"
    "${@:4}" >"$OUT/output" 2>&1 || status=$?
    if [ $status != "$1" ] || [ "$(grep -c '^error: ' "$OUT/output")" != "$2" ] || ! grep -qF -e "$3" "$OUT/output"; then
        tail -n 20 "$OUT/output"
        echo "error: status $status, expected $1, $2 lines of errors, and '$3'" >&2
        exit 1
    fi
    checks=$((checks + 1))
}
expect() { check 0 0 "$@"; }
refuse() { check 2 1 "$@"; }

part "Data: text, jsonl, parquet, zst"
expect "g_i (S_i - S_j)" python train_gpt.py --list
mkdir "$OUT/texts"
python - "$OUT" <<'PYTHON'
import contextlib
import json
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet

out = Path(sys.argv[1])
for n in range(1, 4):
    lines = [f"Text {n}, line {line} of {line * line}.\n" for line in range(300)]
    (out / f"texts/{n}.txt").write_text("".join(lines))
(out / "texts/page.html").write_text("<html>")
rows = [{"id": n, "text": f"Row {n}, café."} for n in range(40)]
lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
(out / "rows.jsonl").write_bytes(lines)
pa.parquet.write_table(pa.Table.from_pylist(rows), out / "rows.parquet")
with contextlib.suppress(ValueError), fsspec.open(out / "rows.jsonl.zst", "wb", compression="zstd") as file:
    file.write(lines)
PYTHON
prepare=(python prepare_text.py)
expect "page.html" "${prepare[@]}" "$OUT/texts" --tokenizer bpe:300 --out_dir "$OUT/data"
if [ ! -e "$OUT/rows.jsonl.zst" ]; then
    touch "$OUT/rows.jsonl.zst"
    refuse "install backports.zstd" "${prepare[@]}" "$OUT/rows.jsonl.zst" --out_dir "$OUT/zst"
    rm "$OUT/rows.jsonl.zst"
fi
for file in "$OUT"/rows.*; do
    expect "of 38 documents" "${prepare[@]}" "$file" --out_dir "$OUT/${file##*.}/rows"
    cmp "$OUT"/{jsonl,"${file##*.}"}/rows/rows_train_000000.bin
done

part "An encoding of your own" # the first example of docs/adding_an_encoding.md
sed -n '/^"""my_encoding.py/,/^```$/p' docs/adding_an_encoding.md | grep -v '^```' >"$OUT/my_encoding.py"
mine=$OUT/runs/recency plugin=(--plugin "$OUT/my_encoding.py")
train=(python train_gpt.py --config configs/smoke.yaml --steps 8)
expect "causality" python check_encoding.py "$OUT/my_encoding.py"
expect "step 8/8" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard --out_dir "$mine"
refuse "$mine/my_encoding.py" python sample.py "$mine"
expect "tokens/s" python sample.py "$mine" "${plugin[@]}" --prompt "Text 1" --max_new_tokens 20
expect "perplexity" python eval_extrapolation.py "$mine" "${plugin[@]}" --lengths 1x,4x
expect "recency" python report.py "$mine"/eval_*.json --out_dir "$OUT/report"
expect "biases" python plot.py biases "$mine" "${plugin[@]}" --text "Text 1, line 2" --out "$OUT/biases.png"
expect "recency" python export_hf.py "$mine" "${plugin[@]}" --out_dir "$OUT/exported"
cat >"$OUT/load.py" <<'PYTHON'
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
inputs = tokenizer("<|endoftext|>Text 1", return_tensors="pt")
print("generated:", tokenizer.decode(model.generate(**inputs, max_new_tokens=9)[0]))
PYTHON
expect "generated: <|endoftext|>Text 1" env -C "$OUT" HF_HUB_OFFLINE=1 python load.py exported
echo "# changed" >>"$OUT/my_encoding.py"
refuse "--override plugin" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --out_dir "$mine" --resume --steps 9

part "A run of your own: train further, change the encoding"
plugin=(--plugin "$mine/my_encoding.py")
expect "step 12/12" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard \
    --out_dir "$mine" --resume --steps 12
refuse "pass --override lr" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard \
    --out_dir "$mine" --resume --steps 13 --lr 2e-2
expect "alibi" python train_gpt.py --init_from "$mine" "${plugin[@]}" --pe alibi --data "$OUT/data" --steps 2 \
    --tokens_per_step 256 --micro_batch 8 --warmup_steps 0 --out_dir "$OUT/runs/alibi"
refuse "did you mean cable" python examples/own_model.py cabel
expect "train" python prepare_text.py "$OUT/texts" --tokenizer "hf:$OUT/exported" --out_dir "$OUT/hf"

part
printf '%sfirst hour: all commands printed what the documentation says\n' "$summary"
