. "$A/cases/common.sh"
node "$A/cases/node.js" "$1" "$D"
