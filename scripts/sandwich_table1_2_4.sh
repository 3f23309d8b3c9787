#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 1, 2 and 4, figures 4, 5, 12 and 13: why does ALiBi extrapolate? GPT-2 small, trained at 512 tokens,
# slopes all gentler or steeper, or the same in all heads, or windows; then two that fail, trained on longer texts. At other scales a slope
# falls as much over the training length, and all layers' windows together reach as many of them.
#
#     DATA=data/arxiv bash scripts/sandwich_table1_2_4.sh      # shards of ArXiv (table 1) or data/openwebtext2 (4); none: FineWeb-Edu
#
# Cost: 19 trainings of 0.82B tokens, 6.5e17 FLOPs, half an hour of an H100 at 40% MFU each, 9 hours in all. Disk: 3 GB a run.
source "$(dirname "$0")/common.sh"
tried=() layers=$(full 12) octaves=0 table="" text=arxiv
while ((1 << octaves < shrink)); do ((octaves += 1)); done
for shift in -3 0 2 4 6 8; do tried+=(alibi-shift:shift=$((shift - octaves))); done
for h in 0 2 4 6 8; do tried+=(alibi-equal:h=$((h - octaves))); done
for w in 40 80 100 120 160 320; do tried+=(window:w=$((w * 12 / ${layers:-4} / shrink))); done
experiment sandwich_table1_2_4 "${tried[@]}"
use fineweb-edu
case $data in */openwebtext2) text=openwebtext2 table=$(full sandwich_table4_$text) ;; *) table=$(full sandwich_table1_$text) ;; esac
train sandwich_small 512 && last_tokens 512,1024,2048,4096,8192 && reach 512,1024,2048 && report "${table:--}"
for pe in $encodings; do
    case $pe in "${tried[4]}") length=2048 ;; "${tried[15]}") length=1024 ;; *) continue ;; esac
    encodings=$pe table=$(full sandwich_table2_${text}_trained-at-$length)
    train sandwich_small $length && last_tokens 2048,4096,8192 && report "${table:--}" trained-at-$length
done
finish
