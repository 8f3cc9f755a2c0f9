# What every case's script begins with. The environment says where things are: D the directory under test (of the array, or
# a plain one), W a directory of the host to work in, A the assets (bin, tree, cases), STRICT "strict" on an array and "" else.
# The argument is "first" on an empty directory, then "again" on what the first left behind.
set -eu -o pipefail
umask 022
cd "$W"

# Names, types, modes, sizes of files, link targets and old times below a directory.
listing() { find "$1" \( -type d -printf '%y %m %P\n' \) -o -printf '%y %m %s %l %P\n' | sort; }
# A file of $2 bytes that depends on $3 only.
pattern() {
    python3 - "$@" <<'PYTHON'
import random, sys
open(sys.argv[1], "wb").write(random.Random(int(sys.argv[3])).randbytes(int(sys.argv[2])))
PYTHON
}
