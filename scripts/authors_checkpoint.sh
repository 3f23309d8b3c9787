#!/usr/bin/env bash
# Evaluate the weights that the CABLE authors released.
#
# GPT-2 medium trained on FineWeb-Edu at 1,024 tokens is compared with table 1 of the paper's version 1,
# at that length; GPT-2 tiny trained on WikiText-103 at 1,024 tokens with the perplexities of version
# 1: 23.75 and 21.97 at 1,024 and 16,384 tokens (section 5.1), and 22.22 at 8,192 (section 5.4).
#
#     bash scripts/authors_checkpoint.sh                                # list the files on the hub
#     FILE=NAME.pt BLOCK_SIZE=1024 bash scripts/authors_checkpoint.sh   # evaluate one, or a local file
#
# BLOCK_SIZE is the training length of that checkpoint.
#
# Cost: no training. Perplexity of FineWeb's 0.1B validation tokens and of WikiText-103's test set
# at seven lengths, and HellaSwag: less than one H100 hour for medium. Disk: about 1 GB of data, 1.4
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
lengths=512,1024,2048,4096,8192,15360,16384
prepare_data fineweb
evaluate_perplexity $lengths
on_fineweb=("${records[@]}") records=()
prepare_data wikitext103 test
evaluate_perplexity $lengths
report cable_v1_section5.1_wikitext-103_tiny_trained-at-1024 section5.1
records+=("${on_fineweb[@]}")
if [ "$SCALE" = full ]; then evaluate_with eval_hellaswag.py; fi
report cable_v1_table1_generalization
finish
