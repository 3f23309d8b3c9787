#!/usr/bin/env bash
# CABLE, figure 1: perplexity of GPT-2 medium on FineWeb-Edu-10B against context length.
#
# Uses the trainings of table1_fineweb.sh and evaluates them at up to 131,072 tokens. Figure 1 of
# version 1 is in v1_figure1_4.sh.
#
# Cost in addition to table 1: three more lengths of the 0.1B validation tokens, 2.5e18 FLOPs per
# encoding, 1.7 hours of one H100 at 40% MFU; 16 hours for all nine that support them. Encodings
# that use the dense attention path take longer. --eval_tokens 1048576: all nine lengths in 15 minutes.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name figure1 --data fineweb-edu --train fineweb-edu_medium \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360,32768,65536,131072 \
    --paper cable_table1_fineweb-edu-10b_medium "$@"
