#!/usr/bin/env bash
# CABLE, table 3: encoders of BERT base's size by masked language modeling on FineWeb-Edu at 512 tokens, fine-tuned on MS MARCO; nDCG@10
# on MLDR's long documents, cut at 512 to 16,384. And figures 6 and 7: the losses of both.
#
#     bash scripts/table3.sh
#
# Cost of each of the five encodings: 0.92B tokens, 5.5e17 FLOPs, 0.4 hours of an H100 at 40% MFU; fine-tuning, and reading 200,000
# documents six times over, are not worked out. Disk: 20 GB of data, 3 GB a run.
#
# Elsewhere than at SCALE=full triplets and task are made of the same text (python -m retrieval.prepare).

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-retrieval.txt
experiment table3 cable alibi rope learnable sinusoidal
use fineweb-edu
train fineweb-edu_bert 512 --objective mlm
losses figure6
evaluate 512,1024,2048,4096,8192,16384
report - masked
finetune
losses figure7
measure "-m retrieval.evaluate" "${task[@]}" --lengths "$(shrunk 512,1024,2048,4096,8192,16384)"
report cable_table3_mldr_ndcg10_bert
finish
