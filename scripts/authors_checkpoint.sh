#!/usr/bin/env bash
# Evaluate the weights that the CABLE authors released.
#
# GPT-2 medium trained on FineWeb-Edu at 1,024 tokens is compared with table 1 of the paper's version 1,
# at that length; GPT-2 tiny trained on WikiText-103 at 1,024 or 512 tokens with the perplexities of
# version 1, such as 23.75 and 21.97 at 1,024 and 16,384 tokens (section 5.1).
#
#     hf download axiomlaborg/Cable --local-dir weights
#     bash scripts/authors_checkpoint.sh "weights/NAME.pt --block_size 1024"
#
# --block_size is the training length of that checkpoint: 1024 or 512.
#
# Cost: no training. FineWeb's 0.1B validation tokens and WikiText-103's test set at seven lengths,
# and HellaSwag: less than one H100 hour for medium. Disk: 1 GB of data, 1.4 GB of weights.

source "$(dirname "$0")/activate.sh"
common=(--name authors_checkpoint --data wikitext103 --pretrained "${1:?pass a file, as shown in this script}"
    --perplexity 512,1024,2048,4096,8192,15360,16384)
length=1024
if [[ $1 == *"--block_size 512"* ]]; then length=512; fi
experiment "${common[@]}" --paper "cable_v1_section5.1_wikitext-103_tiny_trained-at-$length" "${@:2}"
experiment "${common[@]}" --evaluate_on fineweb wikitext103 --paper cable_v1_table1_generalization \
    --hellaswag "$(pick hub hub scripts/hellaswag_smoke.jsonl)" "${@:2}"
exit $failed
