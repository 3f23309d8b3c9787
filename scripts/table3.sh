#!/usr/bin/env bash
# CABLE, table 3, figures 6 and 7: encoders and retrieval of long documents.
#
#     bash scripts/table3.sh
#
# Encoders of BERT-base size are trained by masked language modeling on FineWeb-Edu at 512 tokens
# and fine-tuned on MS MARCO; nDCG@10 on MLDR with documents cut at 512 to 16,384 tokens. Figures
# 6 and 7 are the losses of both trainings. At SCALE=small or smoke, triplets and task are made
# from the training text (python -m retrieval.prepare).
#
# Cost per encoding (five): 0.92B tokens, 5.5e17 FLOPs, 0.4 hours of one H100 at 40% MFU, plus
# evaluation of the 0.1B validation tokens at six lengths (2.3e17 FLOPs, 0.2 hours), fine-tuning and encoding 200,000 documents six times (not estimated). Disk: 20 GB of data, 3 GB
# per run.

source "$(dirname "$0")/common.sh"
requirements+=(requirements-retrieval.txt) objective=mlm
experiment table3 cable alibi rope learnable sinusoidal
prepare_data fineweb-edu
train fineweb-edu_bert 512 --objective mlm
plot_losses figure6
evaluate_perplexity 512,1024,2048,4096,8192,16384
report - masked
finetune_encoders
plot_losses figure7
evaluate_with "-m retrieval.evaluate" "${task[@]}" --lengths "$(scaled_lengths 512,1024,2048,4096,8192,16384)"
report cable_table3_mldr_ndcg10_bert
finish
