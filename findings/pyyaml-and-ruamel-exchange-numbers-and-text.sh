#!/bin/sh
# PyYAML 6.0.4 with ruamel.yaml 0.19.1: a learning rate that one writes is text for the other, and a run name of one is a number for the other.
#
# PyYAML follows YAML 1.1, in which a number with an exponent needs a dot. ruamel.yaml, and most parsers of other languages, follow YAML 1.2. ruamel.yaml
# writes 0.00001 as `1e-05`, which PyYAML reads as a string. It also reads the JSON that Python writes in this way, although JSON is called a subset of YAML.
# In the other direction, PyYAML writes the strings "12e4567" (a short commit id), "1e2" and "0o17" without quotes, since they are strings to it.
# ruamel.yaml reads them as infinity, 100.0 and 15. Each library reads its own files correctly. Write and read a file with the same library, or write JSON and read it as JSON.
#
# Guess: what one YAML library writes, the other reads with the same values and types.
# Seen, 2026-11-30: {"lr": 1e-05} from ruamel.yaml and from `json.dumps` is read by PyYAML as {"lr": "1e-05"}. {"run": "12e4567"} from PyYAML is read
# by ruamel.yaml as {"run": inf}.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'PyYAML==6.0.4' 'ruamel.yaml==0.19.1'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import io
import json

import ruamel.yaml
import yaml

print("PyYAML", yaml.__version__, "ruamel.yaml", importlib.metadata.version("ruamel.yaml"))


def ruamel_dump(value):
    file = io.StringIO()
    ruamel.yaml.YAML(typ="rt").dump(value, file)
    return file.getvalue()


def ruamel_load(text):
    return dict(ruamel.yaml.YAML(typ="rt").load(text))


rates = {"lr": 0.00001, "tokens": 1e20}
for writer, text in (("ruamel.yaml", ruamel_dump(rates)), ("json", json.dumps(rates))):
    print(f"{writer} writes {text!r}, PyYAML reads {yaml.safe_load(text)}, ruamel.yaml reads {ruamel_load(text)}")
    assert yaml.safe_load(text) == {"lr": "1e-05", "tokens": "1e+20"} and ruamel_load(text) == rates
names = {"run": "12e4567", "tag": "1e2", "mode": "0o17"}
text = yaml.safe_dump(names)
print(f"PyYAML writes {text!r}, ruamel.yaml reads {ruamel_load(text)}, PyYAML reads {yaml.safe_load(text)}")
assert ruamel_load(text) == {"run": float("inf"), "tag": 100.0, "mode": 15} and yaml.safe_load(text) == names
assert ruamel_load(ruamel_dump(names)) == names and yaml.safe_load(yaml.safe_dump(rates)) == rates
PY
"$dir/venv/bin/python" "$dir/try.py"
