. "$A/cases/common.sh"
# One of the small C programs.
if [[ $1 == again ]]; then
    # What a killed program leaves behind is different each time.
    find "$D" -maxdepth 1 -type f ! -name left -print0 | sort -z | xargs -0 -r cksum
    mkdir "$D/again"
    D=$D/again
fi
"$A/bin/$PROGRAM" "$D"
