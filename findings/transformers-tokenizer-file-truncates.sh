#!/bin/sh
# transformers 5.24.0 with tokenizers 0.23.3: `save_pretrained` stores the truncation and padding of the last call, and tokenizers applies both.
#
# A call with `truncation=True, max_length=8` sets the truncation of the tokenizer inside. The docstring of `set_truncation_and_padding` says that it is
# reset afterwards, but it is not, and `save_pretrained` writes it into tokenizer.json.
# transformers sets both for each call, so it returns all tokens after a reload. `Tokenizer.from_file` of tokenizers, and other programs that
# read tokenizer.json, cut each text to 8 tokens, and pad each shorter one to 8. Nothing is raised or logged. So a data set that is tokenized
# with the file from a training has short samples, which depend on what the training tokenized last before the save. Call `no_truncation()` and
# `no_padding()` after `from_file`, or on `backend_tokenizer` before the save.
#
# Guess: arguments of a call do not change the file that is saved later.
# Seen, 2026-11-30: a text of 20 tokens has 20 tokens in transformers, before and after a reload, and 8 in tokenizers. A text of one
# token has 8. Saved before the call, the file gives 20 and 1.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'transformers==5.24.0' 'tokenizers==0.23.3'
cat > "$dir/try.py" <<'PY'
import sys

import tokenizers
import transformers

words = {"[UNK]": 0, "[PAD]": 1, **{f"w{number}": number + 2 for number in range(20)}}
inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")
long = " ".join(f"w{number}" for number in range(20))


def lengths(name):
    tokenizer.save_pretrained(f"{sys.argv[1]}/{name}")
    again = transformers.PreTrainedTokenizerFast.from_pretrained(f"{sys.argv[1]}/{name}")
    file = tokenizers.Tokenizer.from_file(f"{sys.argv[1]}/{name}/tokenizer.json")
    found = {
        "transformers": [len(again(text)["input_ids"]) for text in (long, "w1")],
        "tokenizers": [len(file.encode(text).ids) for text in (long, "w1")],
    }
    print(name, found)
    return found


print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
assert lengths("before") == {"transformers": [20, 1], "tokenizers": [20, 1]}
assert len(tokenizer(long, truncation=True, max_length=8, padding="max_length")["input_ids"]) == 8
assert lengths("after") == {"transformers": [20, 1], "tokenizers": [8, 8]}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
