. "$A/cases/common.sh"
if [[ $1 == again ]]; then
    cat "$D/log"
    mkdir "$D/again"
    D=$D/again
fi
"$A/bin/stdio" "$D"
