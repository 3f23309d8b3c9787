#!/usr/bin/env bash
# The first hour of a new user, offline: an encoding, a data set, a tokenizer and a run of one's own.
#
#     bash scripts/first_hour.sh              # in the active environment
#     FRESH=1 bash scripts/first_hour.sh      # in a new virtual environment without Triton
#
# Runs commands of README.md and docs/ on tiny data and checks what they print. The hub is a local server
# (tests/hub_server.py). Outputs are in a temporary folder, or in OUT (a new folder), which is kept.
#
# Cost: about two minutes of one CPU core; the installation with FRESH=1 takes a minute more.

set -euo pipefail
cd "$(dirname "$0")/.."
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 WANDB_MODE=offline
unset HF_TOKEN
server="" temporary=""
trap '[ -z "$server" ] || kill "$server"; [ -z "$temporary" ] || rm -rf "$temporary"' EXIT
if [ -n "${OUT:-}" ]; then
    mkdir "$OUT"
else
    temporary=$(mktemp -d)
    OUT=$temporary
fi
OUT=$(cd "$OUT" && pwd)
checks=0

# expect TEXT COMMAND...: run a command that must succeed and print the text.
expect() {
    echo "+ ${*:2}"
    if ! "${@:2}" >"$OUT/output" 2>&1 || ! grep -qF -e "$1" "$OUT/output"; then
        tail -n 20 "$OUT/output"
        echo "error: the command above failed, or did not print '$1'" >&2
        exit 1
    fi
    checks=$((checks + 1))
}

# refuse TEXT COMMAND...: run a command that must exit with status 2 and print one line with the text.
refuse() {
    local status=0
    echo "+ ${*:2}   # refused"
    "${@:2}" >"$OUT/output" 2>"$OUT/errors" || status=$?
    if [ $status != 2 ] || [ "$(grep -c '^error: ' "$OUT/errors")" != 1 ] || ! grep -qF -e "$1" "$OUT/errors"; then
        tail -n 20 "$OUT/output" "$OUT/errors"
        echo "error: status $status, expected 2 and one line with '$1'" >&2
        exit 1
    fi
    checks=$((checks + 1))
}

# Install

if [ -n "${FRESH:-}" ]; then
    python3 -m venv "$OUT/venv"
    source "$OUT/venv/bin/activate"
    refuse "pip install -r requirements.txt" python train_gpt.py --help
    pip install --quiet --disable-pip-version-check torch==2.13.0
    pip install --quiet --disable-pip-version-check -r requirements.txt
    pip uninstall --quiet --yes triton 2>/dev/null || true
fi
expect "g_i (S_i - S_j)" python train_gpt.py --list

# An encoding of one's own: the first example of docs/adding_an_encoding.md

mkdir "$OUT/texts"
for number in 1 2 3; do
    for line in $(seq 300); do echo "Text $number, line $line of $((line * line))."; done >"$OUT/texts/$number.txt"
done
echo "<html>" >"$OUT/texts/page.html"
sed -n '/^"""my_encoding.py/,/^```$/p' docs/adding_an_encoding.md | grep -v '^```' >"$OUT/my_encoding.py"
cat >"$OUT/tiny.yaml" <<'YAML'
size: custom
n_layer: 2
n_head: 2
n_embd: 16
block_size: 32
tokens_per_step: 256
micro_batch: 8
steps: 8
warmup_steps: 2
lr: 1.0e-2
min_lr: 1.0e-3
log_every: 4
val_every: 4
val_tokens: 256
checkpoint_every: 4
YAML
mine=$OUT/runs/recency plugin=(--plugin "$OUT/my_encoding.py")
train=(python train_gpt.py --config "$OUT/tiny.yaml")
expect "causality" python check_encoding.py "$OUT/my_encoding.py" --speed false
expect "page.html" python prepare_text.py "$OUT/texts" --tokenizer bpe:300 --out_dir "$OUT/data"
expect "step 8/8" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard --out_dir "$mine"
refuse "$mine/my_encoding.py" python sample.py "$mine"
expect "tokens/s" python sample.py "$mine" "${plugin[@]}" --prompt "Text 1" --max_new_tokens 20
expect "Perplexity on" python eval_extrapolation.py "$mine" "${plugin[@]}" --lengths 1x,4x
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
refuse "--override plugin" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --out_dir "$mine" --resume

# A run of one's own: train further, change the encoding

plugin=(--plugin "$mine/my_encoding.py")
expect "step 12/12" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard \
    --out_dir "$mine" --resume --steps 12
refuse "pass --override lr" "${train[@]}" --data "$OUT/data" --pe recency "${plugin[@]}" --logger tensorboard \
    --out_dir "$mine" --resume --steps 12 --lr 2e-2
expect "alibi" python train_gpt.py --init_from "$mine" "${plugin[@]}" --pe alibi --data "$OUT/data" --steps 2 \
    --tokens_per_step 256 --micro_batch 8 --warmup_steps 0 --out_dir "$OUT/runs/alibi"

# Data and tokenizers of others: nanoGPT, llm.c, Hugging Face

mkdir "$OUT/nanogpt"
python -c "
import sys
import numpy as np
for split, count in ('train', 4000), ('val', 1000):
    np.arange(count, dtype='<u2').tofile(f'{sys.argv[1]}/{split}.bin')" "$OUT/nanogpt"
expect "GPT-2" "${train[@]}" --data "$OUT/nanogpt" --pe rope --steps 2 --out_dir "$OUT/runs/nanogpt"
mkdir "$OUT/llmc"
python -c "
import sys
import numpy as np
header = np.zeros(256, dtype='<i4')
header[:3] = 20240520, 1, 4000
for name in 'fineweb_val_000000', 'fineweb_train_000001':
    with open(f'{sys.argv[1]}/{name}.bin', 'wb') as file:
        file.write(header.tobytes() + np.arange(4000, dtype='<u2').tobytes())" "$OUT/llmc"
expect "GPT-2 has all tokens" python prepare_text.py --verify --out_dir "$OUT/llmc"
expect "stored as uint16" python prepare_text.py "$OUT/texts" --tokenizer "hf:$OUT/exported" --out_dir "$OUT/hf"

# The hub: FineWeb-Edu, WikiText-103 and GPT-2's weights

python tests/hub_server.py "$OUT/hub" --examples >"$OUT/server" &
server=$!
until grep -q HF_ENDPOINT= "$OUT/server"; do
    kill -0 $server
    sleep 0.1
done
eval "$(grep HF_ENDPOINT= "$OUT/server")"
export HF_HOME=$OUT/hf_home
expect "train" python prepare_fineweb.py --tokenizer bytes --shard_tokens 2000 --out_dir "$OUT/fineweb-edu"
expect "test" python prepare_wikitext.py --tokenizer bytes --out_dir "$OUT/wikitext103"
expect "M parameters" python import_pretrained.py gpt2 --out_dir "$OUT/runs/gpt2"
refuse "does-not/exist" python prepare_fineweb.py --dataset does-not/exist --tokenizer bytes --out_dir "$OUT/none"
grep -q '"revision"' "$OUT/fineweb-edu/meta.json" "$OUT/wikitext103/meta.json"

echo "first hour: $checks commands printed what the documentation says"
