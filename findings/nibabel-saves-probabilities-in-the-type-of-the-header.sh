#!/bin/sh
# nibabel 5.4.2: an image of float32 probabilities that is made with the header of a label image is saved as uint8, and NaN as zero.
#
# `Nifti1Image(data, affine, header)` is the usual way to save the output of a model with the position and the voxel size of its input. The header also
# has the type of the file. Its type wins over that of the data: the values are scaled to 256 (uint8) or 65536 (int16) steps between their minimum and
# their maximum, and NaN becomes zero. The image in memory still has the exact values until it is read again, and nothing is raised or logged. So
# ensembles and thresholds that are computed from saved files differ from those in memory, and a diverged model leaves a plausible image. Call
# `image.set_data_dtype(data.dtype)` before the save, or pass no header.
#
# Guess: the file has the type of the data.
# Seen, 2026-12-01: with the header of a uint8 label image, values are off by up to 0.002, 999 values become at most 256, and NaN becomes 0. With
# that of an int16 scan, they are off by up to 8e-6. Without a header, or after `set_data_dtype`, all values and NaN are exact.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'nibabel==5.4.2' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import os
import sys

import nibabel
import numpy as np

print("nibabel", nibabel.__version__)
os.chdir(sys.argv[1])
generator = np.random.default_rng(0)
probabilities = generator.random((10, 10, 10)).astype(np.float32)
probabilities[0, 0, 0] = np.nan


def saved(image):
    nibabel.save(image, "output.nii.gz")
    read = nibabel.load("output.nii.gz")
    return read, np.asarray(read.dataobj)


for dtype, most in ((np.uint8, 2e-3), (np.int16, 8e-6)):
    nibabel.save(nibabel.Nifti1Image(generator.integers(0, 5, (10, 10, 10)).astype(dtype), np.eye(4)), "input.nii.gz")
    source = nibabel.load("input.nii.gz")

    image = nibabel.Nifti1Image(probabilities, source.affine, source.header)
    assert np.array_equal(np.asarray(image.dataobj), probabilities, equal_nan=True)
    read, values = saved(image)
    error = np.nanmax(np.abs(values - probabilities)[probabilities == probabilities])
    distinct = len(np.unique(values))
    print(f"header of {dtype.__name__}: file of {read.get_data_dtype()}, largest error {error:.2g}, {distinct} values, NaN is {values[0, 0, 0]}")
    assert read.get_data_dtype() == dtype
    assert most / 2 < error <= most and distinct <= (256 if dtype is np.uint8 else 1000)
    assert abs(values[0, 0, 0]) <= most

    image = nibabel.Nifti1Image(probabilities, source.affine, source.header)
    image.set_data_dtype(probabilities.dtype)
    for name, exact in (("set_data_dtype", image), ("no header", nibabel.Nifti1Image(probabilities, source.affine))):
        read, values = saved(exact)
        print(f"{name}: file of {read.get_data_dtype()}, equal: {np.array_equal(values, probabilities, equal_nan=True)}")
        assert np.array_equal(values, probabilities, equal_nan=True)
PY
"$dir/venv/bin/python" -W error "$dir/try.py" "$dir"
