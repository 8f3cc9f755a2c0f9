. "$A/cases/common.sh"
"$A/bin/writers" "$D"
echo "$1" >"$D/$1"
