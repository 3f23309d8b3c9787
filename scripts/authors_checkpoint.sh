#!/usr/bin/env bash
# The weights that the authors of CABLE released, evaluated here: medium on FineWeb-Edu beside their version 1, table 1; tiny on
# WikiText-103, trained at 1,024 tokens, beside the perplexity of 22.22 at 8,192 that their repository states.
#
#     bash scripts/authors_checkpoint.sh                                # names the files that there are on the hub
#     FILE=NAME.pt BLOCK_SIZE=1024 bash scripts/authors_checkpoint.sh   # one of them, or a file of yours, and its training length
#
# Cost: no training; perplexity of 10M tokens at each of six lengths on two data sets, and HellaSwag, within an hour of an H100 for medium.
# Disk: 21 GB of data at most, 1.4 GB of weights.

source "$(dirname "$0")/common.sh"
experiment authors_checkpoint cable-v1
trained=$RUNS/$SCALE/$name/$(basename "${FILE:-all}" .pt)
if [ -f "${FILE:-}" ]; then from=("$FILE"); else from=(axiomlaborg/Cable ${FILE:+--file "$FILE"}); fi
[ -e "$trained" ] || run python import_pretrained.py "${from[@]}" --block_size "${BLOCK_SIZE:-1024}" --out_dir "$trained" || finish
runs=("$trained")
for dataset in fineweb wikitext103; do
    use $dataset $(if [ $dataset = wikitext103 ]; then echo test; fi)
    evaluate 512,1024,2048,4096,8192,15360
done
if [ "$SCALE" = full ]; then measure eval_hellaswag.py; fi
report cable_v1_table1_generalization
finish
