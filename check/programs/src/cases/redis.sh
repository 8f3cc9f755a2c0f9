. "$A/cases/common.sh"
# A server that appends every command with fsync, rewrites its log while it is used, and is started again.
socket=$W/redis.sock
server=
stop() { if [[ -n $server ]]; then kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; fi || true; }
trap stop EXIT
cli() { redis-cli -s "$socket" "$@"; }
start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$D" --appendonly yes --appendfsync always --save '' \
        --no-appendfsync-on-rewrite no --daemonize no --logfile "$W/redis.log" --pidfile "$W/redis.pid" &
    server=$!
    for _ in $(seq 1 200); do
        if [[ $(cli ping 2>/dev/null) == PONG ]]; then return; fi
        kill -0 "$server" || { cat "$W/redis.log" >&2; exit 98; }
        sleep 0.05
    done
    echo "redis does not answer" >&2
    exit 97
}
# Ends it as an operator would: everything is in the log already.
end() {
    cli shutdown nosave || true
    wait "$server"
    echo "server: $?"
    server=
}
rewrite() {
    cli bgrewriteaof >/dev/null
    for _ in $(seq 1 400); do
        if cli info persistence | tr -d '\r' | grep -q '^aof_rewrite_in_progress:0'; then break; fi
        sleep 0.02
    done
    cli info persistence | tr -d '\r' | grep '^aof_last_\(bgrewrite\|write\)_status\|^aof_rewrite_in'
}
fill() {
    for n in $(seq "$1" "$2"); do
        printf 'SET key:%d value-%d-%d\nRPUSH list:%d %d\nHSET hash f%d %d\nINCR counter\nSADD set %d\nZADD sorted %d m%d\n' \
            "$n" "$n" $((n * 7919)) $((n % 10)) "$n" "$n" "$n" "$n" $((n * 31 % 1000)) "$n"
    done | cli >/dev/null
    redis-cli -s "$socket" -x set "big:$1" <"$A/tree/large" >/dev/null
}
# Every key with the digest of its content, in order.
readonly DIGESTS='
local lines = {}
for _, key in ipairs(redis.call("keys", "*")) do
    local kind, value = redis.call("type", key).ok
    if kind == "string" then value = redis.call("get", key)
    elseif kind == "list" then value = table.concat(redis.call("lrange", key, 0, -1), " ")
    elseif kind == "zset" then value = table.concat(redis.call("zrange", key, 0, -1, "withscores"), " ")
    else
        value = redis.call(kind == "hash" and "hgetall" or "smembers", key)
        table.sort(value)
        value = table.concat(value, " ")
    end
    lines[#lines + 1] = key .. " " .. kind .. " " .. redis.sha1hex(value)
end
table.sort(lines)
return lines'
dump() {
    cli dbsize
    cli eval "$DIGESTS" 0 | sha256sum
    cli mget key:42 key:150 counter
    cli lrange list:3 0 3
}
first() {
    start
    fill 1 150
    rewrite
    fill 151 200
    dump
    end
}
again() { :; }
"$1"
start
dump
fill 301 400
rewrite
fill 401 420
dump
# A server that dies at once has answered nothing that is not in the log.
{ kill -9 "$server"; wait "$server" || echo "killed: $?"; } 2>/dev/null
start
dump
end
redis-check-aof "$D/appendonlydir/appendonly.aof.manifest" | tail -n 1
# The log holds times and sizes of its own; its content was compared key by key.
if [[ $1 == again ]]; then rm -r "$D/appendonlydir"; else ls "$D/appendonlydir" | wc -l; fi
