. "$A/cases/common.sh"
# Writers die at any instruction; whoever comes after reads, writes and finds no lock held.
for round in 1 2 3 4 5; do
    python3 "$A/cases/killed.py" write "$D/file" $((round % 2)) &
    python3 "$A/cases/killed.py" write "$D/file" $((round % 3)) 2>"$W/errors" &
    sleep 0.1
    kill -9 %1 %2
    wait 2>/dev/null || true
    python3 "$A/cases/killed.py" check "$D/file"
done 2>/dev/null
python3 "$A/cases/killed.py" finish "$D/file" "$1"
cksum <"$D/file"
