#!/bin/sh
# paddlepaddle 3.3.1 with numpy 2.4.6: a NumPy array of uint16 becomes a bfloat16 tensor with the same bits, so 50256 becomes -832.
#
# NumPy has no bfloat16, so Paddle uses uint16 for it and reads each uint16 array as the bits of bfloat16 numbers. But uint16 is the usual type of
# token ids in a data file and of 16-bit images. `to_tensor` and `DataLoader` reinterpret such arrays. Nothing is raised or logged, even with
# `dtype="uint16"`. Paddle has uint16 tensors, and `paddle.from_dlpack` creates them correctly. `paddle.save` writes such a tensor as an array, and
# `paddle.load` returns it as bfloat16. In the other direction, `numpy()` of a bfloat16 tensor returns the bits as uint16: 1.0 becomes 16256. Convert
# in the call, as in `to_tensor(array, dtype="int32")`, and call `astype("float32")` before `numpy()`.
#
# Guess: the tensor has the values of the array, as in torch, or the type is refused.
# Seen, 2026-12-01: token ids [1, 17000, 50256] become about [0, 58, -832] in `to_tensor` and in a batch of `DataLoader`. 16-bit pixels with a mean of
# 16870 have a mean of NaN. A saved uint16 tensor is loaded as bfloat16. With `dtype="int32"` the values are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'paddlepaddle==3.3.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import paddle

paddle.device.set_device("cpu")
print("paddle", paddle.__version__, "numpy", np.__version__)
ids = np.array([1, 17000, 50256], np.uint16)


class Tokens(paddle.io.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return ids


def values(tensor):
    return tensor.astype("float64").numpy()


for dtype in (None, "uint16"):
    tensor = paddle.to_tensor(ids, dtype=dtype)
    print(f"to_tensor(dtype={dtype}): {ids.tolist()} becomes {values(tensor).tolist()}, {tensor.dtype}")
    assert tensor.dtype == paddle.bfloat16 and values(tensor)[1:].tolist() == [58, -832]
batch = next(iter(paddle.io.DataLoader(Tokens(), batch_size=2)))
print(f"a batch of DataLoader: {values(batch).tolist()}, {batch.dtype}")
assert batch.dtype == paddle.bfloat16 and values(batch)[:, 2].tolist() == [-832, -832]
for dtype in ("int32", "float32"):
    assert values(paddle.to_tensor(ids, dtype=dtype)).tolist() == ids.tolist()
for dtype in (np.uint8, np.int16, np.int64):
    assert values(paddle.to_tensor(ids.astype(dtype))).tolist() == ids.astype(dtype).tolist()

pixels = np.random.default_rng(0).integers(0, 2**15, (32, 32)).astype(np.uint16)
mean = values(paddle.to_tensor(pixels)).mean()
print(f"16-bit pixels below 32768: mean {pixels.mean():.1f} in NumPy, {mean:.3g} in Paddle")
assert not abs(mean - pixels.mean()) < 1000

tensor = paddle.from_dlpack(ids)
shown = str(tensor).split("dtype=")[1].split(",")[0]
print(f"from_dlpack: {values(tensor).tolist()}, shown as {shown}, dtype {tensor.dtype}, uint16 == bfloat16: {paddle.uint16 == paddle.bfloat16}")
assert shown == "uint16" and tensor.dtype == paddle.uint16 and values(tensor).tolist() == ids.tolist()
paddle.save({"ids": tensor}, sys.argv[1] + "/ids.pdparams")
loaded = paddle.load(sys.argv[1] + "/ids.pdparams")["ids"]
print(f"saved {values(tensor).tolist()}, loaded {values(loaded).tolist()}")
assert loaded.dtype == paddle.bfloat16 and values(loaded)[1:].tolist() == [58, -832]

one = paddle.ones([1], dtype="bfloat16")
print(f"1.0 in bfloat16: numpy() is {one.numpy().tolist()}, {one.numpy().dtype}")
assert one.numpy().tolist() == [16256] and one.astype("float32").numpy().tolist() == [1]
PY
OMP_NUM_THREADS=1 "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
