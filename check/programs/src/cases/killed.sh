. "$A/cases/common.sh"
# Writers die at any instruction; whoever comes after reads, writes and finds no lock held.
# On a degraded array with parity a dying writer damages what the missing member held: that needs the journal.
content=content
if [[ $1 == again && ${CXLRAID_LEVEL:-0} -ge 4 ]]; then content=; fi
for round in 1 2 3 4 5; do
    python3 "$A/cases/killed.py" write "$D/$1" $((round % 2)) &
    python3 "$A/cases/killed.py" write "$D/$1" $((round % 3)) 2>"$W/errors" &
    sleep 0.2
    kill -9 %1 %2
    wait 2>/dev/null || true
    python3 "$A/cases/killed.py" check "$D/$1" $content
done 2>/dev/null
if [[ $1 == first ]]; then
    # What was under way when a writer died must read the same with and without a member.
    python3 "$A/cases/killed.py" write "$D/left" 0 &
    sleep 0.2
    kill -9 %%
    wait 2>/dev/null || true
    truncate -s 400000 "$D/left"
fi 2>/dev/null
python3 "$A/cases/killed.py" finish "$D/$1" "$1"
cksum <"$D/$1"
