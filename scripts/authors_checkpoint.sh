#!/usr/bin/env bash
# Evaluate the weights that the CABLE authors released.
#
# GPT-2 medium trained on FineWeb-Edu at 1,024 tokens is compared with table 1 of the paper's version 1,
# at that length; GPT-2 tiny trained on WikiText-103 at 1,024 tokens with the perplexity of 22.22 at
# 8,192 tokens that the authors' repository states.
#
#     bash scripts/authors_checkpoint.sh                                # list the files on the hub
#     FILE=NAME.pt BLOCK_SIZE=1024 bash scripts/authors_checkpoint.sh   # evaluate one, or a local file
#
# BLOCK_SIZE is the training length of that checkpoint.
#
# Cost: no training. Perplexity of FineWeb's 0.1B validation tokens and of WikiText-103's test set
# at six lengths, and HellaSwag: less than one H100 hour for medium. Disk: about 1 GB of data, 1.4
# GB of weights.

own_settings="FILE BLOCK_SIZE"
source "$(dirname "$0")/common.sh"
experiment authors_checkpoint cable-v1
trained=$RUNS/$SCALE/$name/$(basename "${FILE:-all}" .pt)
source=(axiomlaborg/Cable ${FILE:+--file "$FILE"})
if [ -f "${FILE:-}" ]; then source=("$FILE"); fi
if [ ! -e "$trained" ]; then
    run python import_pretrained.py "${source[@]}" --block_size "${BLOCK_SIZE:-1024}" \
        --out_dir "$trained" || finish
fi
runs=("$trained")
for dataset in fineweb wikitext103; do
    prepare_data $dataset $(if [ $dataset = wikitext103 ]; then echo test; fi)
    evaluate_perplexity 512,1024,2048,4096,8192,15360
done
if [ "$SCALE" = full ]; then evaluate_with eval_hellaswag.py; fi
report cable_v1_table1_generalization
finish
