#!/usr/bin/env bash
# CABLE, figure 1: perplexity of GPT-2 medium on FineWeb-Edu-10B against context length.
#
# Uses the trainings of table1_fineweb.sh and evaluates them at up to 131,072 tokens. Figure 1 of
# version 1 is in v1_figure1_4.sh.
#
# Cost: data sets: 1, trainings: 10, evaluations: 11; 2.7e20 FLOPs; 190 h of one H100; disk 147.4
# GB; download 28.0 GB. The trainings are those of table1_fineweb.sh. Encodings that use the dense
# attention path take longer. --eval_tokens 1048576: all nine lengths in 15 minutes per encoding.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name figure1 --data fineweb-edu --train fineweb-edu_medium \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360,32768,65536,131072 \
    --paper cable_table1_fineweb-edu-10b_medium "$@"
