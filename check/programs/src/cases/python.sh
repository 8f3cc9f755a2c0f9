. "$A/cases/common.sh"
python3 "$A/cases/python.py" "$1" "$D"
