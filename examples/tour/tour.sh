#!/bin/sh
# The five-minute tour: your own program and your own pictures, on a box and back.
#
#     examples/tour/tour.sh BOX        BOX: what you would give to ssh, or local
#
# It makes the folder gpubox-tour here, with everything in it that you would write yourself.
set -eu
box=${1:?usage: examples/tour/tour.sh BOX}
here=$(cd "$(dirname "$0")" && pwd)
kit=$(cd "$here/../.." && pwd)
tour=$PWD/gpubox-tour

say() { printf '\n\033[1m%s\033[0m\n' "$1"; }
fab() { command fab --search-root "$kit" "$@"; }  # from whatever folder
run() { printf '$ %s\n' "$*"; "$@"; }

say "1. A program, some pictures, and a gpubox.toml that names both"
mkdir -p "$tour/program"
cp "$here/train.py" "$tour/program/"
[ -d "$tour/pictures" ] || python3 "$here/draw.py" "$tour/pictures"
{ [ -z "${GPUBOX_CONFIG:-}" ] || cat "$GPUBOX_CONFIG"; cat "$here/gpubox.toml"; } >"$tour/gpubox.toml.new"
mv "$tour/gpubox.toml.new" "$tour/gpubox.toml"
export GPUBOX_CONFIG="$tour/gpubox.toml"
ls "$tour" "$tour/pictures"

say "2. To the box: pictures up, staged to its fast disk, training begun"
run fab deploy --host "$box"

say "3. How it is"
run fab status --host "$box"
run fab logs --host "$box" --follow

say "4. Home: checkpoints, results, logs"
run fab fetch --host "$box"
run fab compare --out "$tour/compare.html" --no-browser

say "5. The same again does nothing twice; stop ends what still runs"
run fab deploy --host "$box" --new
run fab stop --host "$box"
run fab status --host "$box"

say "Done. Everything is in $tour; fab down --host $box switches a rented box off."
