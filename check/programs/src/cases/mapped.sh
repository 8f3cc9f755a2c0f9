. "$A/cases/common.sh"
# Debian's Python: it has the modules.
/usr/bin/python3 "$A/cases/mapped.py" "$1" "$D"
