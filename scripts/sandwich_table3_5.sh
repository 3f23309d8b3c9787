#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 3 and 5, figures 6, 7 and 11.
#
#     python prepare_text.py downloads/arxiv --tokenizer gpt2 --out_dir data/arxiv
#     bash scripts/sandwich_table3_5.sh --seeds 1 2 3 4 5 --data data/arxiv --runs runs/arxiv
#
# Data on the hub that is closest to the paper's, by the data sets' cards; the column is `text`:
#
# --data        data set                            files                        license
# arxiv         togethercomputer/RedPajama-Data-1T  urls/arxiv.txt: 28B tokens   see the card
# github        togethercomputer/RedPajama-Data-1T  urls/github.txt: 59B tokens  MIT, BSD or Apache
# openwebtext2  segyges/OpenWebText2                one .tar of 29.3 GB          MIT
#
# urls/*.txt list addresses of .jsonl files (wget -i), of which 0.8B tokens are enough. The .tar holds
# .jsonl.zst (tar -x; pip install backports.zstd). Default: FineWeb-Edu. GPT-2 small, trained at 512
# tokens, evaluated at up to 16,384, also with a KV cache of 2,048.
#
# Cost: data sets: 1, trainings: 8, evaluations: 19; 5.3e18 FLOPs; 3.7 h of one H100; disk 66.7
# GB; download 28.0 GB.

source "$(dirname "$0")/activate.sh"
text=$(basename "$(option data arxiv)")
case $text in arxiv | github | openwebtext2) ;; *) text=arxiv ;; esac
encodings=(sandwich sandwich-smoothed alibi sinusoidal rope kerple t5)
if [ "$scale" != full ]; then encodings+=("alibi-shift:shift=$(pick "" -2 -5)"); fi
common=(--data fineweb-edu --train sandwich_small --block_size 512)
experiment --name sandwich_table3_5 "${common[@]}" --encodings "${encodings[@]}" \
    --same_targets 512,1024,2048,4096,8192 --receptive_field 512,1024,2048 --paper "sandwich_table3_$text" "$@"
experiment --name sandwich_table3_5/trained-at-128 "${common[@]}" --block_size 128 \
    --encodings sinusoidal --receptive_field 512,1024,2048 "$@"
experiment --name sandwich_table3_5/cache "${common[@]}" --encodings sandwich alibi \
    --same_targets 4096,8192,16384 --cache_window "$(at_scale 2048)" --paper "sandwich_table5_$text" "$@"
experiment --name sandwich_table3_5/without-cache "${common[@]}" --encodings sandwich alibi \
    --same_targets 4096,8192,16384 "$@"
exit $failed
