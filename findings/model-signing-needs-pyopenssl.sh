#!/bin/sh
# model-signing 1.1.1: a fresh installation cannot be imported, since it does not declare pyOpenSSL.
#
# `model_signing/_signing/sign_certificate.py` imports `OpenSSL`, and every import of `model_signing` reads that module.
# The metadata of the package lists `cryptography` and `sigstore`, but not `pyOpenSSL`. Older versions of sigstore
# installed it; sigstore 4.5.1 does not. So the library and the command `model_signing` end in ModuleNotFoundError.
#
# Seen: `import model_signing` fails after `pip install`, and works after `pip install pyOpenSSL`.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'model-signing==1.1.1' 'sigstore==4.5.1'
cat > "$dir/try.py" <<'PY'
import subprocess
import sys


def imported():
    done = subprocess.run([sys.executable, "-c", "import model_signing"], capture_output=True, text=True)
    print(done.stderr.strip().splitlines()[-1] if done.returncode else "imported")
    return done.returncode == 0, done.stderr


ok, said = imported()
assert not ok and "ModuleNotFoundError: No module named 'OpenSSL'" in said, said
subprocess.run([sys.executable, "-m", "pip", "-q", "install", "pyOpenSSL"], check=True)
ok, said = imported()
assert ok, said
print("model-signing 1.1.1: as described")
PY
"$dir/venv/bin/python" "$dir/try.py"
