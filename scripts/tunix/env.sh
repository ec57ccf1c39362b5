#!/bin/sh
# Makes an environment with tunix (once, 1.6 GB) and runs the tests marked `tunix` in it.
# Its own, because tunix pins what the other tests need newer. TUNIX_SOURCE names a checkout of tunix
# to take in place of 0.1.7, whose requirements serve it; the tests of the sampler need one.
set -eu
cd "$(dirname "$0")/../.."
venv="${TUNIX_VENV:-.venv-tunix}"
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet google-tunix==0.1.7 -e . \
    pytest pytest-xdist hypothesis beartype optax
fi
export PYTHONPATH="${TUNIX_SOURCE:+$TUNIX_SOURCE:}${PYTHONPATH:-}"
exec "$venv/bin/python" -m pytest -n 0 -m tunix tests/integrations "$@"
