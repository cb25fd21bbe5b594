#!/bin/sh
# torch 2.13.0: `torch.export.save` changes signs: it stores `x.conj()` as `x`, and `x.conj().imag` as `x.imag`.
#
# torch conjugates and negates lazily: `x.conj()` shares the memory of `x` and has a bit that says "conjugated", and the real tensor
# `x.conj().imag` has a bit that says "negative". `torch.export.save` writes the memory of buffers and parameters without these bits. So a
# loaded program, also a real one, computes with the wrong signs, without an error. The program before the save is right, and `torch.save`
# keeps both bits. Call `resolve_conj()` and `resolve_neg()` before the export.
#
# Guess: a program computes the same after a save and a load.
# Seen, 2026-11-29: 1-2j is loaded as 1+2j, and -2.0 as 2.0; with `torch.save` and with resolved tensors all are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import io

import torch


class Scale(torch.nn.Module):
    def __init__(self, factor, trained):
        super().__init__()
        if trained:
            self.factor = torch.nn.Parameter(factor)
        else:
            self.register_buffer("factor", factor)

    def forward(self, inputs):
        return inputs * self.factor


def outputs(factor, trained):
    """The output of a program before `torch.export.save`, after `torch.export.load`, and of a module through torch.save."""
    ones, module = torch.ones_like(factor), Scale(factor, trained)
    program = torch.export.export(module, (ones,))
    before = program.module()(ones)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    after = torch.export.load(file).module()(ones)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return [one.tolist() for one in (before, after, torch.load(file)["factor"])]


print("torch", torch.__version__)
numbers = torch.tensor([1 + 2j, 3j])
for trained in (False, True):
    before, after, plain = outputs(numbers.conj(), trained)
    print("parameter:" if trained else "buffer:", "conjugated: before", before, "after", after, "torch.save", plain)
    assert before == plain == [1 - 2j, -3j] and after == [1 + 2j, 3j]
    before, after, plain = outputs(numbers.conj().imag, trained)
    print("negative: before", before, "after", after, "torch.save", plain)
    assert before == plain == [-2.0, -3.0] and after == [2.0, 3.0]
    before, after, plain = outputs(numbers.conj().resolve_conj().imag.clone(), trained)
    assert before == after == plain == [-2.0, -3.0]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
