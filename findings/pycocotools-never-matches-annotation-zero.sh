#!/bin/sh
# pycocotools 2.0.11 and faster-coco-eval 1.7.2: the box whose annotation has the id 0 always counts as missed, and its detection as a false one.
#
# COCOeval stores for each detection the id of the annotation that it matches, and 0 stands for no match. A data set whose ids are counted from 0, as
# `enumerate` does, is accepted. A perfect detection of its first annotation is then counted as a false positive. If it has the highest score of its
# class, the precision of the whole class falls, so the metric by which checkpoints are chosen is too low, and unequally for each class. There is no
# error or warning. faster-coco-eval 1.7.2 does the same. Count the ids of annotations from 1. Ids of images and categories may be 0.
#
# Guess: ids may be any different integers.
# Seen, 2026-11-30: four boxes, and the same boxes as detections. With ids from 1 AP and recall are 1.0. With ids from 0 AP is 0.56 and recall is
# 0.75. If the first detection has the lowest score, AP is 0.75. faster-coco-eval gives the same numbers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'pycocotools==2.0.11' 'faster-coco-eval==1.7.2' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import contextlib
import io
from importlib.metadata import version

import faster_coco_eval
import pycocotools.coco
import pycocotools.cocoeval

BOXES = [[20 * number, 10, 8, 8] for number in range(4)]


def precision_and_recall(first_id, scores, coco, evaluation, ids_of_image_and_category=1):
    """Evaluate detections that are equal to the annotations."""
    place = {"image_id": ids_of_image_and_category, "category_id": ids_of_image_and_category}
    annotations = [{"id": first_id + number, **place, "bbox": box, "area": 64, "iscrowd": 0} for number, box in enumerate(BOXES)]
    truth = coco()
    truth.dataset = {
        "images": [{"id": ids_of_image_and_category, "width": 100, "height": 100}],
        "categories": [{"id": ids_of_image_and_category, "name": "one"}],
        "annotations": annotations,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes([{**place, "bbox": box, "score": score} for box, score in zip(BOXES, scores, strict=True)])
        result = evaluation(truth, found, "bbox")
        result.evaluate()
        result.accumulate()
        result.summarize()
    return round(float(result.stats[0]), 2), round(float(result.stats[8]), 2)


def original(*arguments, **options):
    return precision_and_recall(*arguments, pycocotools.coco.COCO, pycocotools.cocoeval.COCOeval, **options)


def faster(*arguments, **options):
    return precision_and_recall(*arguments, faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster, **options)


print("pycocotools", version("pycocotools"), "faster-coco-eval", version("faster-coco-eval"))
falling, rising = [0.9, 0.8, 0.7, 0.6], [0.6, 0.7, 0.8, 0.9]
for first_id, scores, expected in ((1, falling, (1.0, 1.0)), (0, falling, (0.56, 0.75)), (0, rising, (0.75, 0.75))):
    found = original(first_id, scores), faster(first_id, scores)
    print(f"ids from {first_id}, scores {scores}: AP and recall {found[0]}, of faster-coco-eval {found[1]}")
    assert found == (expected, expected)
assert original(1, falling, ids_of_image_and_category=0) == (1.0, 1.0)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
