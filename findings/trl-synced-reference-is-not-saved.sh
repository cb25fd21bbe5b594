#!/bin/sh
# trl 1.16.0 with transformers 5.23.0: a resume with `sync_ref_model=True` begins with the first reference model again.
#
# With this option the reference model of `DPOTrainer` moves towards the trained model every `ref_model_sync_steps` steps. Checkpoints of the
# trainer have the trained model only. After a resume the reference is the one that the trainer was made with, so the losses and the
# trained model differ, without a warning. Without the option the resume is exact. `GRPOTrainer`, `KTOTrainer` and `RLOOTrainer` have the same
# option and the same callback.
#
# Seen: without the option, the losses of steps 5 to 8 are equal after a resume at step 4; with it they differ from step 5 on.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'trl==1.16.0' 'transformers==5.23.0' 'accelerate==1.15.0' 'datasets==5.2.0'
cat > "$dir/try.py" <<'PY'
import os
import tempfile

import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
datasets.disable_progress_bar()
VOCABULARY = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(20))])}
words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
DATA = datasets.Dataset.from_list(
    [{"prompt": f"w{i} ", "chosen": f"w{i + 1} w{i + 3}", "rejected": f"w{i + 2} w{i + 4}"} for i in range(16)]
)


def trained(folder, sync, resume=None):
    config = GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=len(VOCABULARY), n_positions=64, bos_token_id=1, eos_token_id=1,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    reference = GPT2LMHeadModel(config)
    reference.load_state_dict(model.state_dict())
    arguments = trl.DPOConfig(
        output_dir=folder, max_steps=8, save_steps=4, logging_steps=1, per_device_train_batch_size=4, learning_rate=1e-2,
        lr_scheduler_type="constant", sync_ref_model=sync, ref_model_sync_steps=2, ref_model_mixup_alpha=0.6,
        report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.DPOTrainer(model, reference, args=arguments, train_dataset=DATA, processing_class=TOKENIZER)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    losses = [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry]
    return losses, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same(one, other):
    return all(map(torch.equal, one, other))


print("trl", trl.__version__, "transformers", transformers.__version__)
for sync in (False, True):
    folder = tempfile.mkdtemp(dir=os.environ["DIR"])
    whole, model = trained(folder, sync)
    resumed, again = trained(folder, sync, f"{folder}/checkpoint-4")
    print(f"sync_ref_model={sync}: losses {whole}; resumed at step 4: {resumed[4:]}; same model: {same(model, again)}")
    assert whole[:4] == resumed[:4]
    assert (whole[4] == resumed[4]) == (whole == resumed) == same(model, again) == (not sync)
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
