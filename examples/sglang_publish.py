"""Publish a run's weights for SGLang: `sglang_publish.py STORE RUN SHARED BASE LOCAL ENGINE_URL …`.

SHARED is a directory that this program and all engines see, BASE the model that the engines were started with, and
LOCAL the directory on each engine's disk for its copy of the model. The program ends after a minute without a new step.
"""

import itertools
import json
import sys
import urllib.request

from ckstore import Store


def post(engine, call, **body):
    words = json.dumps(body).encode()
    request = urllib.request.Request(f"{engine}/{call}", words, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310 - the URL is that of an engine
        return json.load(answer)


def main(store, run, shared, base, local, *engines):
    with (
        Store.open(store) as opened,
        opened.publish(run, shared, select="model", add=[base], timeout_s=60, poll_s=0.5) as versions,
    ):
        # After a restart, engines may not have the newest version yet.
        for version in itertools.chain([versions.newest] if versions.newest else [], versions):
            # Engines continue to generate while they update and check the copies on their disks.
            for engine in engines:
                post(
                    engine,
                    "pull_weights",
                    local_checkpoint_dir=local,
                    source_dir=shared,
                    target_version=version.version,
                )
            for engine in engines:
                post(engine, "pause_generation")
                post(engine, "flush_cache")
                post(engine, "update_weights_from_disk", model_path=local, weight_version=str(version.version))
                post(engine, "continue_generation")
            print(f"{len(engines)} engines serve {version}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
