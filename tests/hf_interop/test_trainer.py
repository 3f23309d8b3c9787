"""Fine-tuning of exports by transformers' Trainer, and changes of their vocabulary and dtype."""

import copy

import pytest
import torch
from test_generation_modes import TOKENS, make_model
from transformers import DynamicCache

from hf_interop.modeling import PosencForCausalLM

LENGTHS = [16, 3, 9, 5, 12, 2, 7, 14]


def train_one_step(model, batch, out):
    """Return loss and gradient norm of the step of Trainer on 8 texts of unequal lengths."""
    from transformers import Trainer, TrainingArguments

    rows = torch.randint(257, (8, 16), generator=torch.manual_seed(0))

    def collate(numbers):
        mask = torch.stack([torch.arange(16) < LENGTHS[n] for n in numbers])
        tokens = rows[numbers]
        labels = tokens.where(mask, torch.tensor(-100))
        return {"input_ids": tokens, "attention_mask": mask.long(), "labels": labels}

    arguments = TrainingArguments(
        str(out),
        max_steps=1,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=8 // batch,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=list(range(8)), data_collator=collate)
    trainer.train()
    (first, *_) = trainer.state.log_history
    return first["loss"], first["grad_norm"]


def test_accumulated_gradients_are_those_of_one_batch(tmp_path):
    """Losses are divided by the tokens of all 8 texts."""
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    model = make_model("cable").train()
    whole, parts = (train_one_step(copy.deepcopy(model), batch, tmp_path) for batch in (8, 1))
    assert whole == pytest.approx(parts, rel=1e-4)
    assert 4 < whole[0] < 20 and whole[1] > 0.1


@pytest.mark.parametrize("tied", [True, False])
def test_a_resized_vocabulary_is_trained_and_saved(tied, tmp_path):
    model = make_model("cable", tied=tied)
    expected = model(TOKENS).logits.detach()
    assert model.resize_token_embeddings(260).num_embeddings == 260
    tokens = TOKENS.clone()
    tokens[:, 3] = 259
    model(tokens, labels=tokens).loss.backward()
    assert model.get_input_embeddings().weight.grad[259].abs().max() > 0
    model.save_pretrained(tmp_path)
    loaded = PosencForCausalLM.from_pretrained(tmp_path)
    logits = loaded(TOKENS).logits
    assert logits.shape[-1] == loaded.config.vocab_size == loaded.model.config.vocab_size == 260
    torch.testing.assert_close(logits[..., :257], expected)
    assert loaded.generate(TOKENS, max_new_tokens=2).shape[1] == 18


@torch.no_grad()
@pytest.mark.parametrize("pe", ["cable", "rope", "fire", "learnable"])
def test_a_double_model_computes_in_float64(pe):
    model = make_model(pe)
    expected = model(TOKENS).logits
    logits = model.double()(TOKENS).logits
    torch.testing.assert_close(logits, expected.double(), atol=1e-4, rtol=1e-4)
    assert logits.dtype == torch.float64
    cache = DynamicCache(config=model.config)
    parts = [model(part, past_key_values=cache).logits for part in TOKENS.split((10, 6), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), logits, atol=1e-6, rtol=1e-6)
