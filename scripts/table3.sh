#!/usr/bin/env bash
# CABLE, table 3, figures 6 and 7: encoders and retrieval of long documents.
#
# Encoders of BERT-base size are trained by masked language modeling on FineWeb-Edu at 512 tokens
# and fine-tuned on MS MARCO; nDCG@10 on MLDR with documents cut at 512 to 16,384 tokens. Figures
# 6 and 7 are the losses of both trainings. At smaller scales, triplets and task are made
# from the training text (python -m retrieval.prepare).
#
# Footnote 2 reports only ALiBi among the additive biases. To train it alone, or with others:
#     bash scripts/table3.sh --encodings alibi kerple fire t5
#
# Cost: data sets: 1, trainings: 5, evaluations: 15, plot.py (not estimated): 2, export_hf.py (not
# estimated): 5; 3.7e19 FLOPs; 26 h of one H100; disk 42.2 GB; download 28.0 GB. Fine-tuning and
# retrieval are evaluations here; the downloads of MS MARCO and MLDR are not counted.

source "$(dirname "$0")/activate.sh"
train=(--data fineweb-edu --train fineweb-edu_bert --train_flags "--objective mlm" --block_size 512
    --encodings cable alibi rope learnable sinusoidal)
experiment --name table3/masked "${train[@]}" --perplexity 512,1024,2048,4096,8192,16384 "$@"
experiment --name table3/masked --commands - "$@" < <(line plot.py losses "${runs[@]}" --out figure6.png)
experiment --name table3 --paper cable_table3_mldr_ndcg10_bert --commands - "$@" < <(
    task=${runs[0]%/*}-retrieval words=() triplets=() finetune=()
    case $scale in
        small) words=(--passage 512 --length 4096 --documents 500) finetune=(--samples 6400 --batch 64 --lr 1e-3) ;;
        smoke) words=(--triplets 8 --passage 400 --length 512 --documents 12 --questions 6)
            finetune=(--samples 8 --batch 4) ;;
    esac
    if [ "$scale" != full ]; then
        line -m retrieval.prepare "$data" "${words[@]}" --out_dir "$task"
        words=(--data "$task") triplets=(--data "$task/triplets.jsonl")
    fi
    for run in "${runs[@]}"; do
        line export_hf.py "$run" --out_dir "$run-exported"
        line -m retrieval.finetune "$run-exported" "${finetune[@]}" "${triplets[@]}" --resume --out_dir "$run-retrieval"
        line -m retrieval.evaluate "$run-retrieval" "${words[@]}" --lengths "$(at_scale 512,1024,2048,4096,8192,16384)"
    done
    line plot.py losses "${runs[@]/%/-retrieval}" --out figure7.png
)
exit $failed
